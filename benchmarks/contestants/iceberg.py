"""Iceberg by pyiceberg with an SQLite catalog: each snapshot's summary names the query's epoch.

A replay is told by the last epoch, which is kept in memory; only after a start are the snapshots
searched for it, as Iceberg's own Spark sink does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.contestants.table import NO_OPTIONS, QUERY, Facts, Table, folder_bytes

_NAME = "bench.t"


class Iceberg(Table):
    """One snapshot an epoch, with a parquet file, a manifest, a manifest list and metadata.

    ``storage`` goes to the catalog: ``uri`` is its database, in the place if there is none.
    """

    def __init__(
        self,
        place: str,
        schema: pa.Schema,
        *,
        query_id: str = QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        super().__init__()
        self.uri, self._query_id = f"{place}/iceberg", query_id
        settings = {"uri": f"sqlite:///{place}/catalog.db", "warehouse": self.uri, **storage}
        catalog = SqlCatalog("bench", **settings)
        catalog.create_namespace_if_not_exists("bench")
        self._table = catalog.create_table_if_not_exists(_NAME, schema)
        self._last = self._search()

    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        if epoch_id <= self._last:
            return
        words = {"queryId": self._query_id, "epochId": str(epoch_id)}
        self._table.append(rows, snapshot_properties=words)
        self._last = epoch_id

    def _search(self) -> int:
        """Walk back to the query's last epoch; -1 if there is none."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if said.get("queryId") == self._query_id:
                return int(said["epochId"])
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return -1

    def count_rows(self) -> int:
        return self._table.scan().count()

    def facts(self) -> Facts:
        described = [self._table.metadata_location]
        fragments = 0
        if snapshot := self._table.current_snapshot():
            manifests = snapshot.manifests(self._table.io)
            described += [snapshot.manifest_list, *(each.manifest_path for each in manifests)]
            fragments = sum(
                (each.added_files_count or 0) + (each.existing_files_count or 0)
                for each in manifests
            )
        sizes = (Path(path.removeprefix("file://")).stat().st_size for path in described)
        return Facts(fragments, sum(sizes), folder_bytes(self.uri))
