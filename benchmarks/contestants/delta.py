"""Delta Lake by delta-rs: each commit carries the query's epoch as its application transaction.

The table handle is kept and brought up to date before each epoch, for a replay is told by what the
log says. Checkpoints of the log are written as the library does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from benchmarks.contestants.table import NO_OPTIONS, QUERY, Facts, Table, folder_bytes


class Delta(Table):
    """One log entry an epoch, with a parquet file."""

    def __init__(
        self,
        place: str,
        schema: pa.Schema,
        *,
        query_id: str = QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        super().__init__()
        self.uri, self._query_id = f"{place}/t.delta", query_id
        self._table = DeltaTable.create(
            self.uri, schema, mode="ignore", storage_options=dict(storage)
        )

    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        self._table.update_incremental()
        known = self._table.transaction_version(self._query_id)
        if known is not None and epoch_id <= known:
            return
        done = CommitProperties(app_transactions=[Transaction(self._query_id, epoch_id)])
        write_deltalake(self._table, rows, mode="append", commit_properties=done)

    def count_rows(self) -> int:
        return self._table.count()

    def facts(self) -> Facts:
        log = Path(self.uri, "_delta_log")
        checkpoint = max(log.glob("*.checkpoint.parquet"), default=None)
        since = checkpoint.name.split(".")[0] if checkpoint else ""
        described = [path for path in log.glob("*.json") if path.stem > since]
        described += [checkpoint] if checkpoint else []
        return Facts(
            fragments=self._table.get_add_actions().num_rows,
            manifest_bytes=sum(path.stat().st_size for path in described),
            stored_bytes=folder_bytes(self.uri),
        )
