"""How an epoch is written: what a task does with its partition, and how the driver combines it.

Each task counts its rows as they pass. A partition of a small epoch sends its rows to the driver,
which writes them together: one fragment instead of one per task. A larger partition is written by
its task, which sends only the fragments' metadata, plus the merge keys of an upsert.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.lance_errors import is_panic, write_error
from airflow_provider_lance.spark.casts import conform, one_form_of_floats, with_negative_zeros

__all__ = [
    "DELETE_FLAG",
    "MESSAGE_SCHEMA",
    "CollectedFragments",
    "WriteTask",
    "gather",
    "gather_rows",
]

DELETE_FLAG = "__lance_delete"
"""The boolean column that holds the value of `deleteWhen`; it never reaches the dataset."""

MESSAGE_SCHEMA = """
    rows LONG, deletes LONG, bytes LONG,
    data BINARY, fragments STRING, keys BINARY, refusal STRING
"""
"""One message per task: `data`, or `fragments` and in an upsert `keys`, or a `refusal`."""

_INLINE_BYTES = 2 * 1024 * 1024
"""The most that one task may send to the driver: 400 tasks stay below spark.driver.maxResultSize.
"""

_opened: dict[tuple[str, str], Any] = {}
"""The dataset handle of this Python worker, kept across tasks: opening loads the manifest."""


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
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a Python worker under ``mapInArrow``; yield one message, or none for no rows."""
        buffered, rest = self._buffer(batches)
        if not buffered:
            return
        if rest is None:
            table = pa.Table.from_batches(buffered)
            yield _message(rows=table.num_rows, bytes=table.nbytes, data=_to_ipc(table))
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
            if rows > self.small_epoch_rows or size > _INLINE_BYTES:
                return buffered, batches
        return buffered, None

    def _write(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        counted = _Counted(self)
        reader = pa.RecordBatchReader.from_batches(self.schema, counted.conformed(batches))
        try:
            fragments = self.write(reader, self._dataset())
        except Exception:
            # Lance and Spark would each wrap it in their own error, and retry the task.
            if counted.refusal:
                return _message(rows=counted.rows, refusal=str(counted.refusal))
            raise
        return _message(
            rows=counted.rows,
            deletes=counted.deletes,
            bytes=counted.bytes,
            fragments=json.dumps([fragment.to_json() for fragment in fragments]),
            keys=_to_ipc(pa.concat_tables(counted.keys)) if self.merge_keys else None,
        )

    def _dataset(self) -> Any:
        # The run id makes a restarted query open the dataset again, in case it was recreated.
        name = (self.uri, self.run_id)
        if name not in _opened:
            _opened.clear()
            _opened[name] = open_dataset(
                self.uri, self.storage_options, cache_bytes=LOOK_CACHE_BYTES
            ).dataset
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

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None, int]:
        """Return the rows to add in the dataset's schema, all merge keys, and how many delete."""
        deletes = 0
        keep = table
        if self.flagged:
            doomed = pc.fill_null(table.column(DELETE_FLAG), False)
            deletes = pc.sum(doomed).as_py() or 0
            keep = table.filter(pc.invert(doomed)) if deletes else table
        names, merge_keys = self.schema.names, list(self.merge_keys)
        # With replaced bytes, two keys could become one, and one row could overwrite another.
        replaceable = set(names) - set(merge_keys) if self.replace_invalid_text else ()
        added = conform(keep.select(names), self.schema, replaceable=replaceable)
        if not merge_keys:
            return added, None, 0
        added = one_form_of_floats(added, merge_keys)
        if not deletes:
            return added, added.select(merge_keys), 0
        key_schema = pa.schema([self.schema.field(name) for name in merge_keys])
        keys = conform(table.select(merge_keys), key_schema)
        return added, one_form_of_floats(keys, merge_keys), deletes


