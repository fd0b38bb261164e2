"""Versions in memory, and Lance's rules of which commits exclude each other; pure.

A fragment is a tuple of rows, a row a mapping. `tests/integration` checks the rules on a real
dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_lance.protocol.port import (
    AddColumns,
    Append,
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)

__all__ = [
    "Committed",
    "Fragment",
    "Restore",
    "Rewrite",
    "Row",
    "Version",
    "conflicts",
    "keys_of",
    "touched_by",
]

Row = Mapping[str, Any]
Fragment = tuple[Row, ...]


@dataclass(frozen=True)
class Rewrite:
    """A compaction: all fragments become one. Only the in-memory dataset commits it as a change.

    ``alters`` says that it also alters a column.
    """

    alters: bool = False


@dataclass(frozen=True)
class Restore:
    """An older version becomes the newest one, config included."""

    version: int


Committed = Change | Rewrite | Restore


@dataclass(frozen=True)
class Version:
    """One manifest, and the commit that made it; ``touched`` are the fragments it replaced."""

    config: Mapping[str, str]
    fragments: Mapping[int, Fragment]
    change: Committed | None = None
    touched: frozenset[int] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)
    layout: int = 0


def keys_of(rows: Iterable[Row], merge_keys: Sequence[str]) -> set[tuple[Any, ...]]:
    """Return the rows' values of the merge keys."""
    return {tuple(row[name] for name in merge_keys) for row in rows}


def touched_by(change: Committed, base: Version) -> frozenset[int]:
    """Return the fragments that a change reads or replaces."""
    match change:
        case Rewrite() | Overwrite() | Restore():
            return frozenset(base.fragments)
        case Upsert(_, keys, merge_keys, _):
            doomed, held = keys_of(keys, merge_keys), base.fragments
            return frozenset(each for each in held if keys_of(held[each], merge_keys) & doomed)
    return frozenset()


def conflicts(landed: Version, ours: Committed, touched: frozenset[int]) -> bool:
    """Return whether ``ours``, made on an older version, must fail because of what landed since."""
    match landed.change, ours:
        case _, Overwrite():
            return True
        case Configure(theirs), Configure(mine):
            return bool(theirs.keys() & mine.keys())
        case (Barrier() | AddColumns(), Append() | Upsert() | Barrier() | AddColumns()):
            return True
        case (Append() | Upsert(), Barrier() | AddColumns()):
            return True
        case (Overwrite() | Restore(), Append() | Upsert() | Rewrite() | Barrier() | AddColumns()):
            return True
        case (Upsert() | Rewrite(), Upsert() | Rewrite()):
            return bool(landed.touched & touched)
    return False
