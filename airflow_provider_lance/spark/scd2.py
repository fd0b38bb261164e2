"""The history of a key's rows (`scdType=2`): versions rebuilt from what is stored and what is new.

A key's table is a function of its records, whatever their order of arrival. Records in the order of
their sequences: an upsert begins a version, which the next record ends; a delete only ends one. Of
records with one sequence a delete counts, then the one that is known, then the greatest row.

What the table itself remembers: each version's values at ``__start_at``, and that a version was
deleted, by an ``__end_at`` at which no other begins. What it does not, the caller keeps and gives
back as `remembered`: deletes, truncates, and with tracked columns each record of a version that was
made of several. As long as they are kept, the result is exact for a record of any age. Without
them, a delete that ended no version is unknown to a later record below its sequence, and a version
made of several records counts as one record at its ``__start_at``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.spark.ranks import ranks

__all__ = ["END_AT", "OPERATION", "SEQUENCE", "START_AT", "Operation", "Rebuilt", "Versions"]

START_AT, END_AT = "__start_at", "__end_at"
"""The columns of a version's validity; the end of the one that is valid now is null."""

SEQUENCE, OPERATION = "__lance_sequence", "__lance_operation"
"""The columns of a change that say when it happened and what it does; see :class:`Operation`."""

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

_NONE = -1


class Operation:
    """What a change does: upsert its row, delete its key's, or (without a key) delete all rows."""

    UPSERT, DELETE, TRUNCATE = 0, 1, 2


@dataclass(frozen=True)
class Rebuilt:
    """What an epoch changes in a history table.

    ``write`` are versions in the dataset's schema, new ones and those that replace the stored one
    of their key and ``__start_at``. ``remove`` are merge keys and ``__start_at`` of stored versions
    that are no more. ``remember`` has the columns of :attr:`Versions.remembered_schema`.
    ``deletes`` counts the deletes and truncates, ``superseded`` the changes that another record
    with their sequence makes void.
    """

    write: pa.Table
    remove: pa.Table
    remember: pa.Table
    deletes: int
    superseded: int


@dataclass(frozen=True)
class Versions:
    """How a table's versions are made: its schema, merge keys, and columns that begin a version.

    Consecutive versions that agree in all `tracked` columns are one: it has the values of the
    newest and the start of the oldest. Without `tracked`, each record is a version.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    tracked: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Return the dataset's columns without the two of validity."""
        return [name for name in self.schema.names if name not in (START_AT, END_AT)]

    @property
    def changes_schema(self) -> pa.Schema:
        """Return the columns of changes and of what is remembered, all of them nullable."""
        values = [pa.field(name, self.schema.field(name).type) for name in self.columns]
        sequence = pa.field(SEQUENCE, self.schema.field(START_AT).type)
        return pa.schema([*values, sequence, pa.field(OPERATION, pa.int8())])

    @property
    def remembered_schema(self) -> pa.Schema:
        """Return the columns that are kept of what is remembered: values if some are tracked."""
        names = [*(self.columns if self.tracked else self.keys), SEQUENCE, OPERATION]
        return pa.schema([self.changes_schema.field(name) for name in names])

    def rebuild(self, stored: pa.Table, remembered: pa.Table, changes: pa.Table) -> Rebuilt:
        """Return what an epoch changes.

        :param stored: rows of the dataset: for each key in the changes, at least those versions
            whose end is null, or not below the key's first change; likewise for all keys if the
            changes truncate. Others do no harm.
        :param remembered: at least the keys' records, and all truncates.
        :param changes: the epoch's records, without null keys (but for truncates) or sequences.
        """
        return _Rebuild(self, stored, remembered, changes).result()


