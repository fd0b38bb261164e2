"""The rows that a version changed, as parts that can be divided; found in its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.source.slices import ChangeType, Slice

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Part",
    "changed_rows",
    "commit_time",
    "first_file",
    "stored_values",
    "summary",
    "table_rows",
    "whole_fragments",
]


@dataclass(frozen=True)
class Part:
    """Changed rows of one kind, counted in units: a row, or an updated row in both its images.

    ``slices(first, last)`` returns the rows of a range of units.
    """

    units: int
    unit_size: int
    slices: Callable[[int, int], list[Slice]]
    rows_per_unit: int = 1


def commit_time(port: LanceDatasetPort) -> int:
    """Return when a version was committed, in microseconds since 1970 (UTC); no I/O."""
    # pylance's public form is the host's local time without `fold`: an hour of each year, in which
    # clocks go back, is then another hour on hosts in another time zone (14.0.2).
    native: Any = port.dataset._ds
    return int(native.current_version()["timestamp"]) // 1_000


def table_rows(port: LanceDatasetPort) -> int:
    """Return the number of rows of a version; no I/O."""
    return int(summary(port)["total_rows"])


def summary(port: LanceDatasetPort) -> dict[str, str]:
    """Return the numbers of a version's fragments, files and rows, as texts; no I/O."""
    return dict(port.dataset.get_version()["metadata"])


def first_file(port: LanceDatasetPort, number: int) -> str:
    """Return the path of a fragment's first data file, which no other fragment has."""
    fragment = port.dataset.get_fragment(number)
    files = fragment.data_files() if fragment else []
    return str(files[0].path) if files else ""


def stored_values(port: LanceDatasetPort, columns: Iterable[str]) -> dict[int, object]:
    """Return where each fragment has the values of some columns; equal: no value has changed."""
    chosen = set(columns)
    ids = {
        number
        for each in port.dataset.lance_schema.fields()
        if each.name() in chosen
        for number in _field_ids(each)
    }
    found: dict[int, object] = {}
    for fragment in port.dataset.get_fragments():
        data: Any = fragment.metadata
        files = [each.path for each in data.files if ids & set(each.fields)]
        found[data.id] = (files, data.physical_rows, data.deletion_file, repr(data.overlays))
    return found


def _field_ids(field: Any) -> list[int]:
    return [field.id(), *(number for each in field.children() for number in _field_ids(each))]


def whole_fragments(
    port: LanceDatasetPort, ids: Iterable[int], change: ChangeType, commit: LanceDatasetPort
) -> list[Part]:
    """Return all rows of some fragments."""
    committed = commit.version, commit_time(commit)
    parts = []
    for number in ids:
        fragment: Any = port.dataset.get_fragment(number)
        rows = fragment.count_rows()
        size = _row_size(fragment)
        each = Slice(
            port.version, number, first_file(port, number), 0, rows, size * rows, change, *committed
        )
        parts.append(Part(rows, size, partial(_range, each)))
    return parts


def _range(whole: Slice, low: int, high: int) -> list[Slice]:
    size = whole.size // max(1, whole.stop) * (high - low)
    return [replace(whole, start=low, stop=high, size=size)]


