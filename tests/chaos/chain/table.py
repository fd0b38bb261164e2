"""One stream's dataset and checkpoint, as anybody finds them on disk."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.reader import SourceReader
from tests.chaos.input import Row
from tests.chaos.scene import newest_entry


@dataclass(frozen=True)
class Table:
    """A dataset and the checkpoint of the query that writes it."""

    name: str
    folder: Path

    @property
    def uri(self) -> str:
        """Return where the dataset is."""
        return str(self.folder / f"{self.name}.lance")

    @property
    def checkpoint(self) -> Path:
        """Return where Spark's files are."""
        return self.folder / f"{self.name}.checkpoint"

    @property
    def rows(self) -> Counter[Row]:
        """Return the rows of the newest version."""
        columns = open_dataset(self.uri).dataset.to_table().columns
        return Counter(zip(*(column.to_pylist() for column in columns), strict=True))

    def newest(self, log: str) -> int:
        """Return the newest epoch of one of Spark's logs, -1 if there is none."""
        return newest_entry(self.checkpoint / log)

    def end(self, epoch: int) -> dict[str, object]:
        """Return where an epoch's only source ends, in Spark's log."""
        lines = (self.checkpoint / "offsets" / str(epoch)).read_text().splitlines()
        found: dict[str, object] = json.loads(lines[2])
        return found

    def is_read_to(self, position: SourceOffset) -> bool:
        """Return whether no rows come after a position of a query that reads the dataset."""
        options = {"path": self.uri, "readChangeFeed": position.change_feed}
        columns = SourceColumns.of(open_dataset(self.uri))
        return SourceReader(SourceOptions.parse(options), columns).lag(position).rows == 0
