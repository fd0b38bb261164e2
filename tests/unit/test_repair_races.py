"""Healing while others commit: at every one of its writes, everything that may come between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import (
    FencedError,
    TransientError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.repair.actions import (
    fold_watermark,
    release_owner,
    resolve_checkpoint,
    resolve_gap,
)
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset, InMemoryDatasetPort
from tests.support.drivers import QUERY, QUICK
from tests.support.repairing import CheckpointDriver, Scene, lance_scene, twin_scene

WRITES = (0, 1, 2)
"""A claim, a barrier, a release."""


class KilledError(BaseException):
    """The process that repairs ends here."""


@pytest.fixture(params=["twin", "lance"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return twin_scene(tmp_path) if request.param == "twin" else lance_scene(tmp_path)


def release(scene: Scene) -> RepairResult:
    return release_owner(scene.world.open(), QUERY, by="anna", backoff=QUICK)


@contextmanager
def before_write(
    monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]
) -> Iterator[None]:
    """Let another client act before the repair's write of this number, in between its own steps."""
    left, within = number, False

    def hooked(cls: type) -> None:
        commit = cls.commit  # type: ignore[attr-defined]

        def wrapper(port: Any, change: Any, properties: Any = None) -> Any:
            nonlocal left, within
            if not within:
                left -= 1
                if left == -1:
                    within = True
                    act()
                    within = False
            return commit(port, change, properties)

        monkeypatch.setattr(cls, "commit", wrapper)

    hooked(InMemoryDatasetPort)
    hooked(LanceDatasetPort)
    try:
        yield
    finally:
        monkeypatch.undo()
    assert left < 0, "it never came to this write"


def exactly_once(scene: Scene, epochs: int) -> None:
    assert scene.epochs() == [epoch for epoch in range(epochs) for _ in range(3)]


def replace_checkpoint(scene: Scene) -> None:
    shutil.rmtree(scene.checkpoint)
    Path(scene.checkpoint).mkdir()
    Path(scene.checkpoint, "metadata").write_text('{"id": "second"}')


@pytest.mark.parametrize("number", WRITES)
def test_late_commit_of_the_old_owner_lands_once_or_is_fenced_during_a_release(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stale = CheckpointDriver(scene, "stale")
    stale.step(epochs=2)
    pending = stale.plan()
    outcome: list[object] = []

    def land() -> None:
        try:
            outcome.append(stale.land(pending))
        except FencedError as error:
            outcome.append(error)

    with before_write(monkeypatch, number, land):
        repaired = release(scene)
    landed = not isinstance(outcome[0], FencedError)
    assert landed is (number < 2)  # behind the barrier nothing of it lands any more
    assert repaired.watermark == (2 if landed else 1)
    if landed:
        stale.log(pending)
    with pytest.raises(FencedError):
        stale.land(stale.plan())
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 5 if landed else 4)


@pytest.mark.parametrize("number", WRITES)
def test_release_leaves_a_successor_that_claims_in_the_middle(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    CheckpointDriver(scene, "dead").step(epochs=2)
    successors: list[CheckpointDriver] = []

    def claim() -> None:
        successors.append(CheckpointDriver(scene, "next"))
        successors[0].step()

    with (
        before_write(monkeypatch, number, claim),
        pytest.raises(FencedError, match="run next"),
    ):
        release(scene)
    assert scene.owner.driver.run_id == "next"
    successors[0].step(epochs=2)
    assert successors[0].committer.release()
    exactly_once(scene, 5)


@pytest.mark.parametrize("number", WRITES)
def test_of_two_concurrent_releases_one_is_fenced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    CheckpointDriver(scene, "dead").step(epochs=2)
    with before_write(monkeypatch, number, lambda: release(scene)), pytest.raises(FencedError):
        release(scene)
    assert scene.owner.state is OwnerState.RELEASED
    assert release(scene).changed is False
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 4)


@pytest.mark.parametrize("number", WRITES)
def test_folds_and_compactions_in_the_middle_are_no_obstacle(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    CheckpointDriver(scene, "dead").step(epochs=3)

    def act() -> None:
        fold_watermark(scene.world.open(), QUERY)
        scene.world.compact()

    with before_write(monkeypatch, number, act):
        assert release(scene).watermark == 2
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 5)


@pytest.mark.parametrize("number", WRITES)
def test_a_cleanup_in_the_middle_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    dead = CheckpointDriver(scene, "dead")
    dead.step(epochs=2)
    dead.land(dead.plan())
    with before_write(monkeypatch, number, scene.world.clean_up):
        release(scene)
    CheckpointDriver(scene, "next").step(epochs=3)
    exactly_once(scene, 5)


