"""Write an epoch's rows: small epochs through the driver, others by executors."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_lance.spark.aside import Origin
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather, gather_rows
from airflow_provider_lance.spark.comparison import Comparison
from airflow_provider_lance.spark.compat import RememberedSchema
from airflow_provider_lance.spark.failures import named_by_worker
from airflow_provider_lance.spark.history import History
from airflow_provider_lance.spark.history_task import HistoryTask
from airflow_provider_lance.spark.ordered_task import TRUNCATE_FLAG, OrderedTask
from airflow_provider_lance.spark.scd2 import Versions
from airflow_provider_lance.spark.sequencing import Order, Truncation
from airflow_provider_lance.spark.streaming_plan import quoted
from airflow_provider_lance.spark.tuning import BatchRows
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask

__all__ = ["EpochSizeEstimate", "EpochWriter", "Size"]

log = logging.getLogger(__name__)

_DIRECT_BYTES = 8 * 1024 * 1024
"""The largest expected size in memory of an epoch that the driver collects."""

_UNKNOWN_BYTES = 2**50
"""Spark's statistics report more than this if a source, such as Kafka, gives no size.

Spark takes ``spark.sql.defaultSizeInBytes``, 2**63 - 1, for it, and lowers that by the share of the
selected columns in a row's default size: two narrow columns of Kafka's records come to 2**59.
"""


class EpochWriter:
    """Writes a run's epochs, each as uncommitted fragments.

    The driver collects an epoch that is expected to be small as Arrow, and writes it. That avoids
    planning a Python function, the transfer through a Python worker, and the messages: two thirds
    of what a small epoch costs above Spark's own work. The executors write the first two epochs of
    a run, and all that may be large: so a driver killed by a misjudged epoch makes progress after
    its restart. Beyond ``spark.driver.maxResultSize`` Spark refuses to collect; the executors then
    write the epoch.
    """

    def __init__(
        self,
        task: WriteTask,
        order: Order | None = None,
        *,
        versions: Versions | None = None,
        truncates: bool = False,
    ) -> None:
        """Store the arguments; no I/O.

        :param order: how the records of a key are ordered, if they are.
        :param versions: how versions of a key's rows are made, where the dataset holds them.
        :param truncates: whether records may truncate; large epochs are then read twice.
        """
        self.task, self._order, self._truncates = task, order, truncates
        self.versions = versions
        self._forecast = EpochSizeEstimate()
        self._batch_rows = BatchRows(task.schema)
        self._remembered = RememberedSchema()
        self._collects = True

    def sift_for(self, origin: Origin | None) -> None:
        """Set the epoch that rows for the quarantine belong to; ``None`` if none can go there."""
        if origin != self.task.sieve.origin:
            self.task = replace(self.task, sieve=replace(self.task.sieve, origin=origin))

    def write(self, df: DataFrame, dataset: Any, tombstones: Any = None) -> CollectedFragments:
        """Write one epoch.

        :param tombstones: a handle of the dataset's tombstones, if records have an order and there
            are any.
        :param df: the micro-batch, with the columns that the task's ``split`` takes.
        :param dataset: a handle of the dataset.
        :raises RowsRefusedError: a value does not fit, or a merge key is null or duplicated.
        :raises StorageUnavailableError: the store did not accept the rows.
        """
        began = time.monotonic()
        task = self.task
        if self._order:
            place = (str(tombstones.uri), int(tombstones.version)) if tombstones else None
            if self.versions:
                task = HistoryTask.of(
                    task, History(self._order, dataset.version, place, versions=self.versions)
                )
            else:
                task = OrderedTask.of(task, Comparison(self._order, dataset.version, place))
        at = _At(task, dataset, tombstones)
        rows = self.collect(df)
        written = self._on_executors(df, at) if rows is None else self._here(rows, at)
        checks = written.checks
        taken = checks.dropped + checks.quarantined + checks.late + checks.superseded
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
            return self._with_schema(df).toArrow()
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

    def _here(self, rows: pa.Table, at: _At) -> CollectedFragments:
        if not self._truncates or self.versions:
            return gather_rows(rows, at.task, at.dataset, at.tombstones)
        flags = pc.fill_null(rows[TRUNCATE_FLAG], False)
        cut, checks = at.ordered.truncation(rows.filter(flags), at.dataset, at.tombstones)
        rest = rows.filter(pc.invert(flags))
        return gather_rows(rest, at.below(cut), at.dataset, at.tombstones).after(cut, checks)

    def _is_small(self, expected: Size) -> bool:
        return expected.rows <= self.task.small_epoch_rows and expected.bytes <= _DIRECT_BYTES

    def _on_executors(self, df: DataFrame, at: _At) -> CollectedFragments:
        last = self._forecast.last
        self._batch_rows.fit(df, at.dataset, last.bytes / last.rows if last and last.rows else None)
        try:
            if not self._truncates:
                return self._gathered(df, at.task, at)
            flag = F.coalesce(F.col(TRUNCATE_FLAG), F.lit(False))
            if self.versions:  # a truncate ends versions of keys that no task has
                if df.where(flag).isEmpty():
                    return self._gathered(df, at.task, at)
                rows = self._with_schema(df).toArrow()
                return gather_rows(rows, at.task, at.dataset, at.tombstones)
            truncates = self._with_schema(df.where(flag)).toArrow()
            cut, checks = at.ordered.truncation(truncates, at.dataset, at.tombstones)
            return self._gathered(df.where(~flag), at.below(cut), at).after(cut, checks)
        except PythonException as error:
            raise named_by_worker(str(error)) or error from error

    def _with_schema(self, df: DataFrame) -> DataFrame:
        """Return a DataFrame with the previous one's schema, if it has the same columns."""
        if "schema" not in vars(df):  # the runner may have compared them
            self._remembered.apply_to(df)
        return df

    def _gathered(self, df: DataFrame, task: WriteTask, at: _At) -> CollectedFragments:
        if isinstance(task, OrderedTask):
            # Each task gets all records of its keys, one key after another.
            keys = [F.col(quoted(name)) for name in task.merge_keys]
            df = df.repartition(*keys).sortWithinPartitions(*keys)
        messages = self._with_schema(df).mapInArrow(task, MESSAGE_SCHEMA).collect()
        return gather(messages, task, at.dataset, at.tombstones)


@dataclass(frozen=True, slots=True)
class _At:
    """One epoch's task, and the handles with which it is written."""

    task: WriteTask
    dataset: Any
    tombstones: Any

    @property
    def ordered(self) -> OrderedTask:
        """Return the task of records that have an order."""
        assert isinstance(self.task, OrderedTask)
        return self.task

    def below(self, cut: Truncation) -> OrderedTask:
        """Return the task for the epoch's other records."""
        task = self.ordered
        return replace(task, comparison=replace(task.comparison, truncate=cut.sequence))


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
