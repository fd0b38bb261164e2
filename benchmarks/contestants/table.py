"""What every contestant's table does: take one epoch after another, and tell its size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

QUERY, STREAM_QUERY = "bench", "bench-stream"
"""The query ids, without Spark and with, where the caller names none."""
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Facts:
    """How large a table on a local disk is by now.

    ``fragments`` are data files, ``manifest_bytes`` those that describe the newest version,
    ``stored_bytes`` those of all files there are.
    """

    fragments: int
    manifest_bytes: int
    stored_bytes: int


class Table(ABC):
    """One query's hold on one table, without Spark."""

    def __init__(self) -> None:
        self._next = 0

    def epoch(self, rows: pa.Table, epoch_id: int | None = None) -> None:
        """Write and commit one epoch, the next one if no number is given."""
        number = self._next if epoch_id is None else epoch_id
        self.commit(number, rows)
        self._next = number + 1

    @abstractmethod
    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        """Write and commit an epoch, unless it is known to be there."""

    @abstractmethod
    def count_rows(self) -> int:
        """Return how many rows the newest version has."""

    @abstractmethod
    def facts(self) -> Facts:
        """Return the table's size; walks its folder."""

    def close(self) -> None:
        """Give the query up in order, where there is something to give up."""
        return


class Make(Protocol):
    """Opens the table of a place, making it first if there is none.

    The place is a folder, or a URI in a store; ``storage`` opens the store, in the words of the
    contestant's own library.
    """

    def __call__(
        self,
        place: str,
        schema: pa.Schema,
        *,
        query_id: str = QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> Table: ...


def folder_bytes(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
