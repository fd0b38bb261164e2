"""How a task writes its partition of an epoch.

Each task counts its rows as they pass. A partition of a small epoch sends its rows to the driver,
which writes them together: one fragment instead of one per task. A larger partition is written by
its task, which sends only the fragments' metadata, plus the merge keys of an upsert. See
:mod:`.collect_fragments` for the driver's part.

Where an upsert keeps row ids, the writer of rows looks up their keys first, and writes the rows of
known keys before the others; see :mod:`~airflow_provider_lance.protocol.row_ids`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.dataset import (
    LOOK_CACHE_BYTES,
    LanceDatasetPort,
    open_dataset,
)
from airflow_provider_lance.protocol.lance_errors import is_panic, reading, write_error
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.row_ids import KeyLookup, known_first, look_up
from airflow_provider_lance.spark.aside import QuarantineBuffer
from airflow_provider_lance.spark.casts import conform, misfits, one_form_of_floats
from airflow_provider_lance.spark.sieve import DELETE_FLAG, Sieve, Sifted

__all__ = [
    "INLINE_BYTES",
    "LOOKUP_BYTES",
    "MESSAGE_SCHEMA",
    "WriteTask",
    "message",
    "null_keys",
    "to_ipc",
]

MESSAGE_SCHEMA = """
    rows LONG, deletes LONG, bytes LONG,
    data BINARY, fragments STRING, keys BINARY, refusal STRING, checks STRING,
    aside BINARY, aside_fragments STRING, tombstones BINARY
"""
"""One message per task: `data`, or `fragments` and in an upsert `keys`, or a `refusal`.

`checks` are the counts of its expectations, where the task has sifted the rows itself; `aside` and
`aside_fragments` then hold the rows for the quarantine. `tombstones` are the deleted keys to
remember, where records have an order.
"""

INLINE_BYTES = 2 * 1024 * 1024
"""The most that one task may send to the driver: 400 tasks stay below spark.driver.maxResultSize.
"""

LOOKUP_BYTES = 64 * 1024 * 1024
"""The rows in memory whose keys a task looks up at once, and writes into fragments of their own."""

_opened: dict[tuple[str, str, int], LanceDatasetPort] = {}
"""The dataset's port of this Python worker, kept across tasks: opening loads the manifest."""


@dataclass(frozen=True)
class WriteTask:
    """What an executor needs to write a partition; pickled into the task, never logged."""

    uri: str
    run_id: str
    schema: pa.Schema
    small_epoch_rows: int
    target_rows_per_fragment: int
    merge_keys: tuple[str, ...] = ()
    flagged: bool = False
    replace_invalid_text: bool = False
    sieve: Sieve = Sieve()
    schema_version: int = 0
    inline_bytes: int = INLINE_BYTES
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a Python worker under ``mapInArrow``; yield one message, or none for no rows."""
        buffered, rest = self._buffer(batches)
        if not buffered:
            return
        if rest is None:
            table = pa.Table.from_batches(buffered)
            yield message(rows=table.num_rows, bytes=table.nbytes, data=to_ipc(table))
            return
        yield self._write(chain(buffered, rest))

    def _buffer(
        self, batches: Iterator[pa.RecordBatch]
    ) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
        """Take batches until the partition is known to be small, or known not to be."""
        buffered: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            buffered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > self.small_epoch_rows or size > self.inline_bytes:
                return buffered, batches
        return buffered, None

    def _write(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        counted = _Counted(self)
        fragments: list[Any] = []
        try:
            for part in self._parts(counted.conformed(batches)):
                reader = pa.RecordBatchReader.from_batches(self.schema, counted.noted(part))
                fragments += self.write(reader, self._port().dataset)
        except Exception:
            # Lance and Spark would each wrap it in their own error, and retry the task.
            if counted.refusal:
                return message(rows=counted.rows, refusal=str(counted.refusal))
            raise
        return message(
            rows=counted.rows,
            deletes=counted.deletes,
            bytes=counted.bytes,
            fragments=json.dumps([fragment.to_json() for fragment in fragments]),
            keys=to_ipc(pa.concat_tables(counted.keys)) if self.merge_keys else None,
            checks=json.dumps(counted.checks.encode()),
            aside=None if (rest := counted.aside.rest) is None else to_ipc(rest),
            aside_fragments=json.dumps([each.to_json() for each in counted.aside.fragments]),
        )

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yield the rows of the dataset's schema that go into the same fragments, in order."""
        if not self.merge_keys or not self._port().dataset.has_stable_row_ids:
            yield batches
            return
        newest = self._port().latest().dataset
        while part := _up_to(LOOKUP_BYTES, batches):
            rows = pa.Table.from_batches(part)
            lookup = self.look_up(rows.select(list(self.merge_keys)), newest)
            yield (known_first(rows, lookup) if lookup else rows).to_batches()

    def look_up(self, keys: pa.Table, dataset: Any) -> KeyLookup | None:
        """Return the rows that an upsert's keys match, ``None`` if their row ids are not stable.

        :raises StorageUnavailableError: the keys could not be read.
        """
        if not dataset.has_stable_row_ids:
            return None
        with reading(self.uri):
            return look_up(dataset, keys)

    def _port(self) -> LanceDatasetPort:
        # The run id makes a restarted query open the dataset again, in case it was recreated;
        # the version of its schema does so after columns were added.
        name = (self.uri, self.run_id, self.schema_version)
        if name not in _opened:
            _opened.clear()
            _opened[name] = open_dataset(
                self.uri, self.storage_options, cache_bytes=LOOK_CACHE_BYTES
            )
        return _opened[name]

    def write(self, rows: pa.RecordBatchReader, dataset: Any) -> list[Any]:
        """Write rows of the dataset's schema into new, uncommitted fragments.

        :raises StorageUnavailableError: the store did not accept them, or Lance panicked.
        """
        from lance.fragment import write_fragments

        limit = self.target_rows_per_fragment
        try:
            return list(write_fragments(rows, dataset, max_rows_per_file=limit))
        except BaseException as error:
            if isinstance(error, OSError) or is_panic(error):
                raise write_error(self.uri, error) from error
            raise

    def divide(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None, Sifted]:
        """Return what :meth:`split` does of the rows that land, and what became of the others.

        :raises RowsRefusedError: a row ends the query.
        """
        sifted = self.sieve.sift(table)
        try:
            added, doomed = self.split(sifted.rows)
        except RowsRefusedError:
            if not self.sieve.keeps_refused:
                raise
            sifted = self.sieve.without(sifted, self._refused(sifted.rows))
            added, doomed = self.split(sifted.rows)
        return added, doomed, sifted

    def _refused(self, table: pa.Table) -> dict[int, RowsRefusedError]:
        """Return the rows that :meth:`split` refuses, by their positions."""
        rows = pa.array(range(table.num_rows), pa.int64())
        flags = pc.fill_null(table.column(DELETE_FLAG), False) if self.flagged else None
        added = rows if flags is None else rows.filter(pc.invert(flags))
        refused = misfits(table.take(added), self.schema, replaceable=self._replaceable)
        found = {added[row].as_py(): error for row, error in refused.items()}
        if flags is not None:
            doomed = rows.filter(flags)
            refused = misfits(table.take(doomed), self._key_schema)
            found |= {doomed[row].as_py(): error for row, error in refused.items()}
        for name in self.merge_keys:
            nulls = rows.filter(pc.is_null(table.column(name))).to_pylist()
            found |= dict.fromkeys(nulls, null_keys([name]))
        return found

    @property
    def _replaceable(self) -> set[str]:
        # With replaced bytes, two keys could become one, and one row could overwrite another.
        names = self.schema.names if self.replace_invalid_text else []
        return set(names) - set(self.merge_keys)

    @property
    def _key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.merge_keys])

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Return the rows to add in the dataset's schema, and the merge keys of those to delete."""
        deletes = 0
        keep = table
        if self.flagged:
            doomed = pc.fill_null(table.column(DELETE_FLAG), False)
            deletes = pc.sum(doomed).as_py() or 0
            keep = table.filter(pc.invert(doomed)) if deletes else table
        merge_keys = list(self.merge_keys)
        if nulls := [name for name in merge_keys if table.column(name).null_count]:
            raise null_keys(nulls)
        columns = keep.select(self.schema.names)
        added = conform(columns, self.schema, replaceable=self._replaceable)
        if merge_keys:
            added = one_form_of_floats(added, merge_keys)
        if not deletes:
            return added, None
        keys = conform(table.filter(doomed).select(self._key_schema.names), self._key_schema)
        return added, one_form_of_floats(keys, merge_keys)


