"""Real drivers, killed by SIGKILL: what a check says of them, and that a repair leaves no trace."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.findings import Code, Repair, Severity
from airflow_provider_lance.exceptions import HistoryGapError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.repair.actions import (
    fold_watermark,
    release_owner,
    resolve_gap,
)
from tests.support.maintenance import numbers
from tests.support.processes import finish
from tests.support.recovery import ROWS, Scene, codes, expect_clean, finding

EPOCHS = 4
Killed = tuple[Scene, Callable[[], None]]


@pytest.fixture(scope="module")
def killed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[Failpoint, Killed]:
    """Kill two drivers at epoch 2: one after its commit and one before, its data written."""
    scenes, drivers = {}, []
    for step in (Failpoint.COMMIT_LANDED, Failpoint.COMMIT_CHECKED):
        scene = Scene(spark, tmp_path_factory.mktemp(step.name) / "stream", EPOCHS)
        drivers.append(scene.start("kill", step, 3))
        scenes[step] = scene
    for driver in drivers:
        status, output = finish(driver)
        assert status == -signal.SIGKILL, output
    return {step: (scene, scene.keep()) for step, scene in scenes.items()}


@pytest.fixture
def landed(killed: dict[Failpoint, Killed]) -> Scene:
    """Return the stream whose driver died between the commit of epoch 2 and Spark's note of it."""
    scene, put_back = killed[Failpoint.COMMIT_LANDED]
    put_back()
    return scene


@pytest.fixture
def planned(killed: dict[Failpoint, Killed]) -> Scene:
    """Return the stream whose driver died just before it committed epoch 2."""
    scene, put_back = killed[Failpoint.COMMIT_CHECKED]
    put_back()
    return scene


def expect_to_go_on(scene: Scene) -> None:
    """Assert that a start, after all that was done, gives each row once and a clean check."""
    summary = scene.launch()
    assert summary.error is None, summary.message
    scene.expect_exactly_once()
    expect_clean(scene.check())


def test_a_driver_that_died_after_a_commit(landed: Scene) -> None:
    report = landed.check()
    assert codes(report) == [Code.DRIVER_GONE, Code.WATERMARK_BEHIND]
    gone = finding(report, Code.DRIVER_GONE)
    assert gone.repair is Repair.OWNER
    assert gone.command == f"lance-stream release {landed.uri} q --for-good --yes"
    assert gone.evidence["alive"] is False
    behind = finding(report, Code.WATERMARK_BEHIND)
    assert (behind.severity, behind.repair) == (Severity.WARNING, Repair.WATERMARK)
    assert behind.evidence["configWatermark"] == -1
    assert [epoch for epoch, _ in behind.evidence["epochs"]] == [0, 1, 2]
    skip = finding(report, Code.EPOCH_TO_SKIP)
    assert (skip.evidence["committed"], skip.evidence["planned"]) == (1, 2)
    assert skip.evidence["epochVersion"] == landed.stream.epochs()[-1].version
    (status,) = report.statuses
    assert (status.state, status.healthy, status.watermark) == ("dead", False, 2)
    assert status.sentence.startswith("dead: ")


def test_fold_repairs_only_the_watermark(landed: Scene) -> None:
    assert fold_watermark(open_dataset(landed.uri), "q").changed
    assert codes(landed.check()) == [Code.DRIVER_GONE]
    expect_to_go_on(landed)


def test_release_repairs_owner_and_watermark(landed: Scene) -> None:
    assert release_owner(open_dataset(landed.uri), "q", by="a test").changed
    report = landed.check()
    assert codes(report) == [Code.DRIVER_GONE], "a release starts no driver"
    assert finding(report, Code.DRIVER_GONE).summary.startswith("Nobody runs query q: released by")
    assert report.statuses[0].state == "dead"
    assert finding(report, Code.EPOCH_TO_SKIP).severity is Severity.INFO
    expect_to_go_on(landed)


