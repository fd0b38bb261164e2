"""The newest epochs in a driver's heartbeat, and beside the dataset's history, with real Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.epochs import read_epochs
from airflow_provider_lance.diagnostics.status import take_status
from airflow_provider_lance.diagnostics.trend import query_trend
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.run_metrics import EpochHistory, EpochReport
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import (
    new_launch_id,
    read_heartbeat,
    report_location,
)
from tests.support.processes import wait_for
from tests.support.sparkstream import Stream, orders, spec


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    for n in range(3):
        stream.add(orders(n * 20, 20))
    return stream


def launch(stream: Stream, launch_id: str, **changes: Any) -> list[dict[str, Any]]:
    summary = run(stream.spark, JobSpec.parse(spec(stream, launch_id, **changes)))
    assert summary.error is None
    heartbeat = read_heartbeat(open_files(report_location(stream.checkpoint)), launch_id)
    assert heartbeat is not None
    recent: list[dict[str, Any]] = heartbeat["recent"]
    return recent


def test_a_heartbeat_tells_what_the_newest_epochs_took(stream: Stream) -> None:
    recent = launch(stream, "launch")  # faster than it looks: it sees three epochs at once
    assert [each["epoch"] for each in recent] == [0, 1, 2]
    for each, stamp in zip(recent, stream.epochs(), strict=True):
        assert (each["rows"], each["fragments"]) == (20, 1)
        assert each["at"] >= stamp.committed_at
        assert each["version"] >= stamp.version
        assert 0 < each["commitMs"] < each["batchMs"]
        assert 0 < each["writeMs"] < each["batchMs"]


def test_the_table_of_epochs_shows_sparks_progress_beside_the_datasets_history(
    stream: Stream,
) -> None:
    recent = launch(stream, "20260101T000000000Z-00000001")
    stream.forget_last_commit()
    stream.dataset.optimize.compact_files()
    stream.add(orders(60, 20))
    launch(stream, "20260101T000001000Z-00000002")  # replays epoch 2, then commits epoch 3

    table = read_epochs(open_dataset(stream.uri), "q")
    assert [row.epoch for row in table.rows] == [3, 2, 1, 0]
    newest, *older = table.rows
    assert [stamp.version for stamp in stream.epochs()] == [row.version for row in table.rows[::-1]]
    assert [row.batch_ms for row in older] == [each["batchMs"] for each in recent[::-1]]
    assert [row.write_ms for row in older] == [each["writeMs"] for each in recent[::-1]]
    assert [row.commit_ms for row in older] == [each["commitMs"] for each in recent[::-1]]
    assert [row.spark_committed for row in table.rows] == [True] * 4
    assert len({row.run_id for row in table.rows}) == 2
    for row, before in zip(table.rows, table.rows[1:], strict=False):
        assert row.start_offsets == before.end_offsets != row.end_offsets
    assert [json.loads(row.end_offsets[0]) for row in older if row.end_offsets] == [
        {"logOffset": 2},
        {"logOffset": 1},
        {"logOffset": 0},
    ]
    assert table.rows[-1].start_offsets == ("-",)
    (mark,) = table.marks
    assert (mark.kind, mark.at) == ("compaction", older[0].committed_at)
    assert older[0].version < mark.version < newest.version
    assert (table.gap, table.puzzle) == (False, "")


def test_an_epoch_that_spark_has_not_logged_is_told_from_one_it_forgot(stream: Stream) -> None:
    stream.run(createIfMissing=True)
    last = stream.forget_last_commit()
    Path(stream.checkpoint, "commits", "0").unlink()
    Path(stream.checkpoint, "offsets", "0").unlink()
    table = read_epochs(open_dataset(stream.uri), "q")
    assert {row.epoch: row.spark_committed for row in table.rows} == {last: False, 1: True, 0: None}
    assert [row.start_offsets is None for row in table.rows] == [False, True, True]
    assert [row.end_offsets is None for row in table.rows] == [False, False, True]


def test_triggers_that_end_between_two_heartbeats_are_read_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[int] = []
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .load()
        .writeStream.foreachBatch(lambda df, epoch_id: seen.append(epoch_id))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    recent = EpochHistory()
    try:
        wait_for("twelve triggers", lambda: len(seen) >= 12)
    finally:
        query.stop()
    reports = [EpochReport(epoch, Decision.FULL_COMMIT, rows=1) for epoch in range(10)]
    for report in reports:
        recent.add(report)
    last: Any = query.lastProgress
    recent.join(query, json.loads(last.json))
    assert len([each for each in recent.to_json() if each["batchMs"] > 0]) == 10


def test_reports_say_how_far_the_sources_are_behind_also_after_the_end(stream: Stream) -> None:
    launch_id = new_launch_id()
    recent = launch(stream, launch_id)
    assert [each["read"] for each in recent] == [20, 20, 20]
    trend = query_trend(stream.checkpoint, "q")
    assert {each.launch_id for each in trend} == {launch_id}
    assert query_trend(stream.checkpoint, "another") == ()
    for n in range(3, 5):
        stream.add(orders(n * 20, 20))
    status = take_status(open_dataset(stream.uri), "q", detail=True)
    assert (status.rows_behind, status.behind_files) == (2.0, True)
    assert re.fullmatch(r"finished: .*, 2 files \([^)]+\) not read", status.sentence)
    said = [each.what for each in status.changes if each.launch_id]
    assert {"a driver was launched", "its driver finished", "its driver released it"} <= {*said}
    launch(stream, new_launch_id())
    assert take_status(open_dataset(stream.uri), "q", detail=True).rows_behind == 0.0


def test_a_lance_source_says_how_far_behind_it_is_while_it_runs_and_after(stream: Stream) -> None:
    path = str(stream.root / "from.lance")
    for n in range(4):
        table = pa.table({"id": range(n * 10, n * 10 + 10)})
        lance.write_dataset(table, path, mode="append" if n else "create")
    options = {"path": path, "startingVersion": "1", "maxRowsPerTrigger": "10"}
    launch_id = new_launch_id()
    recent = launch(stream, launch_id, source={"format": "lance", "options": options})
    assert [each["read"] for each in recent] == [10, 10, 10, 10]
    assert [each["behind"] for each in recent] == [30.0, 20.0, 10.0, 0.0]
    *_, last = query_trend(stream.checkpoint, "q")
    assert (last.files, last.launch_id) == (False, launch_id)
    lance.write_dataset(pa.table({"id": range(7)}), path, mode="append")
    status = take_status(open_dataset(stream.uri), "q", detail=True)
    assert (status.rows_behind, status.versions_behind, status.behind_files) == (7, 1, False)
    assert re.fullmatch(r"finished: .*, 7 \(1 version(, \d+ s)?\) not read", status.sentence)