def null_keys(names: Sequence[str]) -> RowsRefusedError:
    """Return the error for rows whose merge keys are null."""
    return RowsRefusedError(
        f"merge key {list(names)} is null in some rows: a null matches no row, so they would be "
        "added again by every change. Filter them in sql, or set onRefusedRow=quarantine; nothing "
        "of this epoch was committed",
        reason=f"merge key {', '.join(map(repr, names))} is null",
    )


class _Counted:
    """Rows, deletes, bytes and keys of a partition, counted while its batches are written."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self.rows = self.bytes = 0
        self.checks = RowChecks()
        self.aside = QuarantineBuffer(task.sieve.origin)
        self.refusal: RowsRefusedError | None = None
        self._added: list[pa.Table] = []
        self._doomed: list[pa.Table] = []

    @property
    def deletes(self) -> int:
        """Return how many rows delete."""
        return sum(each.num_rows for each in self._doomed)

    @property
    def keys(self) -> list[pa.Table]:
        """Return the merge keys: those of the rows that were added, then those that delete."""
        return self._added + self._doomed

    def conformed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                added, doomed, sifted = self._task.divide(pa.Table.from_batches([batch]))
            except RowsRefusedError as error:
                self.refusal = error
                raise
            self.rows += sifted.rows.num_rows
            self.checks += sifted.checks
            self.aside.add(sifted.aside)
            self.bytes += added.nbytes
            if doomed is not None:
                self._doomed.append(doomed)
            yield from added.to_batches()

    def noted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the rows on as they are written, and note their merge keys."""
        for batch in batches:
            if self._task.merge_keys:
                keys = pa.Table.from_batches([batch]).select(list(self._task.merge_keys))
                self._added.append(keys)
            yield batch


def _up_to(size: int, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Take batches until they have this many bytes in memory, or until there are no more."""
    taken: list[pa.RecordBatch] = []
    while size > 0 and (batch := next(batches, None)) is not None:
        taken.append(batch)
        size -= batch.nbytes
    return taken


def message(**values: Any) -> pa.RecordBatch:
    """Return a message of one row; a column that is not given is null."""
    columns = {
        "rows": pa.int64(),
        "deletes": pa.int64(),
        "bytes": pa.int64(),
        "data": pa.binary(),
        "fragments": pa.string(),
        "keys": pa.binary(),
        "refusal": pa.string(),
        "checks": pa.string(),
        "aside": pa.binary(),
        "aside_fragments": pa.string(),
        "tombstones": pa.binary(),
    }
    return pa.record_batch(
        [pa.array([values.get(name)], kind) for name, kind in columns.items()], list(columns)
    )


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
