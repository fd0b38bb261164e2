"""An epoch's records beside what the table and its tombstones have: in a task, or on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.row_ids import (
    KeyLookup,
    KeyPositions,
    look_up,
    through_index,
)
from airflow_provider_lance.spark.casts import with_negative_zeros
from airflow_provider_lance.spark.ranks import ranks
from airflow_provider_lance.spark.sequencing import (
    Order,
    Resolved,
    Stored,
    Truncation,
    refuse_unordered,
)

__all__ = ["Comparison", "remembered", "whole_keys"]

_BATCH_ROWS = 262_144


@dataclass(frozen=True)
class Comparison:
    """With what the records of one epoch are compared; travels to the executors.

    ``version`` is the table's, ``tombstones`` the place and version of those it has, and
    ``truncate`` the sequence of the epoch's newest truncate. The result holds only while nobody
    changes rows of the table.
    """

    order: Order
    version: int
    tombstones: tuple[str, int] | None = None
    truncate: pa.Table | None = None

    @property
    def row_keys(self) -> list[str]:
        """Return the columns that identify a row of the table."""
        return list(self.order.keys)

    def tombstones_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the tombstones of a table with this schema."""
        return self.order.tombstones_of(schema)

    def resolve(
        self, upserts: pa.Table, deletes: pa.Table, table: Any, tombstones: Any
    ) -> tuple[Resolved, KeyLookup]:
        """Return what records do, all of those with one key at once, and which rows they meet.

        :param table: a handle of the table at `version`.
        :param tombstones: a handle of the tombstones at their version, ``None`` without any.
        :raises StorageUnavailableError: the table could not be read.
        """
        order, schema = self.order, upserts.schema
        keyed = [each.select(order.keys) for each in (upserts, deletes)]
        keys = pa.concat_tables([each.cast(keyed[0].schema) for each in keyed])
        keys = with_negative_zeros(keys.group_by(list(order.keys)).aggregate([]))
        with reading(table.uri):
            found = look_up(table, keys, order.columns)
            rows = self._rows(table, found, schema)
        stored = Stored(rows, remembered(tombstones, keys, order.tombstones_of(schema)))
        return order.resolve(upserts, deletes, stored, self.truncate), found

    def truncation(self, truncates: pa.Table, table: Any, tombstones: Any) -> Truncation:
        """Return what an epoch's truncates do; reads all keys of the table if there are any.

        :param truncates: their sequence columns.
        :raises RowsRefusedError: a truncate has no sequence.
        """
        refuse_unordered(truncates, self.order.columns)
        schema, names = table.schema, self.order.names
        kept = self.order.tombstones_of(schema)
        rows = kept.empty_table()
        if truncates.num_rows:
            with reading(table.uri):
                rows = table.to_table(columns=names, batch_size=_BATCH_ROWS)
        none = kept.empty_table().select(self.order.keys)
        return self.order.truncate(truncates, Stored(rows, remembered(tombstones, none, kept)))

    def _rows(self, table: Any, found: KeyLookup, schema: pa.Schema) -> pa.Table:
        """Return the rows that were found: keys and sequences, with partial updates all columns."""
        if self.order.partial:
            ids = found.rows["_rowid"].to_pylist()
            taken: pa.Table = table._take_rows(ids, columns=schema.names) if ids else None
            return taken if ids else schema.empty_table()
        keys = found.keys.take(found.rows["position"].combine_chunks())
        columns = [keys[name] for name in self.order.keys]
        columns += [found.rows[name] for name in self.order.columns]
        return pa.table(columns, self.order.tombstones_of(schema))


def remembered(tombstones: Any, keys: pa.Table | None, kept: pa.Schema) -> pa.Table:
    """Return the tombstones of some keys, and those of truncates, whose keys are null.

    :param tombstones: a handle of theirs, ``None`` without any.
    :param keys: the merge keys, each once; ``None`` for all.
    :param kept: the columns to return.
    :raises StorageUnavailableError: they could not be read.
    """
    found = [kept.empty_table()]
    if tombstones is None:
        return found[0]
    positions = KeyPositions(keys) if keys is not None and keys.num_rows else None
    chosen = None if keys is None else through_index(tombstones, keys, nulls=True)
    with reading(tombstones.uri):
        scanner = tombstones.scanner(columns=kept.names, filter=chosen, batch_size=_BATCH_ROWS)
        for batch in scanner.to_batches():
            each = pa.Table.from_batches([batch]).cast(kept)
            if keys is not None:
                wanted = pc.is_null(each[keys.column_names[0]])
                if positions:
                    wanted = pc.or_(wanted, pc.is_valid(positions.of(each)))
                each = each.filter(wanted)
            found.append(each)
    return pa.concat_tables(found)


def whole_keys(batches: Iterator[pa.RecordBatch], keys: list[str], size: int) -> Iterator[pa.Table]:
    """Yield parts of rows that are sorted by key, each with all rows of its keys.

    :param size: the bytes in memory after which a part ends with the next key.
    """
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) < size:
            continue
        rows = pa.Table.from_batches(held)
        number = ranks(rows.select(keys))
        last = int(np.argmax(number == number[-1]))
        if last:
            yield rows.slice(0, last)
            held = rows.slice(last).to_batches()
    if held:
        yield pa.Table.from_batches(held)