@pytest.mark.parametrize("number", WRITES)
def test_release_that_was_killed_can_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    dead = CheckpointDriver(scene, "dead")
    dead.step(epochs=2)
    dead.land(dead.plan())

    def kill() -> None:
        raise KilledError

    with before_write(monkeypatch, number, kill), pytest.raises(KilledError):
        release(scene)
    assert scene.owner.state is OwnerState.ACTIVE
    assert release(scene).watermark == 2
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 4)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("number", WRITES)
def test_an_answer_that_was_interrupted_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int, landed: bool
) -> None:
    dead = CheckpointDriver(scene, "dead")
    dead.step(epochs=2)
    epoch = dead.plan()
    if landed:
        dead.land(epoch)
    scene.world.compact()
    scene.world.clean_up()

    def resolve() -> RepairResult:
        port = scene.world.open()
        return resolve_gap(port, QUERY, 2, landed, by="anna", backoff=QUICK)

    def kill() -> None:
        raise KilledError

    with before_write(monkeypatch, number, kill), pytest.raises(KilledError):
        resolve()
    repaired = resolve() if number == 0 else release(scene)
    assert repaired.watermark == (2 if landed else 1)
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 4)


@pytest.mark.parametrize("number", WRITES)
def test_an_epoch_called_missing_that_lands_after_all_is_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stale = CheckpointDriver(scene, "stale")
    stale.step(epochs=2)
    pending = stale.plan()
    scene.world.compact()
    scene.world.clean_up()

    def land() -> None:
        with suppress(FencedError):
            stale.land(pending)

    with before_write(monkeypatch, number, land):
        resolve_gap(scene.world.open(), QUERY, 2, False, by="anna", backoff=QUICK)
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 4)


@pytest.mark.parametrize("number", WRITES)
def test_an_old_checkpoints_late_commit_is_of_the_old_generation(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stale = CheckpointDriver(scene, "stale")
    stale.step(epochs=2)
    pending = stale.plan()
    replace_checkpoint(scene)

    def land() -> None:
        with suppress(FencedError):
            stale.land(pending)

    with before_write(monkeypatch, number, land):
        repaired = resolve_checkpoint(
            scene.world.open(), QUERY, scene.checkpoint, by="anna", backoff=QUICK
        )
    assert (repaired.watermark, repaired.generation) == (-1, 1)
    CheckpointDriver(scene, "next", checkpoint_id="second").step(epochs=3)
    before = 3 if number < 2 else 2
    assert scene.epochs() == sorted([*range(before), *range(3)] * 3)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", WRITES)
def test_a_write_of_unknown_outcome_is_looked_for(
    tmp_path: Path, fault: Fault, number: int
) -> None:
    dataset = InMemoryDataset()
    scene = twin_scene(tmp_path, dataset)
    dead = CheckpointDriver(scene, "dead")
    dead.step(epochs=2)
    dead.land(dead.plan())
    dataset.faults = [*[None] * number, fault]
    assert release(scene).watermark == 2
    assert scene.owner.state is OwnerState.RELEASED
    CheckpointDriver(scene, "next").step(epochs=2)
    exactly_once(scene, 4)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", WRITES)
def test_a_new_generation_of_unknown_outcome_is_begun_once(
    tmp_path: Path, fault: Fault, number: int
) -> None:
    dataset = InMemoryDataset()
    scene = twin_scene(tmp_path, dataset)
    CheckpointDriver(scene, "dead").step(epochs=2)
    replace_checkpoint(scene)
    dataset.faults = [*[None] * number, fault]
    port = scene.world.open()
    repaired = resolve_checkpoint(port, QUERY, scene.checkpoint, by="anna", backoff=QUICK)
    assert (repaired.generation, repaired.watermark) == (1, -1)
    assert scene.owner.state is OwnerState.RELEASED
    assert CheckpointDriver(scene, "next", checkpoint_id="second").step().epoch_id == 0


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fold_of_unknown_outcome_is_looked_for(tmp_path: Path, fault: Fault) -> None:
    dataset = InMemoryDataset()
    scene = twin_scene(tmp_path, dataset)
    driver = CheckpointDriver(scene)
    driver.step(epochs=2)
    dataset.faults = [fault]
    repaired = fold_watermark(scene.world.open(), QUERY, backoff=QUICK)
    assert (repaired.changed, repaired.watermark, scene.state.watermark) == (True, 1, 1)
    driver.step()
    exactly_once(scene, 3)


@pytest.mark.parametrize("number", WRITES)
def test_a_store_that_refuses_for_good_leaves_a_query_that_can_be_released(
    tmp_path: Path, number: int
) -> None:
    dataset = InMemoryDataset()
    scene = twin_scene(tmp_path, dataset)
    CheckpointDriver(scene, "dead").step(epochs=2)
    dataset.faults = [*[None] * number, *[Fault.LOST_REQUEST] * QUICK.attempts]
    with pytest.raises(TransientError):
        release(scene)
    dataset.faults = []
    assert release(scene).watermark == 1
    CheckpointDriver(scene, "next").step()
    exactly_once(scene, 3)


def test_preempted_fold_reads_the_watermark_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointDriver(scene, "dead").step(epochs=2)
    successor = CheckpointDriver(scene, "next")
    with before_write(monkeypatch, 0, successor.step):
        repaired = fold_watermark(scene.world.open(), QUERY, backoff=QUICK)
    # The claim has folded the two epochs, the successor's own is on top.
    assert (repaired.watermark, repaired.changed) == (2, True)
    successor.step()
    exactly_once(scene, 4)
