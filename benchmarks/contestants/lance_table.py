"""What the contestants on Lance share: the dataset, the writer, and how its size is told."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from benchmarks.contestants.table import NO_OPTIONS, QUERY, Facts, Table, folder_bytes


class LanceTable(Table):
    """A protocol of two questions, over a live handle."""

    def __init__(
        self,
        place: str,
        schema: pa.Schema,
        *,
        query_id: str = QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        super().__init__()
        self.uri, self.query_id = lance_uri(place), query_id
        self.dataset = opened(self.uri, schema, storage).dataset
        """The handle at the last commit."""

    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        if not self.known(epoch_id):
            self.land(epoch_id, write_fragments(rows, self.dataset))

    @abstractmethod
    def known(self, epoch_id: int) -> bool:
        """Tell whether an epoch is there already."""

    @abstractmethod
    def land(self, epoch_id: int, fragments: Sequence[Any]) -> None:
        """Commit an epoch that is written."""

    def count_rows(self) -> int:
        return self.dataset.count_rows()

    def facts(self) -> Facts:
        return lance_facts(self.uri)


def lance_uri(place: str) -> str:
    """Return where the dataset of a place is."""
    return f"{place}/t.lance"


def opened(uri: str, schema: pa.Schema, storage: Mapping[str, str]) -> LanceDatasetPort:
    """Open a dataset; make it without rows if there is none."""
    try:
        return open_dataset(uri, storage)
    except DatasetNotFoundError:
        lance.write_dataset(schema.empty_table(), uri, storage_options=dict(storage) or None)
        return open_dataset(uri, storage)


def lance_facts(uri: str) -> Facts:
    """Return the size of a dataset on a local disk."""
    newest = min(Path(uri, "_versions").glob("*.manifest"))  # the names count down
    return Facts(
        fragments=len(lance.dataset(uri).get_fragments()),
        manifest_bytes=newest.stat().st_size,
        stored_bytes=folder_bytes(uri),
    )
