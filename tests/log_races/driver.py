"""One driver of a race; as a program, the rival: it runs a query for each line of its input."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark import start
from airflow_provider_lance.spark.sink import LanceSink

MANAGERS = "spark.sql.streaming.checkpointFileManagerClass"
ROWS_A_SECOND = 20


class CrashError(Exception):
    """Ends a run between the dataset's commit and Spark's."""


def session(manager: str) -> SparkSession:
    """Return a small session, with a checkpoint manager; empty for Spark's default."""
    start._PATIENCE_SECONDS = 0.0  # the other driver of a race lives, and waits
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
    )
    return (builder.config(MANAGERS, manager) if manager else builder).getOrCreate()


def uri(root: Path) -> str:
    return str(root / "table.lance")


def create(root: Path) -> None:
    lance.write_dataset(pa.schema([("value", pa.int64())]).empty_table(), uri(root))


def read(spark: SparkSession) -> DataFrame:
    """Read consecutive numbers; the moment of planning decides where an epoch ends."""
    source = spark.readStream.format("rate").option("rowsPerSecond", ROWS_A_SECOND)
    return source.load().select("value")


def run(spark: SparkSession, root: Path, *, end: str = "released") -> None:
    """Run what is available now; ``end`` is ``released``, ``left`` (like a kill) or ``crashed``.

    :raises Exception: what ended the query, unwrapped.
    """
    sink = LanceSink(uri=uri(root), queryId="q", checkpointLocation=str(root / "checkpoint"))

    def crash(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_LANDED and end == "crashed":
            raise CrashError

    sink._on_step = crash
    try:
        query: Any = sink.start(read(spark), availableNow=True)
        query.awaitTermination()
    except Exception as error:
        if not isinstance(sink.error, CrashError):
            raise sink.error or error from None
    finally:
        if end == "released":
            sink.release()


def main(manager: str) -> None:
    spark = session(manager)
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        try:
            run(spark, Path(line.strip()), end="left")
            how = "finished"
        except Exception as error:
            how = type(error).__name__
        print(f"ended {how} {time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