class _Counted:
    """Rows, deletes, bytes and keys of a partition, counted while its batches are written."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self.rows = self.deletes = self.bytes = 0
        self.keys: list[pa.Table] = []
        self.refusal: RowsRefusedError | None = None

    def conformed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                added, keys, deletes = self._task.split(pa.Table.from_batches([batch]))
            except RowsRefusedError as error:
                self.refusal = error
                raise
            self.rows += batch.num_rows
            self.deletes += deletes
            self.bytes += added.nbytes
            if keys is not None:
                self.keys.append(keys)
            yield from added.to_batches()


def _message(**values: Any) -> pa.RecordBatch:
    columns = {
        "rows": pa.int64(),
        "deletes": pa.int64(),
        "bytes": pa.int64(),
        "data": pa.binary(),
        "fragments": pa.string(),
        "keys": pa.binary(),
        "refusal": pa.string(),
    }
    return pa.record_batch(
        [pa.array([values.get(name)], kind) for name, kind in columns.items()], list(columns)
    )


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class CollectedFragments:
    """A written epoch: its fragments, and the keys of an upsert."""

    fragments: list[Any]
    keys: pa.Table | None
    rows: int
    deletes: int
    bytes: int


def gather(messages: Iterable[Any], task: WriteTask, dataset: Any) -> CollectedFragments:
    """Combine the tasks' messages on the driver; write the rows that small partitions sent.

    :raises RowsRefusedError: a value does not fit, or a merge key is null or duplicated.
    """
    from lance.fragment import FragmentMetadata

    fragments: list[Any] = []
    keys: list[pa.Table] = []
    small: list[pa.Table] = []
    rows = deletes = size = 0
    for message in messages:
        rows += message.rows
        if message.refusal is not None:
            raise RowsRefusedError(message.refusal)
        if message.data is not None:
            small.append(_from_ipc(message.data))
            continue
        deletes, size = deletes + message.deletes, size + message.bytes
        fragments += [
            FragmentMetadata.from_json(json.dumps(each)) for each in json.loads(message.fragments)
        ]
        if message.keys is not None:
            keys.append(_from_ipc(message.keys))
    if small:
        rest = _write_here(pa.concat_tables(small), task, dataset)
        fragments += rest.fragments
        deletes, size = deletes + rest.deletes, size + rest.bytes
        keys += [rest.keys] if rest.keys is not None else []
    all_keys = pa.concat_tables(keys) if keys else None
    return CollectedFragments(fragments, _usable(all_keys), rows, deletes, size)


def gather_rows(rows: pa.Table, task: WriteTask, dataset: Any) -> CollectedFragments:
    """Write an epoch whose rows are all on the driver.

    :raises RowsRefusedError: as :func:`gather` does.
    """
    written = _write_here(rows, task, dataset)
    return replace(written, keys=_usable(written.keys))


def _write_here(rows: pa.Table, task: WriteTask, dataset: Any) -> CollectedFragments:
    added, keys, deletes = task.split(rows)
    fragments = task.write(added.to_reader(), dataset) if added.num_rows else []
    return CollectedFragments(fragments, keys, rows.num_rows, deletes, added.nbytes)


def _from_ipc(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


def _usable(keys: pa.Table | None) -> pa.Table | None:
    if keys is None:
        return None
    names = keys.column_names
    if nulls := [name for name in names if keys.column(name).null_count]:
        raise RowsRefusedError(
            f"merge key {nulls} is null in some rows: a null matches no row, so they would be "
            "added again by every change. Filter them in sql; nothing of this epoch was committed"
        )
    counts = keys.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    if repeated.num_rows:
        example = {name: repeated.column(name)[0].as_py() for name in names}
        raise RowsRefusedError(
            f"{repeated.num_rows} merge keys are in this epoch more than once, for example "
            f"{example}: the sink cannot know which row is the newest. Reduce them in sql, for "
            "example with max_by(struct(*), …) GROUP BY the keys; nothing of this epoch was "
            "committed"
        )
    return with_negative_zeros(keys)
