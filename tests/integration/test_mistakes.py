"""A test per mistake: which error a driver ends with, and whether a retry may help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import (
    AccessDeniedError,
    MasterUnreachableError,
    SourceDataLossError,
    SpecError,
    TerminalError,
    TransientError,
    error_class,
)
from airflow_provider_lance.spark.failures import named_failure
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary

RATE = {"format": "rate-micro-batch", "options": {"rowsPerBatch": "5"}}
FILES = {"format": "json", "schema": "id BIGINT"}


def job(root: Path, **changes: Any) -> JobSpec:
    sink = {
        "uri": str(root / "table.lance"),
        "queryId": "q",
        "checkpointLocation": str(root / "checkpoint"),
        "createIfMissing": True,
    }
    document = {"launchId": "launch", "trigger": "availableNow", **changes}
    return JobSpec.parse(document | {"sink": sink | changes.get("sink", {})})


def failed(spark: SparkSession, job: JobSpec) -> Summary:
    summary = run(spark, job)
    assert summary.reason is EndReason.FAILED, summary
    return summary


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no schema": (
        {"source": {"format": "json", "options": {"path": "/"}}},
        "SpecError",
        "Schema must be specified",
    ),
    "format": (
        {"source": {"format": "jsno", "options": {"path": "/"}}},
        "SpecError",
        "Failed to find the data source: jsno",
    ),
    "connector": (
        {"source": {"format": "kafka", "options": {"subscribe": "orders"}}},
        "SpecError",
        "Failed to find data source: kafka",
    ),
    "option": (
        {"source": {"format": "rate", "options": {"rowsPerSecond": "many"}}},
        "SpecError",
        'For input string: "many"',
    ),
    "column": ({"source": RATE, "sql": "SELECT valu FROM source"}, "SpecError", "`valu`"),
    "syntax": ({"source": RATE, "sql": "SELEC value FROM source"}, "SpecError", "SELEC"),
    "cast": (
        {"source": RATE, "sql": "SELECT CAST(concat('a', value) AS INT) AS x FROM source"},
        "RowsRefusedError",
        "CAST_INVALID_INPUT",
    ),
    "raise_error": (
        {"source": RATE, "sql": "SELECT raise_error('no such row') AS x FROM source"},
        "RowsRefusedError",
        "no such row",
    ),
    "file system": (
        {"source": RATE, "sink": {"checkpointLocation": "s3a://bucket/checkpoint"}},
        "SpecError",
        "hadoop-aws",
    ),
    "build function": (
        {"dataframe": "tests.support.mistakes:raises", "arguments": {"column": "at"}},
        "UserFunctionError",
        "dataframe 'tests.support.mistakes:raises' raised KeyError: 'no at'",
    ),
    "analysis in a build function": (
        {"dataframe": "tests.support.mistakes:misspelt"},
        "SpecError",
        "`valu`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_certain_and_named(spark: SparkSession, tmp_path: Path, mistake: str) -> None:
    changes, error, said = MISTAKES[mistake]
    summary = failed(spark, job(tmp_path, **changes))
    assert (summary.error, issubclass(error_class(error), TerminalError)) == (error, True)
    assert summary.message
    assert said in summary.message
    assert "\tat " not in summary.message, "the JVM's stack is no message"


@pytest.mark.parametrize("function", ["bad_udf", "bad_pandas_udf"])
def test_an_exception_in_a_udf_is_told_with_the_users_lines(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    summary = failed(spark, job(tmp_path, dataframe=f"tests.support.mistakes:{function}"))
    assert summary.error == "UserFunctionError"
    assert summary.message
    first, _, trace = summary.message.partition("\nTraceback (most recent call last):\n")
    assert first.endswith("raised ValueError: no price for 3\nask the shop")
    assert trace
    assert summary.message.endswith("ValueError: no price for 3\nask the shop")
    assert "in _price\n    raise ValueError(" in summary.message
    assert "pyspark" not in summary.message


@pytest.mark.parametrize("function", ["may_pass", "udf_that_may_pass"])
def test_an_exception_of_a_users_function_that_may_pass_is_retried(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    summary = failed(spark, job(tmp_path, dataframe=f"tests.support.mistakes:{function}"))
    assert not issubclass(error_class(summary.error or ""), TerminalError)


@pytest.mark.parametrize("place", ["file/checkpoint", "/proc/none/checkpoint"])
def test_a_checkpoint_that_cannot_be_written(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    location = {"checkpointLocation": str(tmp_path / place)}
    summary = failed(spark, job(tmp_path, source=RATE, sink=location))
    assert summary.error == "AccessDeniedError"
    assert summary.message
    assert str((tmp_path / place).parent) in summary.message


def test_a_host_that_is_not_there_may_come_back(spark: SparkSession, tmp_path: Path) -> None:
    location = {"checkpointLocation": "hdfs://nowhere.invalid:9000/checkpoint"}
    summary = failed(spark, job(tmp_path, source=RATE, sink=location))
    assert not issubclass(error_class(summary.error or ""), TerminalError)
    assert "nowhere.invalid" in (summary.message or "")


LOST = (
    "Cannot fetch records in [0, 10) (TopicPartition: orders-0). Some data may have been lost "
    "because they are not available in Kafka any more; either the data was aged out by Kafka"
)
THROWN: dict[str, tuple[list[tuple[str, str]], type[Exception] | None]] = {
    "lost records": (
        [("java.lang.RuntimeException", "Job aborted"), ("java.lang.IllegalStateException", LOST)],
        SourceDataLossError,
    ),
    "overloaded host": (
        [
            ("java.lang.RuntimeException", "Job aborted"),
            ("org.apache.spark.SparkException", "Python worker failed to connect back"),
        ],
        TransientError,
    ),
    "denied": (
        [("java.lang.RuntimeException", "x"), ("java.io.IOException", "Permission denied: /data")],
        AccessDeniedError,
    ),
    "expired": ([("java.nio.file.AccessDeniedException", "403: token expired")], None),
    "jar": ([("java.lang.NoClassDefFoundError", "org/apache/kafka/Consumer")], SpecError),
    "argument": ([("java.lang.IllegalArgumentException", "bad option")], SpecError),
    "away": (
        [
            ("java.lang.IllegalArgumentException", "java.net.UnknownHostException: namenode"),
            ("java.net.UnknownHostException", "namenode"),
        ],
        None,
    ),
    "no master": (
        [("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext")],
        MasterUnreachableError,
    ),
    "unknown": ([("java.lang.IllegalStateException", "odd")], None),
}


@pytest.mark.parametrize("case", THROWN)
def test_what_the_jvm_throws_is_told_by_its_causes(spark: SparkSession, case: str) -> None:
    chain, expected = THROWN[case]
    jvm: Any = spark.sparkContext._jvm
    thrown: Any = None
    for name, message in reversed(chain):
        kind = jvm
        for part in name.split("."):
            kind = getattr(kind, part)
        made = kind(message)
        if thrown is not None:
            made.initCause(thrown)
        thrown = made
    future = jvm.java.util.concurrent.CompletableFuture()
    future.completeExceptionally(thrown)
    with pytest.raises((Py4JJavaError, PySparkException)) as caught:
        future.get()
    named = named_failure(caught.value)
    assert type(named) is (expected or type(None))
    if named:
        assert chain[-1][1] in str(named)
