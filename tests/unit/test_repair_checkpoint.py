"""A changed checkpoint is recorded by hand, and the next start needs no option."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    DriverAliveError,
    PreconditionError,
    SpecError,
)
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.repair.actions import resolve_checkpoint
from airflow_provider_lance.repair.result import RepairResult
from tests.support.drivers import CHECKPOINT_ID, QUERY, QUICK
from tests.support.repairing import HERE, CheckpointDriver, Scene, lance_scene, twin_scene


@pytest.fixture(params=["twin", "lance"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return twin_scene(tmp_path) if request.param == "twin" else lance_scene(tmp_path)


def resolve(scene: Scene, location: str = "", **options: Any) -> RepairResult:
    options = {"by": "anna", "backoff": QUICK, **options}
    return resolve_checkpoint(scene.world.open(), QUERY, location or scene.checkpoint, **options)


def refused(scene: Scene, error: type[Exception], match: str, location: str = "") -> None:
    version = scene.world.open().version
    with pytest.raises(error, match=match):
        resolve(scene, location)
    assert scene.world.open().version == version


def replace_checkpoint(scene: Scene) -> None:
    """Delete the checkpoint, and let somebody make another in its place."""
    shutil.rmtree(scene.checkpoint)
    Path(scene.checkpoint).mkdir()
    Path(scene.checkpoint, "metadata").write_text(json.dumps({"id": "second"}))


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("gap", [True, False])
def test_another_checkpoint_begins_a_generation(scene: Scene, released: bool, gap: bool) -> None:
    first = CheckpointDriver(scene, "first")
    first.step(epochs=3)
    if released:
        first.committer.release()
    if gap:
        scene.world.clean_up()
    replace_checkpoint(scene)
    with pytest.raises(CheckpointMismatchError):
        CheckpointDriver(scene, "next", checkpoint_id="second")

    before = scene.state
    planned = resolve(scene, dry_run=True)
    assert scene.state == before
    repaired = resolve(scene)
    assert (repaired.changed, planned.sentence) == (True, repaired.sentence)
    assert repaired.version == planned.writes[-1].version == before.version + (2 if released else 3)
    assert (repaired.watermark, repaired.generation, repaired.token) == (-1, 1, 2)
    recorded = scene.owner.driver
    assert (recorded.checkpoint_id, recorded.checkpoint_location) == ("second", scene.checkpoint)
    assert scene.owner.state is OwnerState.RELEASED

    successor = CheckpointDriver(scene, "next", checkpoint_id="second")
    assert successor.step().epoch_id == 0
    successor.step(epochs=11)  # with a fold of its own
    assert successor.committer.release()
    assert scene.owner.generation == 1
    assert scene.epochs() == sorted([*range(3), *range(12)] * 3)
    with pytest.raises(CheckpointMismatchError):
        CheckpointDriver(scene, "late", checkpoint_id=CHECKPOINT_ID, checkpoint=f"{scene.folder}/x")


def test_an_older_copy_of_the_same_checkpoint_begins_a_generation(scene: Scene) -> None:
    driver = CheckpointDriver(scene, "first")
    driver.step(epochs=2)
    shutil.copytree(scene.checkpoint, f"{scene.folder}/copy")
    driver.step(epochs=2)
    shutil.rmtree(scene.checkpoint)
    Path(scene.folder, "copy").rename(scene.checkpoint)
    with pytest.raises(CheckpointMismatchError, match="older copy"):
        CheckpointDriver(scene, "next")
    assert resolve(scene).generation == 1
    successor = CheckpointDriver(scene, "next")
    assert successor.next == 2
    assert successor.step().decision is Decision.FULL_COMMIT
    assert (scene.watermark, scene.epochs().count(2)) == (2, 6)


def test_a_checkpoint_that_fits_is_left_as_it_is(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    refused(scene, PreconditionError, "nothing to resolve")


def test_a_checkpoint_without_an_id_cannot_be_recorded(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    refused(scene, PreconditionError, "onCheckpointChange=newGeneration", f"{scene.folder}/none")
    replace_checkpoint(scene)
    Path(scene.checkpoint, "metadata").write_text("no json")
    refused(scene, CheckpointCorruptError, f"{scene.checkpoint} .*`metadata`")


def test_the_old_checkpoints_living_driver_forbids_it(scene: Scene) -> None:
    CheckpointDriver(scene, process=HERE).step()
    replace_checkpoint(scene)
    refused(scene, DriverAliveError, "is alive")


def test_a_query_that_is_not_known_is_not_made_by_a_typing_error(scene: Scene) -> None:
    CheckpointDriver(scene).step()
    scene.world.open()
    with pytest.raises(SpecError, match=f"'odrers'.*'{QUERY}'"):
        resolve_checkpoint(scene.world.open(), "odrers", scene.checkpoint, by="anna")
