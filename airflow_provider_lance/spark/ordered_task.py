"""What a task does with records that have an order: it writes what is left of them.

It gets all records of its keys, sorted by key; see :mod:`.sequencing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import pyarrow as pa

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.row_ids import KeyLookup, known_first
from airflow_provider_lance.spark.aside import Aside, QuarantineBuffer
from airflow_provider_lance.spark.casts import conform
from airflow_provider_lance.spark.comparison import Comparison, whole_keys
from airflow_provider_lance.spark.sequencing import (
    Truncation,
    refuse_unordered,
    unordered,
    without_order,
)
from airflow_provider_lance.spark.writer import LOOKUP_BYTES, WriteTask, message, to_ipc

__all__ = ["TRUNCATE_FLAG", "OrderedTask", "ResolvedRows"]

TRUNCATE_FLAG = "__lance_truncate"
"""The boolean column that holds the value of `truncateWhen`; it never reaches the dataset."""


@dataclass(frozen=True)
class ResolvedRows:
    """What is left of records that have an order.

    ``added`` has the dataset's schema, ``keys`` those of its rows and then those that are deleted.
    ``aside`` are rows for the quarantine.
    """

    added: pa.Table
    keys: pa.Table
    deletes: int
    tombstones: pa.Table
    checks: RowChecks
    lookup: KeyLookup | None
    aside: Sequence[Aside] = ()


@dataclass(frozen=True, kw_only=True)
class OrderedTask(WriteTask):
    """A write task for one epoch whose records are compared with what the table has."""

    comparison: Comparison

    @classmethod
    def of(cls, task: WriteTask, comparison: Comparison) -> Self:
        """Return a task with one epoch's comparison."""
        values = {each.name: getattr(task, each.name) for each in fields(task)}
        return cls(**values, comparison=comparison)

    @property
    def _key_schema(self) -> pa.Schema:
        return self.comparison.order.tombstones_of(self.schema)

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Refuse records without a sequence, and divide the others."""
        refuse_unordered(table, self.comparison.order.columns)
        return super().split(table)

    def _refused(self, table: pa.Table) -> dict[int, RowsRefusedError]:
        found = super()._refused(table)
        for path, rows in unordered(table, self.comparison.order.columns):
            found |= dict.fromkeys(rows.to_pylist(), without_order(path, 1))
        return found

    def _write(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Write what is left of records that are sorted by key."""
        with reading(self.uri):
            table = self._port().dataset.checkout_version(self.comparison.version)
        tombstones = self._tombstones()
        fragments: list[Any] = []
        added: list[pa.Table] = []
        removed: list[pa.Table] = []
        graves: list[pa.Table] = []
        rows = deletes = size = 0
        checks, aside = RowChecks(), QuarantineBuffer(self.sieve.origin)
        try:
            for part in whole_keys(iter(batches), list(self.merge_keys), LOOKUP_BYTES):
                found = self.resolve(part, table, tombstones)
                landed = found.added.num_rows
                fragments += self.write(found.added.to_reader(), table) if landed else []
                added.append(found.keys.slice(0, landed))
                removed.append(found.keys.slice(landed))
                graves.append(found.tombstones)
                aside.add(found.aside)
                rows, deletes = rows + landed + found.deletes, deletes + found.deletes
                size, checks = size + found.added.nbytes, checks + found.checks
        except RowsRefusedError as error:
            return message(rows=rows, refusal=str(error))
        return message(
            rows=rows,
            deletes=deletes,
            bytes=size,
            fragments=json.dumps([fragment.to_json() for fragment in fragments]),
            keys=to_ipc(pa.concat_tables([*added, *removed])),
            checks=json.dumps(checks.encode()),
            tombstones=to_ipc(pa.concat_tables(graves)),
            aside=None if aside.rest is None else to_ipc(aside.rest),
            aside_fragments=json.dumps([each.to_json() for each in aside.fragments]),
        )

    def _tombstones(self) -> Any:
        """Return a handle of the tombstones that records are compared with, if there are any."""
        if self.comparison.tombstones is None:
            return None
        uri, version = self.comparison.tombstones
        return open_dataset(
            uri, self.storage_options, version=version, cache_bytes=LOOK_CACHE_BYTES
        ).dataset

    def resolve(self, rows: pa.Table, table: Any, tombstones: Any) -> ResolvedRows:
        """Return what is left of records, all of those with one key at once.

        :param table: a handle at the version of `comparison`; `tombstones` likewise.
        :raises RowsRefusedError: a value does not fit, or a key or sequence is null.
        :raises StorageUnavailableError: the table could not be read.
        """
        added, doomed, sifted = self.divide(rows)
        if doomed is None:
            doomed = self.comparison.order.tombstones_of(self.schema).empty_table()
        found, lookup = self.comparison.resolve(added, doomed, table, tombstones)
        added, names = found.rows, list(self.merge_keys)
        if added.num_rows and table.has_stable_row_ids:
            known = lookup.of(added.select(names))
            added = known_first(added, known) if known else added
        keys = added.select(names)
        return ResolvedRows(
            added=added,
            keys=pa.concat_tables([keys, found.removed.cast(keys.schema)]),
            deletes=found.deletes,
            tombstones=found.tombstones,
            checks=sifted.checks + RowChecks(late=found.late, superseded=found.superseded),
            lookup=lookup,
            aside=sifted.aside,
        )

    def truncation(
        self, rows: pa.Table, table: Any, tombstones: Any
    ) -> tuple[Truncation, RowChecks]:
        """Return what the records that truncate do.

        :raises RowsRefusedError: one of them has no sequence.
        """
        names = list(self.comparison.order.columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        cut = self.comparison.truncation(conform(rows.select(names), schema), table, tombstones)
        return cut, RowChecks(late=cut.late, superseded=cut.superseded)
