"""What the sink does with one micro-batch: write its rows, commit them, report it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import RowsChangedError
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.model import EndOffsets, Epoch, utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.spark.active_query import ActiveQuery
from airflow_provider_lance.spark.autocompact import AutoCompaction
from airflow_provider_lance.spark.compat import RememberedSchema
from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.history import sequence_of, versions_of
from airflow_provider_lance.spark.kafka import KafkaTopics
from airflow_provider_lance.spark.note_taker import NoteTaker
from airflow_provider_lance.spark.ordered_task import TRUNCATE_FLAG
from airflow_provider_lance.spark.quarantine import commit_aside, origin_of
from airflow_provider_lance.spark.run_metrics import EpochReport
from airflow_provider_lance.spark.scd2 import SEQUENCE, START_AT
from airflow_provider_lance.spark.sequencing import Order
from airflow_provider_lance.spark.sieve import DELETE_FLAG, REFUSED, Sieve
from airflow_provider_lance.spark.streaming_plan import quoted
from airflow_provider_lance.spark.target import fit_target
from airflow_provider_lance.spark.tombstones import Tombstones
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["EpochRunner", "order_of"]

log = logging.getLogger(__name__)

_COMPARISONS = 12
"""How often an epoch is compared with the dataset; each time, others may change rows meanwhile."""


class EpochRunner:
    """Writes and commits the micro-batches of one run into the dataset of its session."""

    def __init__(
        self,
        options: SinkOptions,
        session: DriverSession,
        sides: SideTables,
        schema: pa.Schema,
        *,
        run_id: str,
        query: ActiveQuery | None,
        compaction: AutoCompaction,
        topics: KafkaTopics | None,
        notes: NoteTaker | None,
    ) -> None:
        """Store the arguments; no I/O.

        :param sides: the further datasets that an epoch writes, before the session's own.
        :param schema: the dataset's.
        :param query: Spark's memory of the query, which knows where an epoch ends.
        :param compaction: gives way to an epoch that must see all other commits.
        :param topics: what the query reads from Kafka.
        :param notes: notes what Spark planned, where Spark's log may be replaced.
        """
        self._options, self._session, self._schema = options, session, schema
        self._topics, self._notes = topics, notes
        self._sides = sides
        self._query, self._compaction = query, compaction
        task, order = _task(options, schema, run_id), order_of(options)
        self._writer = EpochWriter(
            task,
            order,
            versions=versions_of(options, schema),
            truncates=options.truncate_when is not None,
        )
        self._tombstones: Tombstones | None = None
        if order:
            versions = self._writer.versions
            graves = versions.remembered_schema if versions else order.tombstones_of(schema)
            self._tombstones = Tombstones(options, graves, sides, task)
        self._remembered = RememberedSchema()
        self._columns_fit = self._as_is = False
        self._missing = frozenset[str]()

    def run(self, df: DataFrame, epoch_id: int) -> EpochReport:
        """Write and commit one micro-batch, or skip it if it is committed already.

        :raises LanceStreamError: see :meth:`.EpochWriter.write` and :meth:`.EpochPlan.commit`.
        """
        plan, ends = self._session.begin(epoch_id), self._ends(epoch_id)
        if self._notes and ends and not self._notes.note(epoch_id, ends):
            plan = self._session.begin(epoch_id)
        if plan.decision is Decision.FULL_COMMIT:
            self._fit(df, plan)
        if plan.decision is Decision.FULL_COMMIT:
            return self._until_compared(df, plan, ends)
        # Computed and discarded: stateful operators must commit their state for every epoch, and
        # Spark checks that they did (STATE_STORE_COMMIT_VALIDATION_FAILED).
        df.write.format("noop").mode("overwrite").save()
        plan.finish()
        return EpochReport(epoch_id, plan.decision, version=self._session.port.version)

    def _fit(self, df: DataFrame, plan: EpochPlan) -> None:
        """Compare the columns with the dataset's, if they are not those of the epoch before.

        A function that calls the sink may give it another DataFrame in each epoch. Columns that
        are to be added are added here.

        :raises SchemaMismatchError: they do not fit; see :func:`.target.fit_target`.
        """
        if self._remembered.apply_to(df) and self._columns_fit:
            return
        self._columns_fit = False
        fit = fit_target(df, self._schema, self._options)
        if fit.added.names:
            plan.add_columns(fit.added, fit.types)
            if plan.decision is not Decision.FULL_COMMIT:
                return
            port: Any = plan.port
            self._schema = port.dataset.schema
            task = replace(self._writer.task, schema=self._schema, schema_version=port.version)
            self._writer.task = task
            self._writer.versions = versions_of(self._options, self._schema)
        self._columns_fit, self._missing = True, frozenset(fit.missing)
        # Each column of a select is a round trip to the JVM.
        options = self._options
        conditions = options.delete_when or options.truncate_when or options.expectations
        evaluated = bool(conditions or self._writer.versions)
        self._as_is = df.columns == self._schema.names and not evaluated

    def _until_compared(
        self, df: DataFrame, plan: EpochPlan, ends: EndOffsets | None
    ) -> EpochReport:
        """Write and commit; do both again if others changed rows that records were compared with.

        :raises RowsChangedError: they did so every time.
        """
        for left in reversed(range(_COMPARISONS)):
            try:
                return self._write_and_commit(df, plan, ends)
            except RowsChangedError as error:
                if not left:
                    raise
                log.warning("Compared again. %s", error)
        raise AssertionError

    def _write_and_commit(
        self, df: DataFrame, plan: EpochPlan, ends: EndOffsets | None
    ) -> EpochReport:
        started_at, began, epoch_id = utc_now(), time.perf_counter(), plan.epoch_id
        port: Any = plan.port
        mode = self._options.commit_mode
        origin = origin_of(self._options, epoch_id, ends, started_at)
        self._writer.sift_for(origin)
        graves = self._tombstones.newest() if self._tombstones else None
        written = self._writer.write(self._projected(df), port.dataset, graves)
        written = replace(written, checks=written.checks + self._confirmed(epoch_id))
        write_ms = (time.perf_counter() - began) * 1000
        replaces = mode.effect.replaces_all and port.dataset.get_fragments()
        if not written.rows and not written.checks and not replaces:
            plan.finish(ends)
            version = self._session.port.version
            return EpochReport(epoch_id, None, write_ms=write_ms, version=version)
        epoch = Epoch(
            epoch_id=epoch_id,
            mode=mode,
            fragments=written.fragments,
            rows=written.rows,
            deletes=written.deletes,
            bytes=written.bytes,
            started_at=started_at,
            keys=written.keys if written.rows else None,
            lookup=written.lookup,
            merge_keys=self._options.merge_keys + ((START_AT,) if self._writer.versions else ()),
            ends=ends,
            compared_at=written.compared_at,
            checks=written.checks,
        )
        if mode.effect.strict:
            self._compaction.give_way()
        if origin:
            commit_aside(self._sides, written, self._options, origin, ends)
        self._sides.claim(epoch_id)
        if self._tombstones and written.tombstones is not None:
            self._tombstones.leave(epoch, written.tombstones)
        result = plan.commit(epoch)
        return EpochReport(
            epoch_id=epoch_id,
            decision=result.decision,
            rows=written.rows,
            deletes=written.deletes,
            fragments=len(written.fragments),
            bytes=written.bytes,
            write_ms=write_ms,
            commit_ms=result.commit_ms,
            version=result.version,
            checks=written.checks,
        )

    def _ends(self, epoch_id: int) -> EndOffsets | None:
        """Return where Spark's memory says that the epoch ends; ``None`` if it does not say."""
        lines = self._query.end_offsets(epoch_id) if self._query else None
        return EndOffsets.of(lines) if lines else None

    def _confirmed(self, epoch_id: int) -> RowChecks:
        """Refuse an epoch that was read from other topics; return what was lost of it.

        :raises SourceReplacedError, SourceNotFoundError: see :meth:`.KafkaTopics.confirm`.
        """
        if self._topics is None:
            return RowChecks()
        ends = self._query.end_offsets(epoch_id) if self._query else None
        self._topics.confirm(ends)
        if not (self._query and ends and self._topics.passes_over_loss):
            return RowChecks()
        starts = self._query.start_offsets(epoch_id)
        return RowChecks(lost=self._topics.gone(starts, ends) if starts else 0)

    def _projected(self, df: DataFrame) -> DataFrame:
        """Select the dataset's columns in its order, and the values of all conditions.

        If rows may go to the quarantine, all other columns of the stream too.
        """
        if self._as_is:
            return df
        versions = self._writer.versions
        columns = [
            F.lit(None).alias(name) if name in self._missing else F.col(quoted(name))
            for name in (versions.columns if versions else self._schema.names)
        ]
        keeps = self._options.quarantines
        more = [name for name in df.columns if name not in self._schema.names]
        columns += [F.col(quoted(name)) for name in more if keeps or name == REFUSED]
        if versions:
            columns.append(sequence_of(self._options.sequence_by).alias(SEQUENCE))
        return df.select(*columns, *self._conditions())

    def _conditions(self) -> list[Column]:
        """Return the columns of the options' conditions."""
        columns = []
        if self._options.delete_when:
            columns.append(F.expr(self._options.delete_when).alias(DELETE_FLAG))
        if self._options.truncate_when:
            columns.append(F.expr(self._options.truncate_when).alias(TRUNCATE_FLAG))
        for name, condition in self._writer.task.sieve.columns:
            columns.append(F.expr(condition).alias(name))
        return columns


def order_of(options: SinkOptions) -> Order | None:
    """Return how the records of a key are ordered, ``None`` if they are not."""
    if not options.sequence_by:
        return None
    return Order(options.merge_keys, options.sequence_by, partial=options.ignore_null_updates)


def _task(options: SinkOptions, schema: pa.Schema, run_id: str) -> WriteTask:
    return WriteTask(
        uri=options.uri,
        run_id=run_id,
        schema=schema,
        small_epoch_rows=options.small_epoch_rows,
        target_rows_per_fragment=options.target_rows_per_fragment,
        merge_keys=options.merge_keys,
        flagged=options.delete_when is not None,
        replace_invalid_text=options.replace_invalid_text,
        sieve=Sieve(options.expectations, options.keep_refused),
        storage_options=dict(options.storage_options),
    )
