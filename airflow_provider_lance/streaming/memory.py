"""The in-memory twin of a Lance dataset: same conflicts, same errors, no files.

For tests of the protocol and of whatever is built on it. A fragment is a tuple of rows, a row a
mapping. The conflict rules are those of Lance as `tests/integration` checks them on the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetNotFoundError,
)
from airflow_provider_lance.streaming.port import (
    Append,
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)

__all__ = ["Fault", "MemoryDataset", "MemoryDatasetPort"]

Row = Mapping[str, Any]
Fragment = tuple[Row, ...]


class Fault(StrEnum):
    """What the store does to the next commit; each one raises `CommitStateUnknownError`."""

    LOST_REQUEST = "lost request"
    """The request never arrives."""
    LOST_ANSWER = "lost answer"
    """The commit lands, the caller is not told."""
    LATE = "late"
    """The caller is told of a failure; the manifest lands later, if its version is still free."""


@dataclass(frozen=True)
class Rewrite:
    """A compaction: all fragments become one. Only the twin commits it as a change."""


@dataclass(frozen=True)
class _Version:
    config: Mapping[str, str]
    fragments: Mapping[int, Fragment]
    change: Change | Rewrite | None = None
    touched: frozenset[int] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)


class MemoryDataset:
    """A dataset in memory, shared by any number of ports and threads."""

    def __init__(self, uri: str = "memory://dataset", config: Mapping[str, str] | None = None):
        self.uri = uri
        self.layout = 0
        self.faults: list[Fault | None] = []
        """What happens to the commits to come, first to last; ``None`` lets one pass."""
        self._lock = threading.RLock()
        self._versions: dict[int, _Version] = {1: _Version(dict(config or {}), {})}
        self._gone: set[int] = set()
        self._head = 1
        self._next_fragment = 0
        self._late: Callable[[], None] | None = None

    def open(self, version: int | None = None) -> MemoryDatasetPort:
        """Return a port at the newest version, or at the one named."""
        return MemoryDatasetPort(self, version or self._head)

    @property
    def version(self) -> int:
        """Return the newest version."""
        return self._head

    @property
    def fragments(self) -> int:
        """Return how many fragments the newest version has."""
        return len(self._versions[self._head].fragments)

    def rows(self) -> list[Row]:
        """Return all rows of the newest version."""
        return list(_rows(self._versions[self._head].fragments))

    def compact(self, read_version: int | None = None) -> int:
        """Rewrite all fragments into one; return the new version."""
        return self.commit(read_version or self._head, Rewrite(), {})

    def alter(self) -> None:
        """Alter a column: fragments written before fit no longer."""
        self.layout += 1
        self.commit(self._head, Rewrite(), {})

    def clean_up(self, keep_from: int) -> None:
        """Remove every version below ``keep_from``, transactions included, as Lance does."""
        with self._lock:
            self._gone |= {v for v in self._versions if v < min(keep_from, self._head)}

    def at(self, version: int) -> _Version | None:
        """Return a version, or ``None`` if it was cleaned up."""
        return None if version in self._gone else self._versions.get(version)

    def commit(
        self, read_version: int, change: Change | Rewrite, properties: Mapping[str, str]
    ) -> int:
        """Commit a change made on ``read_version``; see :class:`.port.DatasetPort`."""
        with self._lock:
            if self._late:
                late, self._late = self._late, None
                late()
            fault = self.faults.pop(0) if self.faults else None
            if fault is Fault.LOST_REQUEST:
                raise CommitStateUnknownError(f"{_name(change)}: the request was lost")
            if fault is Fault.LATE:
                self._late = self._land_late(read_version, change, properties)
                raise CommitStateUnknownError(f"{_name(change)}: the request is late")
            version = self._land(read_version, change, properties)
            if fault is Fault.LOST_ANSWER:
                raise CommitStateUnknownError(f"{_name(change)}: the answer was lost")
            return version

    def _land_late(
        self, read_version: int, change: Change | Rewrite, properties: Mapping[str, str]
    ) -> Callable[[], None]:
        # The late write is one manifest under one version number: it lands there or nowhere.
        target, made = self._head + 1, self._apply(read_version, change, properties)

        def land() -> None:
            if self._head + 1 == target:
                self._versions[target], self._head = made, target

        return land

    def _land(
        self, read_version: int, change: Change | Rewrite, properties: Mapping[str, str]
    ) -> int:
        made = self._apply(read_version, change, properties)
        self._head += 1
        self._versions[self._head] = made
        return self._head

    def _apply(
        self, read_version: int, change: Change | Rewrite, properties: Mapping[str, str]
    ) -> _Version:
        touched = _touched(change, self._versions[read_version])
        for version in range(read_version + 1, self._head + 1):
            # As in Lance, a version that was cleaned up is no obstacle, were it a barrier.
            if version in self._gone and not isinstance(change, Overwrite):
                continue
            if _conflicts(self._versions[version], change, touched):
                raise CommitPreemptedError(
                    f"{_name(change)} on version {read_version} was preempted by version {version}"
                )
        head = self._versions[self._head]
        config, fragments = dict(head.config), dict(head.fragments)
        match change:
            case Append(added):
                self._add(fragments, added)
            case Overwrite(added):
                fragments.clear()
                self._add(fragments, added)
            case Upsert(added, keys, merge_keys):
                doomed = {tuple(row[name] for name in merge_keys) for row in keys}
                for number in touched & fragments.keys():
                    fragments[number] = tuple(
                        row
                        for row in fragments[number]
                        if tuple(row[name] for name in merge_keys) not in doomed
                    )
                self._add(fragments, added)
            case Configure(updates):
                config.update({k: v for k, v in updates.items() if v is not None})
                for name in [k for k, v in updates.items() if v is None]:
                    config.pop(name, None)
            case Rewrite():
                merged = tuple(row for number in sorted(touched) for row in fragments.pop(number))
                self._add(fragments, [merged])
            case Barrier():
                pass
        return _Version(config, fragments, change, touched, dict(properties))

    def _add(self, fragments: dict[int, Fragment], added: Sequence[Fragment]) -> None:
        for fragment in added:
            fragments[self._next_fragment] = tuple(fragment)
            self._next_fragment += 1


class MemoryDatasetPort:
    """A handle on a :class:`MemoryDataset` that stands at one version."""

    def __init__(self, dataset: MemoryDataset, version: int) -> None:
        found = dataset.at(version)
        if found is None:
            raise DatasetNotFoundError(f"version {version} of {dataset.uri} was cleaned up")
        self._dataset, self._version, self._config = dataset, version, found.config
        self._layout = dataset.layout

    @property
    def uri(self) -> str:
        """Return the dataset's URI."""
        return self._dataset.uri

    @property
    def version(self) -> int:
        """Return the version the handle stands at."""
        return self._version

    @property
    def config(self) -> Mapping[str, str]:
        """Return the manifest config at that version."""
        return self._config

    @property
    def layout(self) -> object:
        """Return the schema's number; :meth:`MemoryDataset.alter` raises it."""
        return self._layout

    def latest(self) -> MemoryDatasetPort:
        """Return a handle at the newest version."""
        return self._dataset.open()

    def properties(self, version: int) -> Mapping[str, str] | None:
        """Return a version's transaction properties, ``None`` if it was cleaned up."""
        found = self._dataset.at(version)
        return None if found is None else found.properties

    def commit(
        self, change: Change, properties: Mapping[str, str] | None = None
    ) -> MemoryDatasetPort:
        """Commit one change on top of this version; see :class:`.port.DatasetPort`."""
        landed = self._dataset.commit(self._version, change, properties or {})
        return self._dataset.open(landed)


