"""Records in the order of their sequences: what an epoch changes in a table, whatever arrives when.

Of the records with one key the one with the greatest sequence counts. With one sequence, a delete
counts before an upsert, and of two upserts the greater row by its columns in order. A record counts
only if it is newer than the table's row of its key, than the key's tombstone, and than the newest
truncate; a delete with the very sequence of one of these counts too, so that it can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.spark.ranks import ranks

__all__ = [
    "Order",
    "Resolved",
    "Stored",
    "Truncation",
    "refuse_unordered",
    "unordered",
    "without_order",
]

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

_NONE = -1


@dataclass(frozen=True, slots=True)
class Stored:
    """What a table had at one version.

    ``rows`` have at least its merge keys and sequence columns, with partial updates all columns:
    at least every row of the keys in question. ``tombstones`` have merge keys and sequence columns;
    those of a truncate have null keys.
    """

    rows: pa.Table
    tombstones: pa.Table


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an epoch changes.

    ``rows`` are to be added, each key once, in place of the table's rows of their keys. ``removed``
    are the keys of rows that are deleted. ``tombstones`` are to be remembered, with merge keys and
    sequence columns. ``deletes`` counts the records that delete, ``late`` those that came after
    something newer was in the table, ``superseded`` those that the epoch itself makes void.
    """

    rows: pa.Table
    removed: pa.Table
    tombstones: pa.Table
    deletes: int
    late: int
    superseded: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """What an epoch's truncates do; ``sequence`` is the newest one, without rows if none counts.

    ``removed`` are the keys of the rows that the table had up to it.
    """

    sequence: pa.Table
    removed: pa.Table
    tombstones: pa.Table
    late: int
    superseded: int


@dataclass(frozen=True, slots=True)
class Order:
    """Which columns identify a row, and which order its records.

    With ``partial``, a null in a newer record keeps the value before it.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    partial: bool = False

    @property
    def names(self) -> list[str]:
        """Return the merge keys, then the sequence columns."""
        return [*self.keys, *self.columns]

    def tombstones_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the tombstones of a table with this schema."""
        return pa.schema([pa.field(name, schema.field(name).type) for name in self.names])

    def truncate(self, truncates: pa.Table, stored: Stored) -> Truncation:
        """Return what an epoch's truncates do.

        :param truncates: their sequence columns.
        :param stored: all rows of the table, if there are truncates.
        """
        known = stored.tombstones.filter(pc.is_null(stored.tombstones[self.keys[0]]))
        new, rows, old = self._ranked(truncates, stored.rows, known)
        bound = old.max(initial=_NONE)
        counts = new >= bound
        late = len(new) - int(np.count_nonzero(counts))
        newest, sequences = new.max(initial=_NONE), truncates.select(self.columns)
        if newest < bound or not len(new):
            newest, sequences = _NONE, sequences.slice(0, 0)
        else:
            sequences = sequences.slice(int(np.argmax(new)), 1)
        fresh = sequences.slice(0, int(newest > bound))
        return Truncation(
            sequence=sequences,
            removed=stored.rows.select(self.keys).filter(pa.array(rows <= newest)),
            tombstones=_with_null_keys(fresh, known.schema),
            late=late,
            superseded=len(new) - late - sequences.num_rows,
        )

    def resolve(
        self, upserts: pa.Table, deletes: pa.Table, stored: Stored, truncate: pa.Table | None = None
    ) -> Resolved:
        """Return what an epoch's upserts and deletes do, all of those with one key at once.

        :param upserts: rows of the table's schema, without null keys or sequences.
        :param deletes: merge keys and sequence columns, likewise.
        :param truncate: the sequence of the epoch's newest truncate, if it has one.
        """
        keyed = stored.tombstones.filter(pc.is_valid(stored.tombstones[self.keys[0]]))
        whole = stored.tombstones.filter(pc.is_null(stored.tombstones[self.keys[0]]))
        cut = truncate if truncate is not None else whole.slice(0, 0)
        tables = (upserts, deletes, stored.rows, keyed)
        key_up, key_del, key_row, key_grave = _split(ranks(_stack(tables, self.keys)), tables)
        up, dele, row, grave, old, new = self._ranked(*tables, whole, cut)
        number = max(int(each.max(initial=-1)) for each in (key_up, key_del, key_row, key_grave))
        before = _highest(number, key_row, row)
        dead = np.maximum(_highest(number, key_grave, grave), old.max(initial=_NONE))
        cut_at = new.max(initial=_NONE)

        # 1. What is not newer than what the table knows is late.
        in_time_up = up > np.maximum(before, dead)[key_up]
        in_time_del = dele >= np.maximum(before, dead)[key_del]
        late = _count(~in_time_up) + _count(~in_time_del)

        # 2. Of the others, a delete or truncate makes void what it is not older than.
        in_time_del &= dele > cut_at
        ended = _highest(number, key_del[in_time_del], dele[in_time_del])
        alive = in_time_up & (up > np.maximum(ended, cut_at)[key_up])
        winners = np.flatnonzero(alive)
        last = _highest(number, key_up[winners], up[winners])

        # 3. Of the upserts that are left, the newest counts; with partial updates, each.
        if not self.partial:
            winners = winners[up[winners] == last[key_up[winners]]]
        width = int(up.max(initial=0)) + 1
        winners = _greatest(upserts, winners, key_up[winners] * width + up[winners])
        rows = upserts.take(pa.array(winners))
        if self.partial:
            live = before > np.maximum(np.maximum(ended, cut_at), dead)
            basis = np.flatnonzero(live[key_row] & (row == before[key_row]) & (last[key_row] >= 0))
            basis = basis[np.unique(key_row[basis], return_index=True)[1]]
            under = stored.rows.select(rows.column_names).take(pa.array(basis)).cast(rows.schema)
            keys = np.concatenate([key_row[basis], key_up[winners]])
            at = np.concatenate([row[basis], up[winners]])
            rows = _folded(pa.concat_tables([under, rows]), keys, at)

        # 4. A key without such an upsert is deleted by its newest delete.
        ends = in_time_del & (dele == ended[key_del]) & (last[key_del] == _NONE)
        final = np.flatnonzero(ends)
        final = final[np.unique(key_del[final], return_index=True)[1]]
        gone = deletes.take(pa.array(final))
        there = np.isin(key_del[final], key_row)

        # 5. Remembered is a key's newest delete, as the epoch's own records and the tombstones say:
        # if rows change and the epoch is compared again, the same ones are.
        newest = np.maximum(_highest(number, key_up, up), np.maximum(dead, cut_at))
        final_del = (dele >= _highest(number, key_del, dele)[key_del]) & (dele > dead[key_del])
        left = np.flatnonzero(final_del & (dele >= newest[key_del]) & (dele > cut_at))
        left = left[np.unique(key_del[left], return_index=True)[1]]
        graves = deletes.select(self.names).take(pa.array(left)).cast(keyed.schema)
        return Resolved(
            rows=rows,
            removed=gone.select(self.keys).filter(pa.array(there)),
            tombstones=graves,
            deletes=len(final),
            late=late,
            superseded=len(up) + len(dele) - late - len(final) - rows.num_rows,
        )

    def _ranked(self, *tables: pa.Table) -> list[_Ints]:
        return _split(ranks(_stack(tables, self.columns)), tables)


