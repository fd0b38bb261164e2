"""Rows of a dataset that one task reads, as plain values that travel to an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.exceptions import (
    DatasetRestoredError,
    SourceDataLossError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.lance_errors import named_panics, reading

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CHANGE_COLUMNS", "ChangeType", "Slice", "another_dataset", "divide", "read_slices"]

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns that a change feed adds; the names are those of Delta's change data feed."""

_SPARSE = 20
"""Rows are taken one by one if they are at most one in so many, otherwise filtered from a scan.

A fragment of 1 million rows: 100 rows taken in 5 ms and scanned in 50, 100,000 in 95 and 70 ms.
"""
_BATCH_ROWS = 65_536


class ChangeType(StrEnum):
    """What happened to a row, in the words of ``_change_type``."""

    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one fragment: those at ``start`` to ``stop``, counted without deleted rows.

    ``positions``, if given, are the rows to read among them: sorted int64 values in native order.
    ``version`` is where the fragment is read. ``data_file`` is the path of its first data file,
    which no other dataset has. ``size`` is the bytes in data files, about. ``commit_version`` and
    ``commit_timestamp`` (microseconds since 1970, UTC) say which commit changed the rows.
    """

    version: int
    fragment: int
    data_file: str
    start: int
    stop: int
    size: int
    change: ChangeType
    commit_version: int
    commit_timestamp: int
    positions: bytes = field(default=b"", repr=False)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.positions) // 8 or self.stop - self.start

    def divide(self, rows: int) -> Iterator[Slice]:
        """Yield parts of at most so many rows, in order."""
        size = self.size // max(1, self.rows)
        for first in range(0, self.rows, rows):
            last = min(first + rows, self.rows)
            part = replace(self, size=size * (last - first))
            if self.positions:
                yield replace(part, positions=self.positions[first * 8 : last * 8])
            else:
                yield replace(part, start=self.start + first, stop=self.start + last)


def divide(slices: Sequence[Slice], most_bytes: int, most_rows: int) -> list[list[Slice]]:
    """Divide slices among tasks, in order, each with at most about so many bytes and rows."""
    tasks: list[list[Slice]] = []
    size = rows = 0
    for each in slices:
        per_row = max(1, each.size // max(1, each.rows))
        for part in each.divide(max(1, min(most_rows, most_bytes // per_row))):
            if not tasks or size + part.size > most_bytes or rows + part.rows > most_rows:
                tasks.append([])
                size = rows = 0
            tasks[-1].append(part)
            size, rows = size + part.size, rows + part.rows
    return tasks


def another_dataset(uri: str, what: str) -> DatasetRestoredError:
    """Return the error for a dataset that is not the one that was read.

    :param what: what was seen, with the values; a clause.
    """
    return DatasetRestoredError(
        f"the dataset at {uri} is not the one that this query has read: {what}. It was dropped and "
        "created again, or an older copy was put in its place. Put the dataset back, or read this "
        "one from its beginning: start the query with a new checkpointLocation and query id"
    )


def read_slices(
    uri: str,
    storage_options: Mapping[str, str] | None,
    slices: Sequence[Slice],
    columns: Sequence[str],
) -> Iterator[tuple[Slice, pa.RecordBatch]]:
    """Yield the rows of slices in order, in Arrow batches with the columns that the version has.

    :raises DatasetRestoredError: another dataset is in its place.
    :raises SourceDataLossError: a data file is missing.
    :raises DatasetNotFoundError, StorageUnavailableError: as
        :func:`~airflow_provider_lance.protocol.dataset.open_dataset`.
    """
    port: LanceDatasetPort | None = None
    for each in slices:
        if port is None or port.version != each.version:
            port = open_dataset(uri, storage_options, version=each.version)
        known = set(port.dataset.schema.names)
        batches = _read(port, each, [name for name in columns if name in known])
        while True:
            try:
                with named_panics(uri), reading(uri):
                    batch = next(batches, None)
            except StorageUnavailableError as error:
                raise _missing_file(each, uri, error) or error from error
            if batch is None:
                break
            yield each, batch


def _missing_file(
    part: Slice, uri: str, error: StorageUnavailableError
) -> SourceDataLossError | None:
    """Return the error for a file that a version names and that is not there."""
    if "Not found:" not in str(error):
        return None
    return SourceDataLossError(
        f"version {part.version} of {uri} lacks a file of its fragment {part.fragment}: {error}. "
        "Lance's cleanup did not remove it: it removes the version first. Put the file back, or "
        "start the query with a new checkpointLocation and query id at a later version"
    )


def _read(port: LanceDatasetPort, part: Slice, columns: list[str]) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    fragment = port.dataset.get_fragment(part.fragment)
    files = fragment.data_files() if fragment else []
    if fragment is None or (files[0].path if files else "") != part.data_file:
        raise another_dataset(
            port.uri,
            f"fragment {part.fragment} of version {part.version} has no file {part.data_file}",
        )
    if part.positions:
        chosen = np.frombuffer(part.positions, dtype=np.int64)
        first, last = int(chosen[0]), int(chosen[-1]) + 1
        if len(chosen) * _SPARSE < last - first:
            for begin in range(0, len(chosen), _BATCH_ROWS):
                some = chosen[begin : begin + _BATCH_ROWS].tolist()
                yield from fragment.take(some, columns=columns).combine_chunks().to_batches()
            return
    else:
        chosen, first, last = None, part.start, part.stop
    scanner: Any = port.dataset.scanner(
        columns=columns,
        fragments=[fragment],
        offset=first,
        limit=last - first,
        batch_size=_BATCH_ROWS,
        scan_in_order=True,
    )
    seen = first
    for batch in scanner.to_batches():
        if chosen is None:
            yield batch
        else:
            low, high = np.searchsorted(chosen, (seen, seen + batch.num_rows))
            if high > low:
                yield batch.take(pa.array(chosen[low:high] - seen))
        seen += batch.num_rows
