"""Tombstones whose time is over are removed by maintenance, those of the newest epoch excepted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa

from airflow_provider_lance.maintenance.tombstones import forget_tombstones
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.sides import DELETED_AT, EXPIRES_AT

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("lsn", pa.int64()), (DELETED_AT, TIME), (EXPIRES_AT, TIME)]
)


def test_tombstones_are_removed_once_they_may_be_forgotten(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders.tombstones.lance")
    now = datetime.now(UTC)

    def at(days: float) -> datetime:
        return now + timedelta(days=days)

    rows = [
        {"id": 1, "lsn": 5, DELETED_AT: at(-9), EXPIRES_AT: at(-2)},
        {"id": None, "lsn": 6, DELETED_AT: at(-8), EXPIRES_AT: at(-1)},
        {"id": 2, "lsn": 7, DELETED_AT: at(-6), EXPIRES_AT: at(1)},
        {"id": 3, "lsn": 8, DELETED_AT: at(-5), EXPIRES_AT: at(-4)},
    ]
    lance.write_dataset(SCHEMA.empty_table(), uri)
    assert forget_tombstones(open_dataset(uri)) == 0
    for row in rows:
        lance.write_dataset(pa.Table.from_pylist([row], SCHEMA), uri, mode="append")
    assert forget_tombstones(open_dataset(uri)) == 2
    # The last one may be forgotten too, but it is what the newest epoch left.
    assert lance.dataset(uri).to_table()["id"].to_pylist() == [2, 3]
    assert forget_tombstones(open_dataset(uri)) == 0
