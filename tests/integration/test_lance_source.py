"""Real streaming queries that read a Lance dataset: every row once, whatever ends the query."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.lance_stream import BUSY, Epochs, descendants, read
from tests.support.processes import wait_for
from tests.support.reading import numbers
from tests.support.sparkstream import Stream

FEED = {"readChangeFeed": "true"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a dataset of ten rows with stable row ids."""
    made = tmp_path / "source.lance"
    lance.write_dataset(numbers(0, 10), made, enable_stable_row_ids=True)
    return made


def append(path: Path, first: int, last: int) -> None:
    lance.write_dataset(numbers(first, last), path, mode="append")


def keys(table: pa.Table) -> list[int]:
    return sorted(table["k"].to_pylist())


def die(epoch: int) -> None:
    raise RuntimeError("killed")


# ----------------------------------------------------------------------------------- exactly once


@pytest.mark.parametrize(
    ("options", "killed", "first"),
    [({}, 0, 0), ({}, 1, 10), ({"startingVersion": "latest"}, 0, 0), (FEED, 1, 10)],
)
def test_a_query_killed_in_its_first_epochs_repeats_them_although_the_dataset_moved_on(
    spark: SparkSession,
    path: Path,
    tmp_path: Path,
    options: dict[str, str],
    killed: int,
    first: int,
) -> None:
    def die(epoch: int) -> None:
        if epoch == killed:
            raise RuntimeError("killed")

    epochs = Epochs(read(spark, path, **options), tmp_path / "checkpoint", before=die)
    with pytest.raises(StreamingQueryException, match="killed"):
        epochs.run()
    append(path, 10, 15)
    epochs.before = lambda epoch: None
    assert keys(epochs.run()) == list(range(10 if "startingVersion" in options else 0, 15))
    [one, two] = [table for epoch, table in epochs.attempts if epoch == killed]
    assert one.num_rows == first
    assert one == two


