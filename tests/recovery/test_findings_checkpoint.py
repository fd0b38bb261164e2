"""Real checkpoints and datasets that do not belong together any more, and how they are mended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.exceptions import PreconditionError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.repair.actions import resolve_checkpoint
from tests.support.recovery import Scene, codes, expect_clean, finding
from tests.support.sparkstream import ORDERS

Kept = tuple[Scene, Callable[[], None], Path]


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Run two launches of two epochs each, and keep a copy of all after the first."""
    root = tmp_path_factory.mktemp("checkpoint")
    scene, older = Scene(spark, root / "stream", 2), root / "older"
    scene.launch()
    shutil.copytree(scene.stream.root, older)
    scene.add(2)
    scene.launch()
    return scene, scene.keep(), older


@pytest.fixture
def older(kept: Kept) -> Path:
    """Return where the copy lies."""
    return kept[2]


@pytest.fixture
def scene(kept: Kept) -> Scene:
    """Return the stream after its two launches."""
    kept[1]()
    return kept[0]


def replace_by(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


def expect_to_go_on(scene: Scene) -> None:
    scene.add()
    summary = scene.launch()
    assert summary.error is None, summary.message
    scene.expect_exactly_once()
    expect_clean(scene.check())


def test_check_of_a_healthy_stream_is_clean(scene: Scene) -> None:
    report = scene.check()
    expect_clean(report)
    assert [finding.code for finding in report.findings] == [Code.HEALTHY]
    (status,) = report.statuses
    assert status.state == "finished"
    assert (status.watermark, status.rows, status.fragments) == (3, 160, 4)
    assert status.sentence.startswith("finished: ")
    assert "watermark 3, " in status.sentence


def test_the_checkpoint_is_missing(scene: Scene, kept: Kept) -> None:
    shutil.rmtree(scene.checkpoint)
    report = scene.check()
    assert codes(report) == [Code.CHECKPOINT_MISSING]
    missing = finding(report, Code.CHECKPOINT_MISSING)
    assert missing.evidence["recordedLocation"] == str(scene.checkpoint)
    assert missing.evidence["watermark"] == 3
    assert scene.launch().error == "CheckpointMismatchError"
    assert Code.QUERY_FAILED in codes(scene.check())
    kept[1]()  # from a copy
    expect_to_go_on(scene)


def test_the_checkpoint_is_of_another_query(scene: Scene, kept: Kept) -> None:
    other = scene.checkpoint.with_name("other")
    uri = str(other.with_name("other.lance"))
    scene.launch(uri=uri, queryId="other", checkpointLocation=str(other))
    replace_by(other, scene.checkpoint)
    report = scene.check()
    assert codes(report) == [Code.CHECKPOINT_FOREIGN]
    foreign = finding(report, Code.CHECKPOINT_FOREIGN)
    assert foreign.evidence["checkpointId"] != foreign.evidence["recordedId"]
    with pytest.raises(PreconditionError, match="belongs to query 'other'"):
        resolve_checkpoint(open_dataset(scene.uri), "q", str(scene.checkpoint), by="a test")
    kept[1]()
    expect_clean(scene.check())
    expect_to_go_on(scene)


def test_the_checkpoint_is_an_older_copy(scene: Scene, older: Path, kept: Kept) -> None:
    replace_by(older / "checkpoint", scene.checkpoint)
    report = scene.check()
    assert codes(report) == [Code.CHECKPOINT_OLDER]
    found = finding(report, Code.CHECKPOINT_OLDER)
    assert found.severity is Severity.CRITICAL
    assert (found.evidence["watermark"], found.evidence["planned"]) == (3, 1)
    scene.add()
    assert scene.launch().error == "CheckpointMismatchError"
    kept[1]()
    expect_to_go_on(scene)


def test_the_dataset_is_an_older_copy(scene: Scene, older: Path, kept: Kept) -> None:
    replace_by(older / "table.lance", Path(scene.uri))
    report = scene.check()
    assert codes(report) == [Code.COMMIT_LOG_AHEAD]
    lost = finding(report, Code.COMMIT_LOG_AHEAD)
    assert lost.severity is Severity.CRITICAL
    assert (lost.evidence["saidEpoch"], lost.evidence["foundEpoch"]) == (3, 1)
    assert lost.evidence["saidVersion"] > lost.evidence["version"]
    kept[1]()
    expect_to_go_on(scene)


def test_the_dataset_went_on_after_an_older_copy_was_put_back(scene: Scene, older: Path) -> None:
    """Nobody looked: the next driver found nothing wrong, and rows are missing."""
    replace_by(older / "table.lance", Path(scene.uri))
    for _ in range(4):
        scene.add()
    assert scene.launch().error is None
    ids = lance.dataset(scene.uri).to_table().column("id").to_pylist()
    assert len(ids) == 160 + 160 - 80, "two epochs are lost"
    report = scene.check()
    assert codes(report) == [Code.COMMIT_LOG_AHEAD]
    lost = finding(report, Code.COMMIT_LOG_AHEAD)
    assert (lost.evidence["saidEpoch"], lost.evidence["foundEpoch"]) == (3, 1)


def test_an_older_version_was_brought_back(scene: Scene, kept: Kept) -> None:
    epochs = scene.stream.epochs()
    released = epochs[2].version - 2  # before the second launch's claim
    lance.dataset(scene.uri).checkout_version(released).restore()
    report = scene.check()
    assert codes(report) == [Code.COMMIT_LOG_AHEAD]
    lost = finding(report, Code.COMMIT_LOG_AHEAD)
    assert lost.evidence["epochs"] == [[each.epoch_id, each.version] for each in epochs[2:]]
    kept[1]()
    expect_to_go_on(scene)


def test_check_after_the_dataset_was_recreated(scene: Scene, kept: Kept) -> None:
    shutil.rmtree(scene.uri)
    scene.stream.create(ORDERS)
    assert codes(scene.check(), Severity.INFO) == []
    report = scene.check(query_ids=["q"], checkpoint_location=str(scene.checkpoint))
    assert codes(report) == [Code.COMMIT_LOG_AHEAD]
    lost = finding(report, Code.COMMIT_LOG_AHEAD)
    assert (lost.evidence["committed"], lost.evidence["watermark"]) == (3, -1)
    assert lost.evidence["driversWroteTo"] == [scene.uri]
    kept[1]()
    expect_to_go_on(scene)


@pytest.mark.parametrize("jump", [4, 99])
def test_the_watermark_jumped(scene: Scene, jump: int) -> None:
    scene.configure(lastEpoch=str(jump))
    report = scene.check()
    assert codes(report) == [Code.WATERMARK_JUMPED]
    jumped = finding(report, Code.WATERMARK_JUMPED)
    assert jumped.severity is Severity.CRITICAL
    assert (jumped.evidence["saidEpoch"], jumped.evidence["foundEpoch"]) == (jump, 3)
    scene.configure(lastEpoch="3")
    expect_to_go_on(scene)


def test_the_checkpoint_is_on_a_store_that_cannot_be_served(scene: Scene) -> None:
    report = scene.check(checkpoint_location="wasb://box/checkpoint")
    assert codes(report) == [Code.CHECKPOINT_UNREADABLE]
    unreadable = finding(report, Code.CHECKPOINT_UNREADABLE)
    assert unreadable.severity is Severity.WARNING
    assert "wasb" in unreadable.evidence["reason"]
    assert report.statuses[0].watermark == 3
    expect_clean(scene.check())


def test_the_checkpoint_is_broken(scene: Scene, kept: Kept) -> None:
    (scene.checkpoint / "metadata").write_text("{}")
    report = scene.check()
    assert codes(report) == [Code.CHECKPOINT_UNREADABLE]
    assert finding(report, Code.CHECKPOINT_UNREADABLE).severity is Severity.ERROR
    kept[1]()
    expect_clean(scene.check())


def test_a_start_that_is_refused(scene: Scene) -> None:
    assert scene.launch(outputMode="update", mergeKeys=["nope"]).error == "SchemaMismatchError"
    report = scene.check()
    assert codes(report) == [Code.QUERY_FAILED]
    failed = finding(report, Code.QUERY_FAILED)
    assert failed.evidence["terminal"] is True
    assert "nope" in failed.summary
    assert report.statuses[0].state == "failed"
    expect_to_go_on(scene)


def test_other_protocols_beside_a_stream_that_is_well(scene: Scene) -> None:
    newer = {"protocol": 99, "token": 1, "state": "active", "generation": 0, "time": "x"}
    keys = {
        "spark.lance.streaming.owner.newer": json.dumps(newer),
        "spark.lance.streaming.lastEpoch.stock": "7",
    }
    open_dataset(scene.uri).commit(Configure(dict(keys)))
    report = scene.check()
    assert codes(report) == [Code.PROTOCOL_NEWER, Code.PROTOCOL_NEWER]
    found = report.at_or_above(Severity.ERROR)
    assert {each.query_id for each in found} == {"newer", "stock"}
    assert [each.query_id for each in report.statuses if each.healthy] == ["q"]
    open_dataset(scene.uri).commit(Configure(dict.fromkeys(keys)))
    expect_clean(scene.check())