class _Rebuild:
    """One epoch's work. Rows are counted in one table: remembered, stored, then new ones.

    Keys and sequences are numbers here, see :func:`.ranks`; ``at`` is one number for both.
    """

    def __init__(
        self, of: Versions, stored: pa.Table, remembered: pa.Table, changes: pa.Table
    ) -> None:
        schema = of.changes_schema
        parts = [schema.empty_table(), remembered]
        known = pa.concat_tables(parts, promote_options="default").select(schema.names)
        new = changes.select(schema.names)
        truncates = [each.filter(_is(each, Operation.TRUNCATE)) for each in (known, new)]
        known, new = [
            each.filter(pc.invert(_is(each, Operation.TRUNCATE))) for each in (known, new)
        ]
        asked = stored.select(of.columns).append_column(SEQUENCE, stored[START_AT])
        asked = asked.append_column(OPERATION, _constant(Operation.UPSERT, len(stored)))
        self.of, self.stored, self.changes = of, stored, len(changes)
        self.rows = pa.concat_tables([each.cast(schema) for each in (known, asked, new)])
        self.first_stored, self.first_new = len(known), len(known) + len(stored)
        self.key = ranks(self.rows.select(list(of.keys)))
        ended = stored[END_AT].is_valid().to_numpy()
        columns = [self.rows[SEQUENCE], stored[END_AT].drop_null()]
        columns += [each[SEQUENCE] for each in truncates]
        self.sequences = pa.chunked_array(
            [c for column in columns for c in column.chunks], columns[0].type
        )
        rank = ranks(pa.table([self.sequences], [SEQUENCE]))
        self.width = int(rank.max(initial=0)) + 1
        self.sequence_of_rank = np.zeros(self.width, np.int64)
        # Of equal sequences, the stored one: by its bits the row is found again, 0.0 or -0.0.
        for part in (slice(None), slice(self.first_stored, self.first_new)):
            self.sequence_of_rank[rank[part]] = np.arange(len(rank))[part]
        sizes = [len(column) for column in columns]
        self.rank, ends, old, late = np.split(rank, np.cumsum(sizes)[:-1])
        self.end = np.full(len(stored), _NONE)
        self.end[ended] = ends
        self.old_truncates, self.new_truncates = np.unique(old), np.unique(late)

    def result(self) -> Rebuilt:
        at = self._at(self.key, self.rank)
        stored, lowest = self._bounds()
        doomed = self.rows[OPERATION].to_numpy() == Operation.DELETE
        relevant = self.rank >= lowest[self.key]
        relevant[self.first_stored : self.first_new] = False
        relevant[self.first_stored + stored] = True
        known, new = (
            np.unique(at[part][(relevant & doomed)[part]])
            for part in (slice(self.first_stored), slice(self.first_new, None))
        )
        starts = at[self.first_stored : self.first_new]
        ends = self._at(self.key[self.first_stored : self.first_new], self.end)
        ends = ends[stored][self.end[stored] != _NONE]
        implied = ends[~np.isin(ends, starts[stored])]
        deletes = _union(
            known, new, implied, self._truncated(np.unique(self.key[relevant]), lowest)
        )

        upserts = self._upserts(np.flatnonzero(relevant & ~doomed), at, deletes)
        when = np.concatenate([at[upserts], deletes])
        source = np.concatenate([upserts, np.full(len(deletes), _NONE)])
        order = np.argsort(when, kind="stable")
        when, source = when[order], source[order]

        begins = self._begins(when, source)
        bounds = np.flatnonzero(begins | (source == _NONE))
        after = np.append(bounds, len(when))[1:]
        bounds, after = bounds[begins[bounds]], after[begins[bounds]]
        start, newest = when[bounds], source[after - 1]
        following = np.append(when, _NONE)[after]
        ends_at = np.where(following // self.width == start // self.width, following, _NONE)
        end = np.where(ends_at == _NONE, _NONE, ends_at % self.width)

        changed = self._changed(start, end, newest, stored[np.argsort(starts[stored])], starts)
        gone = stored[~np.isin(starts[stored], start)]
        kept = np.setdiff1d(_union(new, np.setdiff1d(implied, ends_at)), known)
        sizes = after - bounds
        merged = (
            source[source != _NONE][np.repeat(sizes > 1, sizes)] if self.of.tracked else gone[:0]
        )
        won = int(np.count_nonzero(upserts >= self.first_new))
        ended = len(new) + len(self.new_truncates)
        return Rebuilt(
            write=self._versions(newest[changed], start[changed] % self.width, end[changed]),
            remove=self.stored.select([*self.of.keys, START_AT]).take(pa.array(gone)),
            remember=self._remember(kept, merged[merged >= self.first_stored]),
            deletes=ended,
            superseded=self.changes - won - ended,
        )

    def _at(self, key: _Ints, rank: _Ints) -> _Ints:
        return key * self.width + rank

    def _bounds(self) -> tuple[_Ints, _Ints]:
        """Return the stored versions that may change, and for each key the rank of the first.

        A version that ended before its key's first change is not seen by any of its changes; nor is
        a record that is remembered from before it.
        """
        new, stored = slice(self.first_new, None), slice(self.first_stored, self.first_new)
        first = np.full(int(self.key.max(initial=0)) + 1, self.width)
        np.minimum.at(first, self.key[new], self.rank[new])
        if len(self.new_truncates):
            first = np.minimum(first, self.new_truncates[0])
        key, start = self.key[stored], self.rank[stored]
        usable = (first[key] < self.width) & ((self.end == _NONE) | (self.end >= first[key]))
        np.minimum.at(first, key[usable], start[usable])
        return np.flatnonzero(usable), first

    def _truncated(self, keys: _Ints, lowest: _Ints) -> _Ints:
        """Return where truncates delete these keys."""
        truncates = np.union1d(self.old_truncates, self.new_truncates)
        key, rank = np.repeat(keys, len(truncates)), np.tile(truncates, len(keys))
        return self._at(key, rank)[rank >= lowest[key]]

    def _upserts(self, index: _Ints, at: _Ints, deletes: _Ints) -> _Ints:
        """Return the rows that count, one for each key and sequence."""
        index = index[~np.isin(at[index], deletes)]
        known, new = index[index < self.first_new], index[index >= self.first_new]
        new = new[~np.isin(at[new], at[known])]
        several, counts = np.unique(at[new], return_counts=True)
        if len(tied := new[np.isin(at[new], several[counts > 1])]):
            greatest = ranks(self.rows.take(pa.array(tied)).select(self.of.columns))
            tied = tied[np.argsort(-greatest, kind="stable")]
            new = np.concatenate([tied, new[~np.isin(new, tied)]])
        index = np.concatenate([known, new])  # what is remembered before what is stored
        return index[np.unique(at[index], return_index=True)[1]]

    def _begins(self, when: _Ints, source: _Ints) -> _Flags:
        """Return which records begin a version: those whose predecessor is not like them."""
        begins: _Flags = source != _NONE
        if not self.of.tracked:
            return begins
        kind = np.full(len(source), _NONE)
        taken = self.rows.select(list(self.of.tracked)).take(pa.array(source[begins]))
        kind[begins] = ranks(taken)
        key = when // self.width
        like = (kind[1:] == kind[:-1]) & (key[1:] == key[:-1])
        begins[1:] &= ~like
        return begins

    def _changed(
        self, start: _Ints, end: _Ints, newest: _Ints, stored: _Ints, starts: _Ints
    ) -> _Flags:
        """Return which versions are not in the dataset as they are.

        :param stored: the numbers of stored versions, in the order of their `starts`.
        """
        changed = np.ones(len(start), np.bool_)
        if not len(stored):
            return changed
        near = np.minimum(np.searchsorted(starts[stored], start), len(stored) - 1)
        same = stored[near]
        there = np.flatnonzero((starts[same] == start) & (self.end[same] == end))
        mine, theirs = newest[there], self.first_stored + same[there]
        changed[there[mine == theirs]] = False
        there, mine, theirs = (each[mine != theirs] for each in (there, mine, theirs))
        both = self.rows.select(self.of.columns).take(pa.array(np.concatenate([mine, theirs])))
        left, right = np.split(ranks(both), 2)
        changed[there[left == right]] = False
        return changed

    def _versions(self, source: _Ints, start: _Ints, end: _Ints) -> pa.Table:
        rows = self.rows.select(self.of.columns).take(pa.array(source))
        rows = rows.append_column(START_AT, self._sequences(start))
        rows = rows.append_column(END_AT, self._sequences(end))
        return rows.select(self.of.schema.names).cast(self.of.schema)

    def _remember(self, deletes: _Ints, records: _Ints) -> pa.Table:
        schema = self.of.changes_schema
        key, rank = deletes // self.width, deletes % self.width
        owner = np.zeros(int(self.key.max(initial=0)) + 1, np.int64)
        owner[self.key] = np.arange(len(self.key))
        rows = self.rows.select(list(self.of.keys)).take(pa.array(owner[key]))
        rows = rows.append_column(SEQUENCE, self._sequences(rank))
        rows = rows.append_column(OPERATION, _constant(Operation.DELETE, len(rows)))
        fresh = np.setdiff1d(self.new_truncates, self.old_truncates)
        truncates = pa.table([self._sequences(fresh)], [SEQUENCE])
        truncates = truncates.append_column(OPERATION, _constant(Operation.TRUNCATE, len(fresh)))
        parts = [schema.empty_table(), self.rows.take(pa.array(records)), rows, truncates]
        every = pa.concat_tables(parts, promote_options="default").cast(schema)
        return every.select(self.of.remembered_schema.names)

    def _sequences(self, rank: _Ints) -> pa.ChunkedArray:
        at = pa.array(self.sequence_of_rank[rank], mask=rank == _NONE)
        return self.sequences.take(at)


def _is(rows: pa.Table, operation: int) -> pa.ChunkedArray:
    return pc.equal(rows[OPERATION], operation)


def _constant(value: int, length: int) -> pa.Array:
    return pa.array(np.full(length, value, np.int8))


def _union(*parts: _Ints) -> _Ints:
    return np.unique(np.concatenate(parts))
