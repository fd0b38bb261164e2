"""Write an epoch's rows: small epochs through the driver, others by executors."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame

from airflow_provider_lance.spark.aside import Origin
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather, gather_rows
from airflow_provider_lance.spark.failures import named_by_worker
from airflow_provider_lance.spark.tuning import BatchRows
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask

__all__ = ["EpochSizeEstimate", "EpochWriter", "Size"]

log = logging.getLogger(__name__)

_DIRECT_BYTES = 8 * 1024 * 1024
"""The largest expected size in memory of an epoch that the driver collects."""

_UNKNOWN_BYTES = 2**60
"""Spark's statistics report at least this much if a source, such as Kafka, gives no size."""


class EpochWriter:
    """Writes a run's epochs, each as uncommitted fragments.

    The driver collects an epoch that is expected to be small as Arrow, and writes it. That avoids
    planning a Python function, the transfer through a Python worker, and the messages: two thirds
    of what a small epoch costs above Spark's own work. The executors write the first two epochs of
    a run, and all that may be large: so a driver killed by a misjudged epoch makes progress after
    its restart. Beyond ``spark.driver.maxResultSize`` Spark refuses to collect; the executors then
    write the epoch.
    """

    def __init__(self, task: WriteTask) -> None:
        self.task = task
        self._forecast = EpochSizeEstimate()
        self._batch_rows = BatchRows()
        self._collects = True

    def sift_for(self, origin: Origin | None) -> None:
        """Set the epoch that rows for the quarantine belong to; ``None`` if none can go there."""
        if origin != self.task.sieve.origin:
            self.task = replace(self.task, sieve=replace(self.task.sieve, origin=origin))

    def write(self, df: DataFrame, dataset: Any) -> CollectedFragments:
        """Write one epoch.

        :param df: the micro-batch, with the columns that the task's ``split`` takes.
        :param dataset: a handle of the dataset.
        :raises RowsRefusedError: a value does not fit, or a merge key is null or duplicated.
        :raises StorageUnavailableError: the store did not accept the rows.
        """
        began = time.monotonic()
        rows = self.collect(df)
        if rows is None:
            written = self._on_executors(df, dataset)
        else:
            written = gather_rows(rows, self.task, dataset)
        taken = written.checks.dropped + written.checks.quarantined
        self.note(began, written.rows + taken, written.bytes)
        return written

    def note(self, began: float, rows: int, size: int) -> None:
        """Record an epoch for the next one's estimate: its start, rows, and bytes in memory."""
        self._forecast.note(began, Size(rows, size))

    def collect(self, df: DataFrame) -> pa.Table | None:
        """Return an epoch's rows on the driver, ``None`` if the executors must write them."""
        expected = self._forecast.at(time.monotonic())
        if not self._collects or expected is None or not self._is_small(expected):
            return None
        if _planned_bytes(df) > _DIRECT_BYTES:
            return None
        try:
            return df.toArrow()
        except (Py4JJavaError, PySparkException) as error:
            if "spark.driver.maxResultSize" not in str(error):
                raise
            log.warning("Larger than expected, written by executors. expected=%s", expected)
            return None
        except pa.lib.ArrowException as error:
            # PySpark 4.3 cannot collect a null struct that has a field which is not nullable.
            log.warning("Spark cannot collect these columns, executors write. error=%s", error)
            self._collects = False
            return None

    def _is_small(self, expected: Size) -> bool:
        return expected.rows <= self.task.small_epoch_rows and expected.bytes <= _DIRECT_BYTES

    def _on_executors(self, df: DataFrame, dataset: Any) -> CollectedFragments:
        if (last := self._forecast.last) and last.rows:
            self._batch_rows.fit(df, last.bytes / last.rows)
        try:
            messages = df.mapInArrow(self.task, MESSAGE_SCHEMA).collect()
        except PythonException as error:
            raise named_by_worker(str(error)) or error from error
        return gather(messages, self.task, dataset)


def _planned_bytes(df: DataFrame) -> int:
    """Return the bytes that Spark plans to read, 0 where the source gives no size."""
    plan: Any = df._jdf
    size = int(plan.queryExecution().optimizedPlan().stats().sizeInBytes())
    return 0 if size >= _UNKNOWN_BYTES else size


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an epoch: rows, and bytes in memory."""

    rows: int
    bytes: int


class EpochSizeEstimate:
    """Estimates an epoch from the previous epoch's rate and the seconds since.

    A paused stream has a backlog when it continues, so the size of the last epoch alone is not
    enough. The first two epochs of a run have no estimate.
    """

    def __init__(self) -> None:
        self.last: Size | None = None
        """The size of the previous epoch; ``None`` before a run's first."""
        self._began = 0.0
        self._seconds: float | None = None

    def note(self, began: float, size: Size) -> None:
        """Record an epoch's size, and when it began in seconds of a monotonic clock."""
        self._seconds = began - self._began if self.last else None
        self._began, self.last = began, size

    def at(self, now: float) -> Size | None:
        """Return the estimate for an epoch that begins now; ``None`` if it is unknown."""
        if self.last is None or not self._seconds:
            return None
        growth = max(1.0, (now - self._began) / self._seconds)
        return Size(round(self.last.rows * growth), round(self.last.bytes * growth))