def refuse_unordered(table: pa.Table, columns: Iterable[str]) -> None:
    """Refuse records without a sequence.

    :raises RowsRefusedError: a sequence is null or NaN, or a part of it is.
    """
    for path, rows in unordered(table, columns):
        raise without_order(path, len(rows))


def unordered(table: pa.Table, columns: Iterable[str]) -> Iterator[tuple[str, pa.Array]]:
    """Yield each part of the sequence that is null or NaN in some rows, and their positions."""
    for name in columns:
        for path, array in _parts(name, table[name].combine_chunks()):
            rows = pc.indices_nonzero(array.is_null(nan_is_null=True))
            if len(rows):
                yield path, rows


def without_order(path: str, count: int) -> RowsRefusedError:
    """Return the error for rows without a sequence."""
    return RowsRefusedError(
        f"sequenceBy: {path!r} is null or NaN in {count} rows, which then have no place in the "
        "order of changes. Filter or COALESCE them in sql, or choose other columns. Nothing of "
        "this epoch was committed",
        reason=f"sequence {path!r} is null or NaN",
    )


def _parts(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    yield path, array
    if pt.is_struct(array.type):
        for field, part in zip(array.type, array.flatten(), strict=True):
            yield from _parts(f"{path}.{field.name}", part)


def _with_null_keys(sequences: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the tombstones of truncates."""
    columns = [
        sequences[field.name]
        if field.name in sequences.column_names
        else pa.nulls(sequences.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _stack(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """Return the named columns of several tables, one below the other."""
    columns = []
    for name in names:
        kind = tables[0][name].type
        chunks = [chunk.cast(kind) for table in tables for chunk in table[name].chunks]
        columns.append(pa.chunked_array(chunks, kind))
    return pa.table(columns, list(names))


def _split(numbers: _Ints, tables: Iterable[pa.Table]) -> list[_Ints]:
    sizes = [table.num_rows for table in tables]
    return np.split(numbers, np.cumsum(sizes)[:-1])


def _count(flags: _Flags) -> int:
    return int(np.count_nonzero(flags))


def _highest(number: int, keys: _Ints, values: _Ints) -> _Ints:
    """Return the highest value of each key up to a number, -1 for a key without any."""
    highest = np.full(number + 1, _NONE)
    np.maximum.at(highest, keys, values)
    return highest


def _greatest(rows: pa.Table, chosen: _Ints, groups: _Ints) -> _Ints:
    """Return one of the chosen rows of each group: the greatest by the columns in order."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    several = sizes[group] > 1
    if not several.any():
        return chosen
    doubled = chosen[several]
    order = np.lexsort([ranks(_with_signs(rows.take(pa.array(doubled)))), group[several]])
    last = np.append(np.diff(group[several][order]) > 0, True)
    return np.sort(np.concatenate([chosen[~several], doubled[order][last]]))


def _with_signs(rows: pa.Table) -> pa.Table:
    """Append the sign of each float: 0.0 and -0.0 have one rank, and are two rows."""
    for name in rows.column_names:
        if pt.is_floating(rows[name].type):
            positive = ~np.signbit(rows[name].cast(pa.float64()).to_numpy())
            rows = rows.append_column(f"{name} sign", pa.array(positive))
    return rows


def _folded(rows: pa.Table, keys: _Ints, at: _Ints) -> pa.Table:
    """Return one row for each key: in each column, its newest value that is not null."""
    order = np.lexsort([at, keys])
    rows, keys = rows.take(pa.array(order)), keys[order]
    _, group = np.unique(keys, return_inverse=True)
    columns = []
    for column in rows.columns:
        position = np.where(column.is_valid().to_numpy(), np.arange(len(rows)), _NONE)
        newest = _highest(int(group.max(initial=-1)), group, position)
        columns.append(column.take(pa.array(newest, mask=newest == _NONE)))
    return pa.Table.from_arrays(columns, schema=rows.schema)
