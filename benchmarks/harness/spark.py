"""The Spark session that all experiments share, one-file-per-epoch sources, epochs' durations."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.spark.tuning import spared_checksums, spared_forks

DDL = "id BIGINT, value DOUBLE"
SCHEMA = pa.schema({"id": pa.int64(), "value": pa.float64()})


def session(jars: Path | None = None) -> SparkSession:
    """Start local Spark with two cores, and with the jars of a folder."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with warnings.catch_warnings():
        # PySpark starts its JVM with a fork hook, which Lance warns of; the child only execs Java.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        return (
            SparkSession.builder.master("local[2]")
            .appName("benchmarks")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "4g")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", ",".join(map(str, jars.glob("*.jar"))) if jars else "")
            # A whole turn's epochs are read from the progress, which keeps only 100 otherwise.
            .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
            .getOrCreate()
        )


@contextmanager
def as_launched(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Let queries that start and run meanwhile write a local checkpoint as a launched job does."""
    with spared_checksums(spark, checkpoint), spared_forks(spark, checkpoint):
        yield


def rows(first: int, count: int) -> pa.Table:
    """Make rows of :data:`SCHEMA`, ids from ``first`` on."""
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "value": ids / 2}, schema=SCHEMA)


def add_files(folder: Path, first: int, count: int, each: int) -> None:
    """Write so many source files with ``each`` rows, numbered from ``first`` on.

    Spark takes files in the order of their times, so each gets a second of its own, in the past.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        hidden = folder / f"_{number:08}.parquet"
        pq.write_table(rows(number * each, each), hidden)
        past = int(time.time()) - 100_000 + number
        os.utime(hidden, (past, past))
        hidden.rename(folder / f"{number:08}.parquet")


def read_files(
    spark: SparkSession, folder: Path, *, schema: str = DDL, files_per_epoch: int = 1
) -> DataFrame:
    """Return a stream of a folder's files, so many an epoch."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_epoch)
    return reader.parquet(str(folder))


def durations(query: StreamingQuery, part: str = "triggerExecution") -> list[float]:
    """Return the milliseconds of each epoch with rows: all of it, or a part such as ``addBatch``.

    The parts are Spark's own: latestOffset, queryPlanning, walCommit, addBatch, commitOffsets, …
    """
    epochs = (progress for progress in query.recentProgress if progress["numInputRows"])
    return [float(progress["durationMs"][part]) for progress in epochs]
