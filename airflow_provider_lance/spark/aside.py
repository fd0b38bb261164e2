"""Rows that do not land: collected with the reason, and written into the quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa

from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.lance_errors import is_panic, write_error
from airflow_provider_lance.protocol.quarantine import quarantine_schema
from airflow_provider_lance.protocol.row_json import encode_rows

__all__ = ["RAW", "Aside", "Origin", "QuarantineBuffer", "Refused", "write_aside"]

_PREFIX = "__lance_"
_INLINE_BYTES = 2 * 1024 * 1024
"""The most that one task may send to the driver; see :mod:`.writer`."""

RAW = "__lance_raw"
"""The column with the row as it came, of a row that an envelope could not be taken off."""


@dataclass(frozen=True)
class Origin:
    """What all rows of one epoch that go to the quarantine have in common."""

    uri: str
    query_id: str
    epoch_id: int
    source_ends: str | None
    at: str
    mode: str
    merge_keys: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Refused:
    """Why one row does not land; ``expectations`` are those that it did not meet."""

    reason: str
    detail: str = ""
    expectations: Sequence[str] = ()


@dataclass(frozen=True)
class Aside:
    """Rows as the stream has them, with the reason of each."""

    rows: pa.Table
    refused: Sequence[Refused]
    deletes: Sequence[bool | None]

    def of(self, origin: Origin) -> pa.Table:
        """Return the rows as the quarantine holds them."""
        rows, count = self.rows, self.rows.num_rows
        hidden = [name for name in rows.column_names if name.startswith(_PREFIX) and name != RAW]
        if RAW in rows.column_names and rows.column(RAW).null_count == count:
            hidden.append(RAW)
        at = datetime.fromisoformat(origin.at)
        columns: dict[str, Sequence[Any]] = {
            "id": [uuid4().hex for _ in range(count)],
            "reason": [each.reason for each in self.refused],
            "detail": [each.detail for each in self.refused],
            "expectations": [list(each.expectations) for each in self.refused],
            "row": encode_rows(rows.drop_columns(hidden)),
            "query_id": [origin.query_id] * count,
            "epoch": [origin.epoch_id] * count,
            "source_ends": [origin.source_ends] * count,
            "quarantined_at": [at] * count,
            "mode": [origin.mode] * count,
            "merge_keys": [list(origin.merge_keys)] * count,
            "deletes": self.deletes,
            "feed": [None] * count,
            "feed_version": [None] * count,
            "fed_at": [None] * count,
        }
        schema = quarantine_schema()
        arrays = [pa.array(columns[each.name], each.type) for each in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


class QuarantineBuffer:
    """Collects the rows of one task for the quarantine; writes them itself where they are many."""

    def __init__(self, origin: Origin | None) -> None:
        self.fragments: list[Any] = []
        """What was written, uncommitted."""
        self._origin = origin
        self._parts: list[pa.Table] = []

    def add(self, rows: Sequence[Aside]) -> None:
        """Take rows."""
        if not rows:
            return
        assert self._origin is not None
        self._parts += [each.of(self._origin) for each in rows]
        if sum(each.nbytes for each in self._parts) > _INLINE_BYTES:
            self.fragments += write_aside(pa.concat_tables(self._parts), self._origin)
            self._parts.clear()

    @property
    def rest(self) -> pa.Table | None:
        """Return the rows that are not written yet; ``None`` without any."""
        return pa.concat_tables(self._parts) if self._parts else None


def write_aside(rows: pa.Table, origin: Origin, dataset: Any = None) -> list[Any]:
    """Write rows of the quarantine's columns into new, uncommitted fragments.

    :param dataset: a handle of the quarantine; without it, it is opened.
    :raises StorageUnavailableError: the store did not accept them, or Lance panicked.
    """
    from lance.fragment import write_fragments

    if dataset is None:
        port = open_dataset(origin.uri, origin.storage_options, cache_bytes=LOOK_CACHE_BYTES)
        dataset = port.dataset
    try:
        return list(write_fragments(rows.to_reader(), dataset))
    except BaseException as error:
        if isinstance(error, OSError) or is_panic(error):
            raise write_error(origin.uri, error) from error
        raise
