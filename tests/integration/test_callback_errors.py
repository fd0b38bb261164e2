"""Whatever ends an epoch reaches Spark, and the summary names it; the query never hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import SchemaMismatchError, StorageUnavailableError
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.lance_errors import is_panic
from airflow_provider_lance.spark import job as jobs
from airflow_provider_lance.spark import schema_fit
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    read_summary,
    report_location,
)
from tests.support.sparkstream import Stream, orders, spec

TEXTS = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.string(), 2))])
"""What Lance 14.0.2 makes a dataset of, and panics at when rows come."""


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(spark, tmp_path)
    stream.add(orders(0, 20))
    yield stream
    for query in spark.streams.active:  # a test that failed must not hold up the others
        query.stop()


@pytest.fixture
def texts(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return a stream into a dataset that nothing can be written into, past the check for it."""
    stream = Stream(spark, tmp_path, "id BIGINT, v ARRAY<STRING>")
    stream.add(pa.table({"id": [1, 2], "v": [["a", "b"], ["c", "d"]]}))
    stream.create(TEXTS)
    monkeypatch.setattr(schema_fit, "check_schema", lambda *given, **named: None)
    return stream


class Job:
    """The job in a thread, so that one that hangs fails its test."""

    def __init__(self, stream: Stream, document: dict[str, Any], **sink: Any) -> None:
        self._ended: list[Summary] = []
        parsed = JobSpec.parse(document)
        made = LanceSink(parsed.sink, launch_id=parsed.launch_id, **sink)
        self._thread = threading.Thread(
            target=lambda: self._ended.append(run(stream.spark, parsed, made)), daemon=True
        )
        self._thread.start()

    def end(self) -> Summary:
        self._thread.join(60)
        assert self._ended, "the driver hangs, although its epoch has ended"
        return self._ended[0]


def a_panic(folder: Path) -> BaseException:
    dataset = lance.write_dataset(TEXTS.empty_table(), str(folder / "panic.lance"))
    try:
        write_fragments(pa.table({"id": [1], "v": [["a", "b"]]}).cast(TEXTS), dataset)
    except BaseException as error:
        if is_panic(error):
            return error
    raise AssertionError("Lance writes vectors of texts by now: find another panic")


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_epoch_that_ends_in_no_exception_fails_the_query_and_is_named(
    stream: Stream, ending: BaseException, error: str
) -> None:
    def end(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED:
            raise ending

    summary = Job(stream, spec(stream), on_step=end).end()
    assert (summary.reason, summary.error) == (EndReason.FAILED, error)
    assert read_summary(open_files(report_location(stream.checkpoint)), "launch") == summary
    assert stream.run(createIfMissing=True).totals.epochs == 1
    assert stream.table().num_rows == 20


def test_panic_in_the_driver_fails_the_query_and_is_named(stream: Stream, tmp_path: Path) -> None:
    panic = a_panic(tmp_path)

    def end(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED:
            raise panic

    summary = Job(stream, spec(stream), on_step=end).end()
    assert (summary.reason, summary.error) == (EndReason.FAILED, "StorageUnavailableError")
    assert summary.message
    assert summary.message.startswith(f"Lance panicked on {stream.uri}: compute_stat should")


@pytest.mark.parametrize("small_epoch_rows", [0, 100], ids=["executors", "driver"])
def test_panic_while_rows_are_written_fails_the_query_and_is_named(
    texts: Stream, small_epoch_rows: int
) -> None:
    document = spec(texts, sink={"smallEpochRows": small_epoch_rows})
    summary = Job(texts, document).end()
    assert (summary.reason, summary.error) == (EndReason.FAILED, "StorageUnavailableError")
    assert summary.message
    assert texts.uri in summary.message
    assert "Lance panicked: compute_stat" in summary.message
    assert texts.dataset.count_rows() == 0


def test_panic_by_hand_reaches_spark_as_an_exception(texts: Stream) -> None:
    sink = texts.sink()
    query = sink.start(texts.read(), availableNow=True)
    with pytest.raises(StreamingQueryException, match="Lance panicked: compute_stat"):
        assert query.awaitTermination(60), "Spark waits for an answer that never comes"
    assert isinstance(sink.error, StorageUnavailableError)


def test_vectors_of_texts_are_refused_before_the_dataset_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, "id BIGINT, v ARRAY<STRING>")
    with pytest.raises(SchemaMismatchError, match="'v'"):
        stream.run(createIfMissing=True, vectorSizes={"v": 2})
    assert not Path(stream.uri).exists()


def test_user_function_that_exits_leaves_a_summary(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*given: Any) -> Any:
        raise SystemExit("no such table")

    monkeypatch.setattr(jobs, "_dataframe", leave)
    summary = Job(stream, spec(stream)).end()
    assert (summary.reason, summary.error) == (EndReason.FAILED, "SystemExit")
    assert summary.message == "no such table"
    assert read_summary(open_files(report_location(stream.checkpoint)), "launch") == summary
