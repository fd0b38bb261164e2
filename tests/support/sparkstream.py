"""Streams with epochs that a test decides: one source file is one epoch."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import EpochStamp
from airflow_provider_lance.spark.sink import LanceSink

ORDERS = pa.schema([("id", pa.int64()), ("grp", pa.string()), ("amount", pa.float64())])
ORDERS_DDL = "id BIGINT, grp STRING, amount DOUBLE"


def orders(first: int, count: int) -> pa.Table:
    """Return deterministic rows; two calls for one range agree."""
    ids = range(first, first + count)
    return pa.table(
        {"id": ids, "grp": [f"g{n % 3}" for n in ids], "amount": [n / 2 for n in ids]},
        schema=ORDERS,
    )


@dataclass
class Stream:
    """A file source, a dataset and a checkpoint in one folder."""

    spark: SparkSession
    root: Path
    ddl: str = ORDERS_DDL

    def __post_init__(self) -> None:
        self.source = self.root / "source"
        self.source.mkdir(parents=True, exist_ok=True)
        self._born = int(time.time()) - 3600

    @property
    def uri(self) -> str:
        return str(self.root / "table.lance")

    @property
    def checkpoint(self) -> str:
        return str(self.root / "checkpoint")

    def add(self, rows: pa.Table) -> None:
        """Add one file, which becomes one epoch."""
        number = len(list(self.source.glob("*.parquet")))
        hidden = self.source / f"_{number:06}.parquet"
        pq.write_table(rows, hidden)
        # Spark takes files in the order of their times, which may fall into one millisecond.
        os.utime(hidden, (self._born + number, self._born + number))
        hidden.rename(self.source / f"{number:06}.parquet")

    def read(self) -> DataFrame:
        return (
            self.spark.readStream.schema(self.ddl)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.source))
        )

    def create(self, schema: pa.Schema = ORDERS) -> None:
        lance.write_dataset(schema.empty_table(), self.uri)

    def sink(self, **options: Any) -> LanceSink:
        return LanceSink(
            **{
                "uri": self.uri,
                "queryId": "q",
                "checkpointLocation": self.checkpoint,
                **options,
            }
        )

    def run(self, df: DataFrame | None = None, **options: Any) -> LanceSink:
        """Run all that is available, release, and return the sink."""
        sink = self.sink(**options)
        query = sink.start(self.read() if df is None else df, availableNow=True)
        query.awaitTermination()
        sink.release()
        return sink

    def forget_last_commit(self) -> int:
        """Take the newest epoch out of Spark's commit log, as a crash before it would."""
        commits = Path(self.checkpoint, "commits")
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.uri)

    def table(self) -> pa.Table:
        return self.dataset.to_table()

    def epochs(self, query_id: str = "q") -> list[EpochStamp]:
        port = open_dataset(self.uri)
        stamps = (
            decode_stamp(port.properties(version) or {}, query_id, version)
            for version in range(1, port.version + 1)
        )
        return [stamp for stamp in stamps if stamp]


def spec(stream: Stream, launch_id: str = "launch", **changes: Any) -> dict[str, Any]:
    """Return a job specification over a stream's folder."""
    sink = {
        "uri": stream.uri,
        "queryId": "q",
        "checkpointLocation": stream.checkpoint,
        "createIfMissing": True,
    }
    return {
        "launchId": launch_id,
        "source": {
            "format": "parquet",
            "options": {"path": str(stream.source), "maxFilesPerTrigger": "1"},
            "schema": stream.ddl,
        },
        "sink": sink | changes.pop("sink", {}),
        **changes,
    }


def write_spec(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path
