"""What Lance's change feed says of one version, by merge key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lance

_META = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")


@dataclass
class Feed:
    """The rows that one version inserted and updated, and the row ids that it deleted."""

    inserted: dict[Any, dict[str, Any]]
    updated: dict[Any, dict[str, Any]]
    deleted: set[int]


def feed(uri: str, version: int, key: str = "id") -> Feed:
    """Return what a version changed since the one before it."""
    dataset = lance.dataset(uri, version=version)
    delta = dataset.delta(begin_version=version - 1, end_version=version)
    inserted = delta.get_inserted_rows().read_all().to_pylist()
    updated = delta.get_updated_rows().read_all().to_pylist()
    deleted = delta.get_deleted_row_ids().read_all().column("_rowid").to_pylist()
    return Feed(
        {row[key]: _plain(row) for row in inserted},
        {row[key]: _plain(row) for row in updated},
        set(deleted),
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _META}


@dataclass(frozen=True)
class Lineage:
    """The row id of a row, and the versions that created it and that changed it last."""

    row_id: int
    created: int
    updated: int


def lineage(uri: str, version: int | None = None, key: str = "id") -> dict[Any, Lineage]:
    """Return the lineage of each row of a version; fails if an id or a key is there twice."""
    rows = lance.dataset(uri, version=version).to_table(columns=[key, *_META]).to_pylist()
    found = {row[key]: Lineage(*(row[name] for name in _META)) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    assert len({each.row_id for each in found.values()}) == len(rows), "a row id is there twice"
    return found
