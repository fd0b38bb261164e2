"""An owner is released only if no driver of the query can be at work."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import DriverAliveError, SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.checkpoint import TOPIC_IDS
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.repair.actions import release_owner, resolve_checkpoint
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.repair.set_aside import forget_topics
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    report_location,
    write_heartbeat,
    write_summary,
)
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.drivers import QUERY, QUICK
from tests.support.repairing import DEAD, ELSEWHERE, HERE, CheckpointDriver, Scene, twin_scene

OWNER, OTHER = "20260101T000000000Z-00000001", "20260102T000000000Z-00000002"
UNTOLD = replace(HERE, start="")
"""A process of a system that does not tell when one began, or of an older record."""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return twin_scene(tmp_path)


def release(scene: Scene, **options: Any) -> RepairResult:
    return release_owner(scene.world.open(), QUERY, **{"by": "anna", "backoff": QUICK, **options})


def refused(scene: Scene, match: str, **options: Any) -> None:
    """Assert that nothing is written, and what is said."""
    version = scene.world.open().version
    with pytest.raises(DriverAliveError, match=match):
        release(scene, **options)
    assert scene.world.open().version == version


def end(scene: Scene, launch_id: str, reason: EndReason = EndReason.FAILED) -> None:
    summary = Summary(
        launch_id=launch_id,
        query_id=QUERY,
        uri="",
        reason=reason,
        epochs=0,
        rows=0,
        deletes=0,
        skipped=0,
        first_epoch=None,
        last_epoch=None,
        watermark=0,
        version=None,
        manifest_updates=0,
        released=False,
        seconds=1.0,
    )
    write_summary(open_files(report_location(scene.checkpoint)), summary)


def test_owner_that_is_alive_is_not_released_even_with_proven_dead(scene: Scene) -> None:
    CheckpointDriver(scene, process=HERE, launch_id=OWNER).step()
    refused(scene, f"pid {HERE.pid} on {HERE.host}, .* is alive")
    end(scene, OWNER)
    refused(scene, f"pid {HERE.pid} .* is alive", proven_dead=True)


def test_ids_of_topics_stay_while_a_driver_is_alive(scene: Scene) -> None:
    CheckpointDriver(scene, process=HERE, launch_id=OWNER).step()
    files = open_files(scene.checkpoint)
    files.write(f"{TOPIC_IDS}/0", b"v1\n{}")
    with pytest.raises(DriverAliveError, match=f"pid {HERE.pid} .* is alive"):
        forget_topics(scene.world.open(), QUERY, by="anna", proven_dead=True)
    assert files.names(TOPIC_IDS) == ["0"]


@pytest.mark.parametrize("process", [ELSEWHERE, UNTOLD])
def test_an_owner_out_of_sight_is_released_on_proof_only(
    scene: Scene, process: ProcessIdentity
) -> None:
    CheckpointDriver(scene, process=process, launch_id=OWNER).step()
    scene.beat(OWNER, process)
    command = rf"lance-stream release memory://dataset {QUERY} --proven-dead --yes"
    refused(scene, rf"pid {process.pid} on {process.host}, last heartbeat 20.*type: {command}")
    assert release(scene, proven_dead=True).changed


def test_summary_of_the_owner_proves_its_end_from_any_host(scene: Scene) -> None:
    CheckpointDriver(scene, process=ELSEWHERE, launch_id=OWNER).step()
    end(scene, OWNER)
    assert release(scene).changed


def test_summary_of_another_launch_does_not_prove_the_end_of_the_owner(scene: Scene) -> None:
    CheckpointDriver(scene, process=ELSEWHERE, launch_id=OWNER).step()
    end(scene, OTHER)
    refused(scene, f"pid {ELSEWHERE.pid} on {ELSEWHERE.host}, .*--proven-dead")


def test_a_driver_that_waits_for_its_first_rows_forbids_it(scene: Scene) -> None:
    CheckpointDriver(scene, launch_id=OWNER).step()
    scene.beat(OTHER, HERE)
    for proven_dead in (False, True):
        refused(scene, f"launch {OTHER} of query .* is alive", proven_dead=proven_dead)
    end(scene, OTHER)  # its process may stay, a notebook's for one
    assert release(scene).changed


def test_a_waiting_driver_out_of_sight_forbids_it_while_its_heartbeat_is_young(
    scene: Scene,
) -> None:
    CheckpointDriver(scene, launch_id=OWNER).step()
    scene.beat(OTHER, ELSEWHERE)
    refused(scene, f"launch {OTHER} .*--proven-dead")
    files = open_files(report_location(scene.checkpoint))
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    document = {"queryId": QUERY, "time": hour_ago, "driver": ELSEWHERE.to_json()}
    write_heartbeat(files, OTHER, document)
    assert release(scene).changed


def test_proven_dead_covers_a_waiting_driver_on_another_host(scene: Scene) -> None:
    CheckpointDriver(scene, launch_id=OWNER).step()
    scene.beat(OTHER, ELSEWHERE)
    assert release(scene, proven_dead=True).changed


def test_another_querys_driver_does_not_matter(scene: Scene) -> None:
    CheckpointDriver(scene, launch_id=OWNER).step()
    scene.query_id = "other"
    scene.beat(OTHER, HERE)
    scene.query_id = QUERY
    assert release(scene).changed


def test_an_owner_among_many_launches_is_found(scene: Scene) -> None:
    CheckpointDriver(scene, process=ELSEWHERE, launch_id=OWNER).step()
    end(scene, OWNER)
    for day in range(2, 12):
        scene.beat(f"202601{day:02}T000000000Z-00000000", DEAD)
    assert release(scene).changed


def test_reports_that_cannot_be_read_are_no_proof(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointDriver(scene, launch_id=OWNER).step()
    with pytest.raises(SpecError, match="cannot open 'elsewhere.reports'"):
        release(scene, checkpoint_location="elsewhere")
    folder = Path(f"{scene.checkpoint}.reports")
    folder.mkdir(exist_ok=True)
    (folder / OTHER).write_text("a file where a folder should be")
    with pytest.raises(StorageUnavailableError):
        release(scene)
    assert release(scene, checkpoint_location="elsewhere", proven_dead=True).changed


def test_a_released_owner_may_live_on_while_its_checkpoint_is_replaced(
    scene: Scene, tmp_path: Path
) -> None:
    driver = CheckpointDriver(scene, process=HERE, launch_id=OWNER)
    driver.step()
    assert driver.committer.release()
    new = tmp_path / "new"
    new.mkdir()
    (new / "metadata").write_text('{"id": "new"}')
    port = scene.world.open()
    assert resolve_checkpoint(port, QUERY, str(new), by="anna", dry_run=True).writes
    scene.beat(OTHER, HERE)
    with pytest.raises(DriverAliveError, match=f"launch {OTHER}"):
        resolve_checkpoint(port, QUERY, str(new), by="anna", dry_run=True)
