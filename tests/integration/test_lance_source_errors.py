"""Mistakes of a query that reads a Lance dataset: through Spark, each a named error of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.spark.failures import named_failure
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from tests.support.lance_stream import Epochs, read
from tests.support.reading import numbers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a dataset of ten rows without stable row ids."""
    made = tmp_path / "source.lance"
    lance.write_dataset(numbers(0, 10), made)
    return made


def append(path: Path, first: int, last: int) -> None:
    lance.write_dataset(numbers(first, last), path, mode="append")


def job(path: object, root: Path, **options: str) -> JobSpec:
    """Return a job that copies a dataset into a second one."""
    given = {name: each for name, each in options.items() if name != "uri"}
    return JobSpec.parse(
        {
            "launchId": "launch",
            "trigger": "availableNow",
            "source": {"format": "lance", "options": {"path": str(path), **given}},
            "sink": {
                "uri": options.get("uri", str(root / "table.lance")),
                "queryId": "q",
                "checkpointLocation": str(root / "checkpoint"),
                "createIfMissing": True,
            },
        }
    )


def failed(spark: SparkSession, spec: JobSpec) -> Summary:
    summary = run(spark, spec)
    assert summary.reason is EndReason.FAILED, summary
    return summary


def refused(start: Callable[[], Any]) -> LanceStreamError:
    """Return the error of ours that Spark's error means."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's errors have many types
        start()
    found = named_failure(caught.value)
    assert found is not None, str(caught.value)[:3_000]
    return found


MISTAKES: dict[str, tuple[dict[str, str], str, str]] = {
    "no row ids": (
        {"readChangeFeed": "true"},
        "SpecError",
        "readChangeFeed=true needs stable row ids, and {path} was created without them",
    ),
    "future": ({"startingVersion": "9"}, "SpecError", "startingVersion=9 is in the future"),
    "future time": (
        {"startingTimestamp": "2999-01-01"},
        "SpecError",
        "startingTimestamp=2999-01-01 00:00:00+00:00 is in the future",
    ),
    "gone": ({"startingVersion": "1"}, "SourceDataLossError", "version 1 of {path} was cleaned up"),
    "gone time": (
        {"startingTimestamp": "2020-01-01"},
        "SourceDataLossError",
        "before the oldest version of {path} that was not cleaned up, 2",
    ),
    "column": ({"columns": "k,nope"}, "SpecError", "names ['nope'], and {path} has ['k', 'v']"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_the_job_with_its_name_and_the_values(
    spark: SparkSession, path: Path, tmp_path: Path, mistake: str
) -> None:
    options, error, message = MISTAKES[mistake]
    append(path, 10, 12)
    lance.dataset(path).cleanup_old_versions(versions=[1])
    summary = failed(spark, job(path, tmp_path, **options))
    assert summary.error == error, summary.message
    assert message.format(path=path) in str(summary.message)


def test_a_path_without_a_dataset_is_named(spark: SparkSession, tmp_path: Path) -> None:
    summary = failed(spark, job(tmp_path / "nothing.lance", tmp_path))
    assert (summary.error, summary.rows) == ("DatasetNotFoundError", 0)
    assert f"no Lance dataset at {tmp_path / 'nothing.lance'}" in str(summary.message)
    error = refused(lambda: read(spark, tmp_path / "nothing.lance"))
    assert type(error).__name__ == "DatasetNotFoundError"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxRows": "3"}, "maxRows"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "not both; got 1 and 2026"),
        ({"readChangeFeed": "true", "ignoreDeletes": "true"}, "give one of them"),
        ({"readChangeFeed": "maybe"}, "readChangeFeed"),
    ],
)
def test_wrong_options_are_refused_before_a_query_starts(
    spark: SparkSession, path: Path, options: dict[str, str], said: str
) -> None:
    error = refused(lambda: read(spark, path, **options))
    assert type(error).__name__ == "SpecError"
    assert said in str(error)


def test_a_schema_of_the_user_is_refused(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    read(spark, path)  # registers the source

    def start() -> None:
        df = spark.readStream.schema("k BIGINT").format("lance").load(str(path))
        Epochs(df, tmp_path / "checkpoint").run()

    error = refused(start)
    assert type(error).__name__ == "SpecError"
    assert "the query gives the schema struct<k:bigint>" in str(error)
    assert "struct<k:bigint,v:bigint>" in str(error)


def test_columns_of_the_feed_in_the_dataset_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "feed.lance"
    rows = pa.table({"k": [1], "_change_type": ["insert"]})
    lance.write_dataset(rows, path, enable_stable_row_ids=True)
    error = refused(lambda: read(spark, path, readChangeFeed="true"))
    assert "has columns ['_change_type'], which readChangeFeed=true adds" in str(error)
    chosen = read(spark, path, readChangeFeed="true", columns="k")
    assert Epochs(chosen, tmp_path / "checkpoint").run().num_rows == 1
    assert Epochs(read(spark, path), tmp_path / "plain").run().to_pylist() == rows.to_pylist()


def test_a_job_may_not_read_the_dataset_that_it_writes(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    with pytest.raises(LanceStreamError, match="source") as caught:
        failed(spark, job(path, tmp_path, uri=str(path)))
    assert str(path) in str(caught.value)
    assert lance.dataset(path).version == 1


CHANGES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "delete": (
        lambda path: lance.dataset(path).delete("k = 1"),
        "SourceChangedError",
        "version {next} of {path} deletes rows (Delete), and the stream reads appended rows. "
        "Choose: ignoreDeletes=true",
    ),
    "overwrite": (
        lambda path: lance.write_dataset(numbers(0, 1), path, mode="overwrite"),
        "SourceChangedError",
        "version {next} of {path} overwrites all rows (Overwrite)",
    ),
    "recreated": (
        lambda path: (shutil.rmtree(path), lance.write_dataset(numbers(0, 3), path)),
        "DatasetRestoredError",
        "the dataset at {path} is not the one that this query has read: version 1 was committed",
    ),
    "dropped": (shutil.rmtree, "DatasetNotFoundError", "no Lance dataset at {path}"),
    "restored": (
        lambda path: (append(path, 10, 11), lance.dataset(path, version=1).restore()),
        "DatasetRestoredError",
        "version {after} of {path} restores an older version (Restore)",
    ),
    "cleaned up": (
        lambda path: (
            append(path, 10, 11),
            lance.dataset(path).cleanup_old_versions(versions=[1]),
        ),
        "SourceDataLossError",
        "version 1 of {path} was cleaned up, and the query's position, version 1, needs it",
    ),
    "no file": (
        lambda path: (append(path, 10, 11), [each.unlink() for each in (path / "data").iterdir()]),
        "SourceDataLossError",
        "version {next} of {path} lacks a file of its fragment 1",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_happens_to_the_dataset_between_two_runs_ends_the_job_with_its_name(
    spark: SparkSession, path: Path, tmp_path: Path, change: str
) -> None:
    assert run(spark, job(path, tmp_path)).reason is EndReason.FINISHED
    happens, error, message = CHANGES[change]
    following = lance.dataset(path).version + 1  # the query left its position
    happens(path)
    summary = failed(spark, job(path, tmp_path))
    assert summary.error == error, summary.message
    said = message.format(path=path, next=following, after=following + 1)
    assert said in str(summary.message)
    assert lance.dataset(tmp_path / "table.lance").count_rows() == 10


def test_a_dataset_that_changes_its_columns_between_load_and_start_is_named(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    df = read(spark, path)
    lance.dataset(path).add_columns(pa.schema([("w", pa.int64())]))
    error = refused(Epochs(df, tmp_path / "checkpoint").run)
    assert type(error).__name__ == "SchemaMismatchError"
    assert "version 2 of" in str(error)
    assert "than version 1, with which this query started: w (int64) is new" in str(error)
    again = Epochs(read(spark, path), tmp_path / "checkpoint")
    assert again.run().column_names == ["k", "v", "w"]