def _row_size(fragment: Any) -> int:
    metadata = fragment.metadata
    size = sum(each.file_size_bytes or 0 for each in metadata.files)
    return int(size // max(1, metadata.physical_rows or 1))


@dataclass(frozen=True)
class _Rows:
    """Rows of some fragments: stable id, last update, and where they are; arrays of one length."""

    ids: np.ndarray[Any, Any]
    updated: np.ndarray[Any, Any]
    fragments: np.ndarray[Any, Any]
    positions: np.ndarray[Any, Any]

    def take(self, chosen: Any) -> _Rows:
        return _Rows(
            self.ids[chosen], self.updated[chosen], self.fragments[chosen], self.positions[chosen]
        )


def changed_rows(
    before: LanceDatasetPort, port: LanceDatasetPort, operation: Any
) -> list[Part] | None:
    """Return deleted rows, then updated ones in both images, then inserted ones.

    A row is updated if it has the same id and another version of its last update. ``None`` if the
    operation does not name all fragments that it changed.
    """
    import numpy as np

    earlier, later = set(before.dataset.fragment_ids()), set(port.dataset.fragment_ids())
    touched = {each.id for each in operation.updated_fragments}
    old = _row_ids(before, sorted(earlier - later | (touched & earlier)))
    new = _row_ids(port, sorted(later - earlier | (touched & later)))
    _, left, right = np.intersect1d(old.ids, new.ids, assume_unique=True, return_indices=True)
    changed = old.updated[left] != new.updated[right]
    deleted = old.take(np.setdiff1d(np.arange(len(old.ids)), left, assume_unique=True))
    inserted = new.take(np.setdiff1d(np.arange(len(new.ids)), right, assume_unique=True))
    pre, post = old.take(left[changed]), new.take(right[changed])
    if table_rows(before) - len(deleted.ids) + len(inserted.ids) != table_rows(port):
        return None
    delete, insert = ChangeType.DELETE, ChangeType.INSERT
    images = (
        (before, pre, ChangeType.UPDATE_PREIMAGE),
        (port, post, ChangeType.UPDATE_POSTIMAGE),
    )
    sides = [((before, deleted, delete),), images, ((port, inserted, insert),)]
    return [_picked(port, side) for side in sides if len(side[0][1].ids)]


def _row_ids(port: LanceDatasetPort, ids: Sequence[int]) -> _Rows:
    """Return the rows of fragments, by fragment and position."""
    import numpy as np

    none = np.empty(0, dtype=np.int64)
    found = [_Rows(none, none, none, none)]
    for number in ids:
        fragment: Any = port.dataset.get_fragment(number)
        scanner: Any = port.dataset.scanner(
            columns=["_rowid", "_row_last_updated_at_version"],
            fragments=[fragment],
            scan_in_order=True,
        )
        table = scanner.to_table()
        found.append(
            _Rows(
                table["_rowid"].to_numpy().astype(np.int64),
                table["_row_last_updated_at_version"].to_numpy().astype(np.int64),
                np.full(table.num_rows, number, dtype=np.int64),
                np.arange(table.num_rows, dtype=np.int64),
            )
        )
    return _Rows(
        np.concatenate([each.ids for each in found]),
        np.concatenate([each.updated for each in found]),
        np.concatenate([each.fragments for each in found]),
        np.concatenate([each.positions for each in found]),
    )


def _picked(
    commit: LanceDatasetPort, sides: Sequence[tuple[LanceDatasetPort, _Rows, ChangeType]]
) -> Part:
    """Return single rows: each side has one row for each unit."""
    import numpy as np

    committed = commit.version, commit_time(commit)
    fragments = {
        (port.version, int(number)): port.dataset.get_fragment(int(number))
        for port, rows, _ in sides
        for number in np.unique(rows.fragments)
    }
    sizes = {where: _row_size(fragment) for where, fragment in fragments.items()}

    def slices(low: int, high: int) -> list[Slice]:
        found = []
        for port, rows, change in sides:
            numbers, positions = rows.fragments[low:high], rows.positions[low:high]
            for number in map(int, np.unique(numbers)):
                chosen = np.sort(positions[numbers == number])
                found.append(
                    Slice(
                        port.version,
                        number,
                        first_file(port, number),
                        int(chosen[0]),
                        int(chosen[-1]) + 1,
                        sizes[port.version, number] * len(chosen),
                        change,
                        *committed,
                        chosen.tobytes(),
                    )
                )
        return found

    units = len(sides[0][1].ids)
    largest = max(sizes.values(), default=0)
    return Part(units, largest * len(sides), slices, rows_per_unit=len(sides))