def test_a_driver_that_died_before_a_commit(planned: Scene) -> None:
    report = planned.check()
    assert codes(report) == [Code.DRIVER_GONE, Code.WATERMARK_BEHIND]
    flight = finding(report, Code.EPOCH_IN_FLIGHT)
    assert (flight.evidence["planned"], flight.evidence["watermark"]) == (2, 1)
    assert flight.evidence["plannedAt"]
    assert report.statuses[0].in_flight == 2
    release_owner(open_dataset(planned.uri), "q", by="a test", for_good=True)
    expect_clean(planned.check())
    assert planned.check().statuses[0].state == "stopped"
    expect_to_go_on(planned)


def test_a_driver_that_died_before_a_commit_leaves_a_file(planned: Scene) -> None:
    assert Code.ORPHANED_FILES not in codes(planned.check(), Severity.INFO), "a commit may come"
    long_ago = time.time() - 3600
    for file in Path(planned.uri, "data").iterdir():
        os.utime(file, (long_ago, long_ago))
    orphans = finding(planned.check(), Code.ORPHANED_FILES)
    (fragment,) = lance.dataset(planned.uri).get_fragments()[:1]
    assert orphans.evidence["files"] == 1
    assert orphans.evidence["bytes"] == fragment.metadata.files[0].file_size_bytes
    assert orphans.severity is Severity.INFO
    expect_to_go_on(planned)


def clean_up_all_but_the_newest(scene: Scene) -> None:
    """Remove old versions as a tool that knows nothing of streams does."""
    lance.write_dataset(lance.dataset(scene.uri).to_table().slice(0, 0), scene.uri, mode="append")
    lance.dataset(scene.uri).cleanup_old_versions(versions=numbers(scene.uri)[:-1])


@pytest.mark.parametrize("where", ["landed", "planned"])
def test_check_reports_a_history_gap_after_a_foreign_cleanup(
    where: str, request: pytest.FixtureRequest
) -> None:
    scene: Scene = request.getfixturevalue(where)
    rows = lance.dataset(scene.uri).count_rows()
    there = rows == 3 * ROWS
    assert there is (where == "landed")
    clean_up_all_but_the_newest(scene)
    report = scene.check()
    assert set(codes(report)) == {Code.HISTORY_GAP, Code.DRIVER_GONE}
    gap = finding(report, Code.HISTORY_GAP)
    assert gap.evidence["inDoubt"] == 2
    assert gap.evidence["missingVersions"] == list(range(2, lance.dataset(scene.uri).version))
    folded = gap.evidence["foldedVersion"]
    assert gap.command == (
        f"lance-stream resolve gap {scene.uri} q --epoch 2 --after-version {folded}"
        " --committed --yes"
    )
    refused = scene.launch()
    assert refused.error == "HistoryGapError"
    resolve_gap(open_dataset(scene.uri), "q", 2, there, by="a test")
    assert codes(scene.check()) == [Code.DRIVER_GONE]
    expect_to_go_on(scene)


def test_a_cleanup_took_evidence_that_spark_has_too(landed: Scene) -> None:
    clean_up_all_but_the_newest(landed)
    (landed.checkpoint / "commits" / "2").write_bytes(
        (landed.checkpoint / "commits" / "1").read_bytes()
    )
    report = landed.check()
    # It landed, and one of the missing versions may have restored an older one since.
    assert set(codes(report)) == {Code.HISTORY_GAP, Code.DRIVER_GONE}
    assert finding(report, Code.HISTORY_GAP).evidence["inDoubt"] == 2
    with pytest.raises(HistoryGapError, match="resolve gap"):
        release_owner(open_dataset(landed.uri), "q", by="a test")
    resolve_gap(open_dataset(landed.uri), "q", 2, True, by="a test")
    assert codes(landed.check()) == [Code.DRIVER_GONE]
    expect_to_go_on(landed)