def _name(change: object) -> str:
    return type(change).__name__


def _rows(fragments: Mapping[int, Fragment]) -> Iterator[Row]:
    for number in sorted(fragments):
        yield from fragments[number]


def _touched(change: Change | Rewrite, base: _Version) -> frozenset[int]:
    match change:
        case Rewrite() | Overwrite():
            return frozenset(base.fragments)
        case Upsert(_, keys, merge_keys):
            wanted = {tuple(row[name] for name in merge_keys) for row in keys}
            return frozenset(
                number
                for number, rows in base.fragments.items()
                if any(tuple(row[name] for name in merge_keys) in wanted for row in rows)
            )
    return frozenset()


def _conflicts(landed: _Version, ours: Change | Rewrite, touched: frozenset[int]) -> bool:
    """Tell whether ``ours``, made on an older version, must yield to what landed since."""
    match landed.change, ours:
        case _, Overwrite():
            return True
        case Configure(theirs), Configure(mine):
            return bool(theirs.keys() & mine.keys())
        case (Barrier(), Append() | Upsert() | Barrier()):
            return True
        case (Append() | Upsert() | Rewrite(), Barrier()):
            return not isinstance(landed.change, Rewrite)
        case (Overwrite(), Append() | Upsert() | Rewrite() | Barrier()):
            return True
        case (Upsert() | Rewrite(), Upsert() | Rewrite()):
            return bool(landed.touched & touched)
    return False
