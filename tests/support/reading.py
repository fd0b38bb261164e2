"""A query on a Lance dataset without Spark: epoch after epoch, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.reader import SourceReader
from airflow_provider_lance.source.slices import read_slices

Read = tuple[int, str, dict[str, Any]]
"""The version that changed a row, how, and the row."""


def numbers(first: int, last: int) -> pa.Table:
    """Return rows with keys from `first` up to `last`, and each key's value."""
    keys = pa.array(range(first, last), pa.int64())
    return pa.table({"k": keys, "v": keys})


class Reading:
    """Reads as Spark does; `position` is the end of the last epoch."""

    def __init__(self, path: Path, **options: str) -> None:
        self.options = SourceOptions.parse({"path": str(path), **options})
        self.position = NOT_BEGUN
        self.restart()

    def restart(self) -> None:
        """Begin again from `position`, with the columns that the dataset has now."""
        self.columns = SourceColumns.of(open_dataset(self.options.path), self.options.columns)
        self.reader = SourceReader(self.options, self.columns)

    def epoch(self) -> list[Read] | None:
        """Read one epoch; `None` if nothing is new."""
        start, end = self.position, self.reader.latest(self.position)
        if end == start:
            return None
        self.position = end
        return self.read(start, end)

    def read(self, start: SourceOffset, end: SourceOffset) -> list[Read]:
        """Read the rows between two positions."""
        slices = self.reader.plan(start, end)
        return [
            (part.commit_version, part.change.value, row)
            for part, batch in read_slices(self.options.path, None, slices, self.columns.names)
            for row in batch.to_pylist()
        ]

    def rest(self) -> list[Read]:
        """Read all that is new."""
        found: list[Read] = []
        while (epoch := self.epoch()) is not None:
            found += epoch
        return found

    def keys(self) -> list[tuple[str, int]]:
        """Read all that is new; return how each row changed, and its key."""
        return [(change, row["k"]) for _, change, row in self.rest()]
