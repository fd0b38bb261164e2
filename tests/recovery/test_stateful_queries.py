"""Stateful queries killed in mid-stream give the rows of a batch query, with each state store."""

from __future__ import annotations

import signal
from itertools import cycle
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason
from tests.stateful.queries import EVENTS_DDL, QUERIES, TOTALS, WINDOWS, sql
from tests.stateful.run import (
    BETWEEN_COMMIT_AND_SPARKS,
    BETWEEN_WRITE_AND_COMMIT,
    STORES,
    check_rows,
    compare,
    events,
    killed_and_compared,
    settings_of,
)
from tests.support.processes import finish, python
from tests.support.sparkstream import Stream, spec, write_spec

pytestmark = pytest.mark.slow

SOME = [
    (name, "changelog" if query.rocksdb_only and store == "hdfs" else store)
    for (name, query), store in zip(QUERIES.items(), cycle(STORES), strict=False)
]
"""Every query with one store; `python -m tests.stateful` runs each with all of them."""


@pytest.mark.parametrize(("name", "store"), SOME)
def test_a_stateful_query_that_is_killed_gives_the_rows_of_a_batch(
    spark: SparkSession, tmp_path: Path, name: str, store: str
) -> None:
    assert killed_and_compared(spark, tmp_path, name, store, seed=0).rows


@pytest.mark.parametrize("rows", [[1], [1, 2, 2], [1, 3]])
def test_a_lost_row_a_doubled_one_and_another_are_found(rows: list[int]) -> None:
    wanted = pa.table({"key": ["k", "k"], "n": [1, 2]})
    with pytest.raises(AssertionError, match="lost"):
        compare(pa.table({"key": ["k"] * len(rows), "n": rows}), wanted)


@pytest.mark.parametrize(
    ("query", "step", "store"),
    [
        ("sql", BETWEEN_COMMIT_AND_SPARKS, "hdfs"),
        ("function", BETWEEN_WRITE_AND_COMMIT, "changelog"),
    ],
)
def test_a_job_with_state_whose_driver_is_killed_gives_the_rows_of_a_batch(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    step: str,
    store: str,
) -> None:
    session = spark.newSession()
    stream = Stream(session, tmp_path, ddl=EVENTS_DDL)
    for file in events(Random(query)):
        stream.add(file)
    if query == "sql":
        document = spec(stream, sql=WINDOWS)
    else:
        upsert = {"outputMode": "update", "mergeKeys": ["key"]}
        document = spec(stream, sink=upsert, arguments={"path": str(stream.source)})
        del document["source"]
        document["dataframe"] = "tests.stateful.queries:processor_job"
    settings = settings_of(store)
    words = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} pyspark-shell")
    path = write_spec(tmp_path / "spec.json", document)
    status, output = finish(python("-m", "tests.support.killed_job", str(path), step, "2"))
    assert status == -signal.SIGKILL, output
    for name, value in settings.items():
        session.conf.set(name, value)
    summary = run(session, JobSpec.parse(document | {"launchId": "next"}))
    assert summary.reason is EndReason.FINISHED, summary.message
    assert summary.skipped == (step is BETWEEN_COMMIT_AND_SPARKS)
    check_rows(stream, sql(WINDOWS if query == "sql" else TOTALS))
