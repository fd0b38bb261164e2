"""The row ids that an upsert carries over, on a dataset whose row ids are stable.

A change feed shows a row as updated only if the new row has the id of the one that it replaces.
Lance binds the ids that a writer gives to the leading rows of a fragment, and numbers the others at
the commit. So the rows of known keys are written first. Lance does not check that ids are unique
(pylance 14.0.2): here, each id is given once, and only if the same commit deletes its row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.exceptions import RowsRefusedError

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata

__all__ = [
    "KeyLookup",
    "KeyPositions",
    "carry_row_ids",
    "deletion_of",
    "known_first",
    "look_up",
    "through_index",
]

log = logging.getLogger(__name__)

_BATCH_ROWS = 262_144
"""The rows of a batch in which keys are read: 4 times as fast as Lance's default of 8,192."""


_ROWS_PER_KEY = 500
"""The rows for each key above which an index is faster than a scan: in 10,000,000 rows, 1,000 keys
take 64 ms and 213, 10,000 keys 120 and 154, 100,000 keys 429 and 391 (pylance 14.0.2, 2 cores)."""


@dataclass(frozen=True)
class KeyLookup:
    """The rows that some merge keys match at one version of a dataset.

    ``rows`` has the columns ``position`` (of the key in ``keys``), ``_rowid`` and ``_rowaddr``,
    then those that were asked for.
    """

    version: int
    keys: pa.Table
    rows: pa.Table

    def row_ids(self) -> pa.UInt64Array:
        """Return each key's row id, null for a new key; of several rows, the lowest id."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lowest = self.rows.group_by("position").aggregate([("_rowid", "min")])
        positions = pa.array(range(self.keys.num_rows), pa.int32())
        at = pc.index_in(positions, lowest["position"].combine_chunks())
        return lowest["_rowid_min"].combine_chunks().take(at)

    def of(self, keys: pa.Table) -> KeyLookup | None:
        """Return the same of other keys; ``None`` if not all of them were looked up."""
        import pyarrow as pa

        positions = KeyPositions(keys).of(self.keys)
        if len(positions) - positions.null_count < keys.num_rows:
            return None
        moved = pa.chunked_array([positions]).take(self.rows["position"])
        rows = self.rows.set_column(0, "position", moved)
        return KeyLookup(self.version, keys, rows.filter(moved.is_valid()))


def look_up(dataset: lance.LanceDataset, keys: pa.Table, columns: Sequence[str] = ()) -> KeyLookup:
    """Find the rows of some keys: through a key's index if that pays, otherwise by a scan.

    Where row ids are stable, no index is used. Where many rows were updated, Lance needs longer to
    translate row ids, which an index holds, than to read the columns: 95 ms and 25 ms for 1,000
    keys in 1,000,000 rows, half of which were updated; for each new version 280 ms more (pylance
    14.0.2).

    :param keys: the merge keys, each once.
    :param columns: further columns to read of the rows that are found.
    """
    import pyarrow as pa

    positions = KeyPositions(keys)
    scanner = dataset.scanner(
        columns=[*keys.column_names, *columns],
        filter=through_index(dataset, keys),
        with_row_id=True,
        with_row_address=True,
        batch_size=_BATCH_ROWS,
    )
    kinds = [("position", pa.int32()), ("_rowid", pa.uint64()), ("_rowaddr", pa.uint64())]
    schema = pa.schema([*kinds, *(dataset.schema.field(name) for name in columns)])
    found = [schema.empty_table()]
    for batch in scanner.to_batches():
        read = [batch[name] for name in schema.names[1:]]
        table = pa.table([positions.of(batch), *read], schema)
        found.append(table.filter(table["position"].is_valid()))
    return KeyLookup(dataset.version, keys, pa.concat_tables(found))


def through_index(dataset: lance.LanceDataset, keys: pa.Table, *, nulls: bool = False) -> Any:
    """Return a filter that an index of a key column answers, ``None`` to scan.

    The rows that it lets through have one of the keys' values in that column; with ``nulls`` also
    those that have none.
    """
    import pyarrow.compute as pc
    import pyarrow.types as pt

    if dataset.has_stable_row_ids or keys.num_rows * _ROWS_PER_KEY > dataset.count_rows():
        return None
    indexed = [
        each.field_names for each in dataset.describe_indices() if each.index_type == "BTree"
    ]
    for name in keys.column_names:
        kind = keys.schema.field(name).type
        if [name] in indexed and (pt.is_integer(kind) or pt.is_string(kind)):
            known = pc.field(name).isin(pc.unique(keys[name]))
            return known | pc.field(name).is_null() if nulls else known
    return None


def known_first(rows: pa.Table, lookup: KeyLookup) -> pa.Table:
    """Return the rows with those first whose keys the dataset has, in the order of their row ids.

    In that order the ids take the least room in the manifest.

    :param lookup: of the rows' keys, in their order; other keys may follow.
    """
    import pyarrow.compute as pc

    ids = lookup.row_ids().slice(0, rows.num_rows)
    return rows.take(pc.sort_indices(ids)) if len(ids) > ids.null_count else rows


def deletion_of(dataset: lance.LanceDataset, found: KeyLookup) -> LanceOperation.Update:
    """Return the operation that deletes the rows that were found, as Lance's own merge makes it.

    The merge would search for the keys a second time: 107 ms for 10,000 keys in 10,000,000 rows
    with an index, and 10 ms by their addresses (pylance 14.0.2).

    :param dataset: the version that was searched.
    """
    import numpy as np
    from lance import LanceOperation

    addresses = np.unique(found.rows["_rowaddr"].to_numpy())
    updated, removed = [], []
    for each in np.split(addresses, np.flatnonzero(np.diff(addresses >> 32)) + 1):
        if not len(each):
            continue
        number = int(each[0] >> 32)
        fragment: Any = dataset.get_fragment(number)
        left = fragment.delete_rows((each & 0xFFFFFFFF).tolist())
        if left is None:
            removed.append(number)
        else:
            updated.append(left)
    return LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=[],
        fields_modified=[],
        fields_for_preserving_frag_bitmap=_field_ids(dataset.lance_schema.fields()),
        update_mode="rewrite_rows",
    )


def _field_ids(fields: Iterable[Any]) -> list[int]:
    return [number for each in fields for number in (each.id(), *_field_ids(each.children()))]


def carry_row_ids(
    dataset: lance.LanceDataset,
    update: Any,
    fragments: Sequence[FragmentMetadata],
    keys: pa.Table,
    found: KeyLookup | None = None,
) -> list[FragmentMetadata]:
    """Return an upsert's new fragments with the ids of the rows that they replace.

    A row that is not among the leading ones, since others changed its key after it was written,
    gets a new id: it appears as deleted and inserted.

    :param dataset: the version that the upsert is committed on.
    :param update: Lance's operation, made on that version, which deletes the rows of the keys.
    :param keys: one row for each row of the fragments, in their order; then the other keys.
    :param found: where the keys are in that version, if it was searched for them.
    :raises RowsRefusedError: the rows that Lance deletes are not those whose ids were found.
    """
    import pyarrow.compute as pc
    from lance.fragment import RowIdSequence

    found = found or look_up(dataset, keys)
    _refuse_other_rows(dataset, update, found.rows)
    ids = found.row_ids()
    carrying, start, left = [], 0, 0
    for fragment in fragments:
        its = ids.slice(start, fragment.physical_rows)
        start += fragment.physical_rows
        first_new = pc.index(its.is_null(), True).as_py()
        leading = its if first_new < 0 else its.slice(0, first_new)
        left += len(its) - its.null_count - len(leading)
        meta = RowIdSequence(leading).to_inline_metadata() if len(leading) else None
        carrying.append(replace(fragment, row_id_meta=meta))
    if left:
        log.warning(
            "Others changed keys of this epoch while it was written; rows that appear as deleted "
            "and inserted instead of updated: %d. uri=%s",
            left,
            dataset.uri,
        )
    return carrying


class KeyPositions:
    """Finds the position of a row's key among given keys, each of which is there once."""

    def __init__(self, keys: pa.Table) -> None:
        import pyarrow.compute as pc

        self._names = keys.column_names
        # The different values of each column; and of each column but the first, the different pairs
        # of its value and of the number of what is left of it.
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        for number, name in enumerate(self._names):
            self._values.append(pc.unique(_bits(keys[name])))
            if number:
                self._pairs.append(pc.unique(self._pair(keys, number)))

    def of(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """Return positions as int32, null for other keys."""
        return self._number(rows, len(self._names) - 1)

    def _number(self, rows: Any, last: int) -> pa.Array:
        import pyarrow.compute as pc

        if last == 0:
            return pc.index_in(_bits(rows[self._names[0]]), self._values[0])
        return pc.index_in(self._pair(rows, last), self._pairs[last - 1])

    def _pair(self, rows: Any, last: int) -> pa.Array:
        import pyarrow.compute as pc

        before = pc.cast(self._number(rows, last - 1), "int64")
        own = pc.index_in(_bits(rows[self._names[last]]), self._values[last])
        return pc.add(pc.multiply(before, len(self._values[last])), own)


def _bits(column: Any) -> pa.Array:
    """Return a column as Lance's merge compares it: floats by their bits."""
    import pyarrow as pa
    import pyarrow.types as pt

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pt.is_dictionary(array.type):
        return array.dictionary_decode()
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    return array.view(bits[array.type.bit_width]) if pt.is_floating(array.type) else array


def _refuse_other_rows(dataset: lance.LanceDataset, update: Any, found: pa.Table) -> None:
    """Raise unless Lance deletes as many rows of each fragment as the keys were found in.

    Otherwise an id could be given to a new row while its old row stays.
    """
    import pyarrow.compute as pc

    deleted: dict[int, int] = {}
    for number in update.removed_fragment_ids:
        deleted[number] = _live(dataset, number)
    for new in update.updated_fragments:
        deleted[new.id] = _live(dataset, new.id) - _rows(new)
    counts = pc.value_counts(pc.shift_right(found["_rowaddr"].combine_chunks(), 32))
    matched: Mapping[int, int] = {each["values"]: each["counts"] for each in counts.to_pylist()}
    if deleted != matched:
        number = min(n for n in deleted.keys() | matched if deleted.get(n) != matched.get(n))
        raise RowsRefusedError(
            f"in fragment {number} of {dataset.uri} (version {dataset.version}), Lance replaces "
            f"{deleted.get(number, 0)} rows of this epoch's merge keys, and a search found "
            f"{matched.get(number, 0)}: row ids would no longer be unique. Nothing of this epoch "
            "was committed. Report it, with the types of the merge keys; a stream into a dataset "
            "without changeFeed does not need row ids"
        )


def _live(dataset: lance.LanceDataset, number: int) -> int:
    fragment = dataset.get_fragment(number)
    return _rows(fragment.metadata) if fragment else 0


def _rows(fragment: FragmentMetadata) -> int:
    """Return how many rows of a fragment are not deleted."""
    gone = fragment.deletion_file.num_deleted_rows if fragment.deletion_file else 0
    return int(fragment.physical_rows - gone)
