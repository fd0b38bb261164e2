"""Versions that were cleaned up: what the checkpoint proves, and what somebody has to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import HistoryGapError, PreconditionError
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.repair.actions import release_owner, resolve_gap
from airflow_provider_lance.repair.result import RepairResult
from tests.support.drivers import QUERY, QUICK
from tests.support.repairing import DEAD, CheckpointDriver, Scene, lance_scene, twin_scene

LAUNCH = "20260101T000000000Z-00000001"


@pytest.fixture(params=["twin", "lance"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return twin_scene(tmp_path) if request.param == "twin" else lance_scene(tmp_path)


def release(scene: Scene, **options: Any) -> RepairResult:
    return release_owner(scene.world.open(), QUERY, **{"by": "anna", "backoff": QUICK, **options})


def resolve(scene: Scene, epoch: int, landed: bool, **options: Any) -> RepairResult:
    options = {"by": "anna", "backoff": QUICK, **options}
    return resolve_gap(scene.world.open(), QUERY, epoch, landed, **options)


def leave_gap(scene: Scene, *, landed: bool | None) -> None:
    """Kill a driver after epochs 0 to 2, epoch 2 planned or not, and clean up all history."""
    driver = CheckpointDriver(scene, "dead", launch_id=LAUNCH)
    driver.step(epochs=2)
    if landed is not None:
        epoch = driver.plan()
        if landed:
            driver.land(epoch)
    scene.world.compact()
    scene.world.clean_up()


def refused(scene: Scene, error: type[Exception], match: str, repair: Any, *args: Any) -> None:
    version = scene.world.open().version
    with pytest.raises(error, match=match):
        repair(scene, *args)
    assert scene.world.open().version == version


def go_on(scene: Scene, expected: Decision, epochs: int) -> None:
    """Start the next driver, which must not be refused, and check that no row is lost or double."""
    driver = CheckpointDriver(scene, "next")
    assert driver.step().decision is expected
    driver.step()
    assert scene.epochs() == [epoch for epoch in range(epochs) for _ in range(3)]


def test_a_gap_over_epochs_that_spark_has_as_done_is_answered_for(scene: Scene) -> None:
    leave_gap(scene, landed=None)
    refused(
        scene,
        HistoryGapError,
        r"resolve gap .* --epoch 1 --after-version \d+ --yes --committed",
        release,
    )
    refused(scene, PreconditionError, "onRestore=accept:0-1", resolve, 1, False)
    planned = resolve(scene, 1, True, dry_run=True)
    repaired = resolve(scene, 1, True)
    assert (repaired.watermark, planned.sentence) == (1, repaired.sentence)
    go_on(scene, Decision.FULL_COMMIT, 4)


@pytest.mark.parametrize("landed", [True, False])
def test_an_epoch_in_doubt_is_not_guessed_but_resolved(scene: Scene, landed: bool) -> None:
    leave_gap(scene, landed=landed)
    refused(
        scene,
        HistoryGapError,
        r"resolve gap .* --epoch 2 --after-version \d+ --yes --committed",
        release,
    )
    planned = resolve(scene, 2, landed, dry_run=True)
    repaired = resolve(scene, 2, landed)
    assert repaired.changed
    assert (repaired.watermark, planned.sentence) == (2 if landed else 1, repaired.sentence)
    assert scene.owner.state is OwnerState.RELEASED
    word = "committed" if landed else "missing"
    assert scene.owner.driver.run_id.startswith(f"epoch 2 resolved as {word} by anna ")
    go_on(scene, Decision.SKIP_REPLAY if landed else Decision.FULL_COMMIT, 4)


def test_resolved_gap_refuses_a_second_answer(scene: Scene) -> None:
    leave_gap(scene, landed=True)
    resolve(scene, 2, True)
    refused(scene, PreconditionError, "no gap", resolve, 2, False)
    refused(scene, PreconditionError, "no gap", resolve, 2, True)


def test_only_the_epoch_in_doubt_can_be_answered_for(scene: Scene) -> None:
    leave_gap(scene, landed=True)
    for epoch in (1, 3):
        refused(scene, PreconditionError, "epoch 2 is: planned", resolve, epoch, True)


def test_an_epoch_that_the_rest_of_history_shows_is_not_in_doubt(scene: Scene) -> None:
    driver = CheckpointDriver(scene, "dead")
    driver.step(epochs=2)
    scene.world.clean_up()
    epoch = driver.plan()
    driver.land(epoch)
    # Its driver would have ended, had it not found epoch 1 below; whether it has is not known yet.
    refused(
        scene,
        HistoryGapError,
        r"resolve gap .* --epoch 2 --after-version \d+ --yes --committed",
        release,
    )
    driver.log(epoch)
    answer = "no epoch .* is in doubt.*history up to 2.*lance-stream release"
    refused(scene, PreconditionError, answer, resolve, 2, False)
    assert release(scene).watermark == 2
    go_on(scene, Decision.FULL_COMMIT, 5)


def test_a_query_without_a_gap_has_nothing_to_resolve(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    refused(scene, PreconditionError, "no gap", resolve, 1, True)


def test_wrong_answer_is_refused_by_the_drivers_heartbeat(scene: Scene) -> None:
    leave_gap(scene, landed=True)
    scene.beat(LAUNCH, DEAD, watermark=2)
    refused(scene, PreconditionError, "epoch 2 .* reported .*--committed", resolve, 2, False)
    assert resolve(scene, 2, True).changed


def test_only_the_recorded_checkpoint_bridges_a_gap(scene: Scene, tmp_path: Path) -> None:
    leave_gap(scene, landed=None)
    kept = Path(scene.checkpoint).rename(tmp_path / "kept")
    for repair, args in ((release, ()), (resolve, (2, True))):
        refused(scene, HistoryGapError, "has no checkpoint", repair, *args)
    Path(scene.checkpoint).mkdir()
    Path(scene.checkpoint, "metadata").write_text('{"id": "another"}')
    for repair, args in ((release, ()), (resolve, (2, True))):
        refused(scene, HistoryGapError, "has id another", repair, *args)
    assert resolve(scene, 1, True, checkpoint_location=str(kept)).watermark == 1


def test_an_older_copy_of_the_checkpoint_bridges_nothing(scene: Scene) -> None:
    leave_gap(scene, landed=None)
    scene.beat(LAUNCH, DEAD, watermark=1)
    Path(scene.checkpoint, "offsets", "1").unlink()
    Path(scene.checkpoint, "commits", "1").unlink()
    refused(scene, HistoryGapError, "epoch after 0.* epoch 1", release)


def test_release_without_a_gap_needs_no_checkpoint(scene: Scene, tmp_path: Path) -> None:
    CheckpointDriver(scene).step(epochs=2)
    Path(scene.checkpoint).rename(tmp_path / "kept")
    assert release(scene).watermark == 1
    (tmp_path / "kept").rename(scene.checkpoint)
    go_on(scene, Decision.FULL_COMMIT, 4)