def test_a_commit_during_the_start_is_neither_lost_nor_doubled(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    """Spark asks a source again and again where a query begins, until an epoch is committed."""
    for number in range(3):
        epochs = Epochs(read(spark, path), tmp_path / f"checkpoint-{number}", BUSY)
        query = epochs.start()
        try:
            first = lance.dataset(path).count_rows()
            while not epochs.rows().num_rows:
                last = lance.dataset(path).count_rows()
                append(path, last, last + 1)
                time.sleep(0.02)
            epochs.wait(last + 1, query)
        finally:
            query.stop()
        assert last > first
        assert keys(epochs.rows()) == list(range(last + 1))


def test_a_replay_after_updates_compaction_and_cleanup_reads_the_same_rows(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    epochs = Epochs(read(spark, path, **FEED), tmp_path / "checkpoint")
    epochs.run()
    append(path, 10, 15)
    lance.dataset(path).update({"v": "-1"}, "k < 3")
    lance.dataset(path).delete("k = 12")
    epochs.before = die
    with pytest.raises(StreamingQueryException, match="killed"):
        epochs.run()
    lance.dataset(path).create_scalar_index("k", "BTREE")
    lance.dataset(path).optimize.compact_files()
    lance.dataset(path).update({"v": "-2"}, "true")
    # What was committed is not needed any more; version 1 is where the epoch begins.
    newest = lance.dataset(path).version
    lance.dataset(path).cleanup_old_versions(versions=[newest - 1])
    with pytest.raises(StreamingQueryException, match="killed"):
        epochs.run()
    [one, two] = [table for epoch, table in epochs.attempts if epoch == 2]
    assert one.num_rows == 5 + 6 + 1
    order = [(name, "ascending") for name in one.column_names]
    assert one.sort_by(order) == two.sort_by(order)


def test_rows_arrive_once_in_a_second_dataset_whose_driver_dies_at_every_epoch(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    for number in range(4):
        stream.run(read(spark, path, maxRowsPerTrigger="3"), createIfMissing=True)
        assert sorted(stream.table()["k"].to_pylist()) == list(range(10 + 5 * number))
        stream.forget_last_commit()  # as a crash between the dataset's commit and Spark's would
        first = 10 + 5 * number
        append(path, first, first + 5)
        lance.dataset(path).optimize.compact_files()
    stream.run(read(spark, path, maxRowsPerTrigger="3"))
    assert sorted(stream.table()["k"].to_pylist()) == list(range(30))
    epochs = [each.epoch_id for each in stream.epochs()]
    assert epochs == sorted(set(epochs))


def test_a_change_feed_applied_by_merge_keys_gives_the_same_table(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    options = {
        "outputMode": "update",
        "mergeKeys": "k",
        "deleteWhen": "_change_type = 'delete'",
        "createIfMissing": True,
    }

    def run() -> None:
        one = read(spark, path, maxVersionsPerTrigger="1", **FEED)
        stream.run(one.where("_change_type <> 'update_preimage'"), **options)

    run()
    dataset = lance.dataset(path)
    dataset.update({"v": "v + 100"}, "k in (1, 4, 7)")
    dataset.delete("k = 4")
    dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(
        pa.table({"k": [7, 20, 21], "v": [-7, 20, 21]})
    )
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    run()
    found = stream.dataset.to_table(columns=["k", "v"]).sort_by("k")
    assert found.to_pydict() == lance.dataset(path).to_table().sort_by("k").to_pydict()


# ------------------------------------------------------------------------------ limits, triggers


def test_no_epoch_has_more_rows_than_allowed_not_even_of_the_first_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "large.lance"
    lance.write_dataset(numbers(0, 25_000), path)
    epochs = Epochs(read(spark, path, maxRowsPerTrigger="10000"), tmp_path / "checkpoint")
    assert keys(epochs.run()) == list(range(25_000))
    assert [table.num_rows for table in epochs.tables.values()] == [0, 10_000, 10_000, 5_000]


def test_available_now_ends_at_the_version_that_it_found(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    append(path, 10, 12)

    def write_on(epoch: int) -> None:
        append(path, 100 + epoch, 101 + epoch)

    read_first = read(spark, path, maxRowsPerTrigger="4", startingVersion="1")
    epochs = Epochs(read_first, tmp_path / "checkpoint", before=write_on)
    assert keys(epochs.run()) == list(range(12))
    assert epochs.offsets()[-1]["version"] == 2
    epochs.before = lambda epoch: None
    assert keys(epochs.run()) == [*range(12), *(100 + epoch for epoch in range(4))]


def test_a_running_query_follows_the_dataset_and_starts_no_python_for_each_epoch(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    epochs = Epochs(read(spark, path), tmp_path / "checkpoint", BUSY)
    jvm: Any = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    query = epochs.start()
    try:
        epochs.wait(10, query)
        seen: set[int] = set()
        started = []
        for number in range(5):
            before = descendants(jvm)
            append(path, 10 + number, 11 + number)
            epochs.wait(11 + number, query)
            after = descendants(jvm)
            started.append(len(after - before - seen))
            seen |= after
        progress = query.lastProgress
    finally:
        query.stop()
    assert max(started) <= 1, started
    assert keys(epochs.rows()) == list(range(15))
    assert progress is not None


def test_progress_says_how_far_behind_the_query_is(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    append(path, 10, 14)
    epochs = Epochs(
        read(spark, path, maxRowsPerTrigger="2", startingVersion="1"), tmp_path / "checkpoint"
    )
    query = epochs.start()
    query.awaitTermination()
    behind = [json.loads(each["sources"][0]["latestOffset"]) for each in query.recentProgress]
    left = [each["rowsBehind"] for each in behind]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert behind[-1]["versionsBehind"] == 0


def test_an_empty_dataset_is_read_when_it_gets_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "empty.lance"
    lance.write_dataset(numbers(0, 0), path)
    epochs = Epochs(read(spark, path), tmp_path / "checkpoint")
    assert epochs.run().num_rows == 0
    append(path, 0, 2)
    assert keys(epochs.run()) == [0, 1]


def test_two_queries_read_one_dataset_independently(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    one = Epochs(read(spark, path, maxRowsPerTrigger="3"), tmp_path / "one", BUSY)
    two = Epochs(read(spark, path, columns="k"), tmp_path / "two", BUSY)
    queries = [one.start(), two.start()]
    try:
        append(path, 10, 14)
        for epochs, query in zip((one, two), queries, strict=True):
            epochs.wait(14, query)
    finally:
        for query in queries:
            query.stop()
    assert Counter(keys(one.rows())) == Counter(keys(two.rows())) == Counter(range(14))
    assert two.rows().column_names == ["k"]


def test_a_query_stopped_between_two_epochs_goes_on_where_it_was(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    epochs = Epochs(read(spark, path, maxRowsPerTrigger="1"), tmp_path / "checkpoint", BUSY)
    for rows in (2, 5, 8):
        query = epochs.start()
        epochs.wait(rows, query)
        query.stop()
        wait_for("the end", lambda query=query: not query.isActive)
    epochs.trigger = {"availableNow": True}
    assert keys(epochs.run()) == list(range(10))
