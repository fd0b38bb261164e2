"""One driver of a race; as a program, the rival: it runs a query for each line of its input."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark import start
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spark.tuning import spared_checksums, spared_forks

DEFAULT, LAUNCHED = "default", "launched"
"""How Spark writes the checkpoint: as it does by default, or as in a launched job."""

ROWS_A_SECOND = 20


class CrashError(Exception):
    """Ends a run between the dataset's commit and Spark's."""


def session() -> SparkSession:
    """Return a small session."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    start._PATIENCE_SECONDS = 0.0  # the other driver of a race lives, and waits
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )


def uri(root: Path) -> str:
    return str(root / "table.lance")


def create(root: Path) -> None:
    lance.write_dataset(pa.schema([("value", pa.int64())]).empty_table(), uri(root))
    (root / "in").mkdir()


def add_file(root: Path) -> None:
    """Add a file with the next 10 numbers."""
    number = len(list((root / "in").glob("*.parquet")))
    hidden = root / "in" / f"_{number}"
    pq.write_table(pa.table({"value": range(number * 10, number * 10 + 10)}), hidden)
    hidden.rename(root / "in" / f"{number:06}.parquet")


def read(spark: SparkSession, root: Path, source: str) -> DataFrame:
    """Read consecutive numbers; the moment of planning decides where an epoch ends.

    ``gaps`` leaves out every other 30 numbers, so that some epochs have no rows.
    """
    if source == "files":
        return spark.readStream.schema("value BIGINT").parquet(str(root / "in"))
    rate = spark.readStream.format("rate").option("rowsPerSecond", ROWS_A_SECOND).load()
    return rate.select("value").where("value div 30 % 2 = 0" if source == "gaps" else "true")


def run(
    spark: SparkSession, root: Path, source: str, *, writes: str, end: str = "released"
) -> None:
    """Run what is available now; ``end`` is ``released``, ``left`` (like a kill) or ``crashed``.

    :param writes: :data:`DEFAULT` or :data:`LAUNCHED`.
    :raises Exception: what ended the query, unwrapped.
    """
    checkpoint = str(root / "checkpoint")
    sink = LanceSink(uri=uri(root), queryId="q", checkpointLocation=checkpoint)

    def crash(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_LANDED and end == "crashed":
            raise CrashError

    sink._on_step = crash
    try:
        with ExitStack() as spared:
            if writes == LAUNCHED:
                spared.enter_context(spared_checksums(spark, checkpoint))
                spared.enter_context(spared_forks(spark, checkpoint))
            query: Any = sink.start(read(spark, root, source), availableNow=True)
            query.awaitTermination()
    except Exception as error:
        if not isinstance(sink.error, CrashError):
            raise sink.error or error from None
    finally:
        if end == "released":
            sink.release()


def main(writes: str) -> None:
    spark = session()
    print("ready", flush=True)
    for line in sys.stdin:
        began, (root, source) = time.monotonic(), line.split()
        try:
            run(spark, Path(root), source, writes=writes, end="left")
            how = "finished"
        except Exception as error:
            how = type(error).__name__
        print(f"ended {how} {time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
