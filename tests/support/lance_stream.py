"""Streaming queries of Spark that read a Lance dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.spark.source import register_source
from tests.support.processes import wait_for

AVAILABLE_NOW = {"availableNow": True}
BUSY = {"processingTime": "100 milliseconds"}


def read(spark: SparkSession, path: object, **options: Any) -> DataFrame:
    """Return the stream of a dataset's rows."""
    register_source(spark)
    return spark.readStream.format("lance").options(**options).load(str(path))


def descendants(pid: int) -> set[int]:
    """Return the ids of the processes that a process has started, and of those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    found, last = {pid}, 0
    while len(found) > last:
        last = len(found)
        found |= {each for each, parent in parents.items() if parent in found}
    return found - {pid}


@dataclass
class Epochs:
    """A query whose epochs arrive in this process, and its checkpoint."""

    df: DataFrame
    checkpoint: Path
    trigger: dict[str, Any] = field(default_factory=lambda: dict(AVAILABLE_NOW))
    before: Callable[[int], None] = lambda epoch: None
    """Called with each epoch's number before its rows are kept; what it raises ends the query."""

    def __post_init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}
        self.attempts: list[tuple[int, pa.Table]] = []

    def start(self) -> StreamingQuery:
        writer = self.df.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**self.trigger).start()

    def run(self) -> pa.Table:
        """Run to the end; return all rows."""
        query = self.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return self.rows()

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.tables.values()) if self.tables else pa.table({})

    def wait(self, rows: int, query: StreamingQuery) -> None:
        """Wait until so many rows have arrived."""

        def there() -> bool:
            if not query.isActive:
                raise AssertionError(f"the query ended: {query.exception()}")
            return self.rows().num_rows >= rows

        wait_for(f"{rows} rows", there)

    def offsets(self) -> list[dict[str, Any]]:
        """Return the ends of epochs in Spark's log."""
        names = [file for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit()]
        files = sorted(names, key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]

    def _keep(self, df: DataFrame, epoch: int) -> None:
        table = df.toArrow()
        self.attempts.append((epoch, table))
        self.before(epoch)
        self.tables[epoch] = table
