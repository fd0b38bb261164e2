"""One stream's dataset and checkpoint, as anybody finds them on disk."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import NO_EPOCH
from tests.chaos.input import Row


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
        folder = self.checkpoint / log
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=NO_EPOCH)

    def end(self, epoch: int) -> dict[str, object]:
        """Return where an epoch's only source ends, in Spark's log."""
        lines = (self.checkpoint / "offsets" / str(epoch)).read_text().splitlines()
        found: dict[str, object] = json.loads(lines[2])
        return found
