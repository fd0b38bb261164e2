"""The Lance source of a driver in the laboratory: the real one, with a point after each call.

Spark calls it in processes of its own: one that plans the query, and those that run its tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from airflow_provider_lance.source.options import LANCE
from airflow_provider_lance.spark.source import STREAM_FORMAT, LanceDataSource, LanceStreamReader
from tests.chaos.fate import Fate
from tests.chaos.orders import Orders


class SourcePoint(StrEnum):
    """The points of a source between reading and committing, in the order they are reached."""

    ENDED = "source.ended"
    """It has said where the epoch ends; `offsets/N` is not there."""
    PLANNED = "source.planned"
    """It has said which tasks read the epoch."""
    READ = "source.read"
    """A task has read its first rows, or rows after them."""
    COMMITTED = "source.committed"
    """Spark has told it that an epoch is done."""


class Reads(StrEnum):
    """How a driver's source reads; all but the first are wrong, and must be noticed."""

    PINNED = "pinned"
    NEWEST = "newest"
    """Up to the newest version, wherever the epoch ends."""
    FORGETFUL = "forgetful"
    """From where this process stopped reading, wherever the epoch begins."""


def register(
    orders: str,
    session: SparkSession,
    storage_options: Mapping[str, str] | None = None,
    *,
    writes_to: str = "",
    checkpoint_location: str = "",
) -> None:
    """Make the source known to a session, as the job does.

    :param orders: the file with the driver's orders.
    """
    bound = {
        "storage_options": dict(storage_options or {}),
        "writes_to": writes_to,
        "checkpoint_location": checkpoint_location,
        "orders": orders,
    }
    # A class that no module holds is pickled by value, and brings the orders along.
    for name in (LANCE, STREAM_FORMAT):
        kind = type("BoundChaosDataSource", (ChaosDataSource,), bound | {"format_name": name})
        session.dataSource.register(kind)


class ChaosDataSource(LanceDataSource):
    """The source with points."""

    orders = ""

    def streamReader(self, schema: StructType) -> LanceStreamReader:
        reader = super().streamReader(schema)
        reader.__class__ = ChaosReader
        vars(reader).update(orders=self.orders, stopped_at=None)
        return reader


class ChaosReader(LanceStreamReader):
    """Reaches a point after each call."""

    orders: str
    stopped_at: dict[str, Any] | None

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            self._reach(SourcePoint.ENDED)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        match _orders(self.orders).reads:
            case Reads.NEWEST:
                end = self._reader.newest().to_json()
            case Reads.FORGETFUL:
                start = self.stopped_at or end
        self.stopped_at = end
        tasks = super().partitions(start, end)
        self._reach(SourcePoint.PLANNED)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            self._reach(SourcePoint.READ)
            yield batch

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._reach(SourcePoint.COMMITTED)

    def _reach(self, point: SourcePoint) -> None:
        _fate(self.orders).reach(point.value)


@cache
def _orders(path: str) -> Orders:
    return Orders.loads(Path(path).read_text())


@cache
def _fate(path: str) -> Fate:
    orders = _orders(path)
    # The driver leads the session that all its processes are in.
    return Fate(orders, os.getsid(0), int(Path(f"{orders.sign}.ready").read_text()))
