"""A Lance dataset in memory: same conflicts, same errors, no files.

For tests of the protocol and of code that uses it. A fragment is a tuple of rows, a row a mapping.
The conflict rules are those of Lance, which `tests/integration` checks on a real dataset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetNotFoundError,
)
from airflow_provider_lance.protocol.port import (
    Append,
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.testing.conflicts import (
    Committed,
    Fragment,
    Restore,
    Rewrite,
    Row,
    Version,
    conflicts,
    touched_by,
)

__all__ = ["Fault", "InMemoryDataset", "InMemoryDatasetPort"]


class Fault(StrEnum):
    """What the store does to the next commit; each one raises `CommitStateUnknownError`."""

    LOST_REQUEST = "lost request"
    """The request never arrives."""
    LOST_ANSWER = "lost answer"
    """The commit lands, but the caller gets no answer."""
    LATE = "late"
    """The caller gets an error; the manifest lands later, if its version is still free."""
    PAUSED = "paused"
    """The writer stops between its conflict check and the link, while ``while_paused`` happens.

    The link then succeeds wherever its version number is free, even below the newest version.
    """


class InMemoryDataset:
    """A dataset in memory, shared by any number of ports and threads."""

    def __init__(self, uri: str = "memory://dataset", config: Mapping[str, str] | None = None):
        self.uri = uri
        self.layout = 0
        self.is_local = False
        """Whether drivers read the store before each commit."""
        self.faults: list[Fault | None] = []
        """The faults of the next commits, in order; ``None`` lets one pass."""
        self.while_paused: Callable[[], None] = lambda: None
        """What other writers do while a writer is paused."""
        self._lock = threading.RLock()
        self._versions: dict[int, Version] = {1: Version(dict(config or {}), {})}
        self._head = 1
        self._next_fragment = 0
        self._files: set[int] = set()
        self._late: Callable[[], None] | None = None

    def open(self, version: int | None = None) -> InMemoryDatasetPort:
        """Return a port at the newest version, or at the given one."""
        return InMemoryDatasetPort(self, version or self._head)

    @property
    def version(self) -> int:
        """Return the newest version."""
        return self._head

    @property
    def fragments(self) -> int:
        """Return how many fragments the newest version has."""
        return len(self._versions[self._head].fragments)

    def rows(self) -> list[Row]:
        """Return all rows of the newest version.

        :raises DatasetNotFoundError: a data file that the version references was deleted.
        """
        fragments = self._versions[self._head].fragments
        self._refuse_lost_files(fragments)
        return list(_rows(fragments))

    def compact(self, read_version: int | None = None) -> int:
        """Rewrite all fragments into one; return the new version."""
        return self.commit(read_version or self._head, Rewrite(), {})

    def alter(self) -> None:
        """Alter a column: earlier fragments no longer fit."""
        self.layout += 1
        self.commit(self._head, Rewrite(), {})

    def clean_up(self, keep_from: int) -> None:
        """Remove every version below ``keep_from``, transactions included, as Lance does."""
        with self._lock:
            for version in [v for v in self._versions if v < min(keep_from, self._head)]:
                del self._versions[version]

    def restore(self, version: int) -> int:
        """Restore an older version, as ``LanceDataset.restore`` does; return the new one."""
        return self.commit(self._head, Restore(version), {})

    def recreate(self, config: Mapping[str, str] | None = None) -> None:
        """Drop the dataset with all its files, and create another in its place."""
        with self._lock:
            self._versions, self._head = {1: Version(dict(config or {}), {})}, 1
            self._files, self._late = set(), None

    def at(self, version: int) -> Version | None:
        """Return a version, or ``None`` if it was cleaned up."""
        return self._versions.get(version)

    def _refuse_lost_files(self, fragments: Collection[int]) -> None:
        if not self.has_files(fragments):
            raise DatasetNotFoundError(f"{self.uri} names data files that are gone")

    def has_files(self, fragments: Collection[int]) -> bool:
        """Return whether the data files of some fragments are in the store."""
        return self._files.issuperset(fragments)

    def commit(
        self,
        read_version: int,
        change: Committed,
        properties: Mapping[str, str],
        base: Version | None = None,
    ) -> int:
        """Commit a change made on ``read_version``; see ``DatasetPort.commit``.

        :param base: that version, as the writer's handle has it in memory.
        """
        with self._lock:
            if self._late:
                late, self._late = self._late, None
                late()
            fault = self.faults.pop(0) if self.faults else None
            if fault is Fault.LOST_REQUEST:
                raise CommitStateUnknownError(f"{_name(change)}: the request was lost")
            if fault is Fault.LATE:
                self._late = self._land_late(read_version, change, properties, base)
                raise CommitStateUnknownError(f"{_name(change)}: the request is late")
            target, made = self._apply(read_version, change, properties, base)
            if fault is Fault.PAUSED:
                self.while_paused()
            version = self._link(target, made, change)
            if fault is Fault.LOST_ANSWER:
                raise CommitStateUnknownError(f"{_name(change)}: the answer was lost")
            return version

    def _land_late(
        self,
        read_version: int,
        change: Committed,
        properties: Mapping[str, str],
        base: Version | None,
    ) -> Callable[[], None]:
        # The late write is one manifest under one version number: it lands there or nowhere.
        target, made = self._apply(read_version, change, properties, base)

        def land() -> None:
            if target not in self._versions:
                self._link(target, made, change)

        return land

    def _link(self, target: int, made: Version, change: object) -> int:
        """Publish a manifest under its number, which must be free and may be an old one."""
        if target in self._versions:
            raise CommitPreemptedError(f"{_name(change)}: version {target} was taken meanwhile")
        self._versions[target] = made
        self._head = max(self._head, target)
        return target

    def _apply(
        self,
        read_version: int,
        change: Committed,
        properties: Mapping[str, str],
        base: Version | None,
    ) -> tuple[int, Version]:
        """Check for conflicts; return the version number to link, and its content."""
        # A handle keeps its manifest: Lance commits on top of it if the store has no newer one,
        # even when the dataset was dropped (seen on pylance 14.0.2).
        base = base or self._versions[read_version]
        touched = touched_by(change, base)
        for version in range(read_version + 1, self._head + 1):
            landed = self._versions.get(version)
            # As in Lance, a version that was cleaned up is not a conflict, even if it was a
            # barrier.
            if landed is None and not isinstance(change, Overwrite):
                continue
            if landed is None or conflicts(landed, change, touched):
                raise CommitPreemptedError(
                    f"{_name(change)} on version {read_version} was preempted by version {version}"
                )
        head = self._versions[self._head] if self._head >= read_version else base
        config, fragments = dict(head.config), dict(head.fragments)
        match change:
            case Append(added):
                self._add(fragments, added)
            case Overwrite(added):
                fragments.clear()
                self._add(fragments, added)
            case Upsert(added, keys, merge_keys):
                doomed = {tuple(row[name] for name in merge_keys) for row in keys}
                fragments |= {
                    number: tuple(
                        row
                        for row in fragments[number]
                        if tuple(row[name] for name in merge_keys) not in doomed
                    )
                    for number in touched & fragments.keys()
                }
                self._add(fragments, added)
            case Configure(updates):
                config = {k: v for k, v in (config | dict(updates)).items() if v is not None}
            case Rewrite():
                self._refuse_lost_files(touched)
                merged = tuple(row for number in sorted(touched) for row in fragments.pop(number))
                self._add(fragments, [merged])
            case Restore(version):
                old = self._versions[version]
                config, fragments = dict(old.config), dict(old.fragments)
            case Barrier():
                pass
        made = Version(config, fragments, change, touched, dict(properties))
        return max(self._head, read_version) + 1, made

    def _add(self, fragments: dict[int, Fragment], added: Sequence[Fragment]) -> None:
        for fragment in added:
            fragments[self._next_fragment] = tuple(fragment)
            self._files.add(self._next_fragment)
            self._next_fragment += 1


class InMemoryDatasetPort:
    """A handle on a :class:`InMemoryDataset` at one version."""

    def __init__(self, dataset: InMemoryDataset, version: int) -> None:
        found = dataset.at(version)
        if found is None:
            raise DatasetNotFoundError(f"version {version} of {dataset.uri} was cleaned up")
        self._dataset, self._version, self._found = dataset, version, found
        self._layout = dataset.layout

    @property
    def uri(self) -> str:
        """Return the dataset's URI."""
        return self._dataset.uri

    @property
    def version(self) -> int:
        """Return the version at which the handle stands."""
        return self._version

    @property
    def is_local(self) -> bool:
        """Return whether a read of the store is declared to cost nothing."""
        return self._dataset.is_local

    @property
    def config(self) -> Mapping[str, str]:
        """Return the manifest config at that version."""
        return self._found.config

    @property
    def layout(self) -> object:
        """Return the schema's number; :meth:`InMemoryDataset.alter` raises it."""
        return self._layout

    def latest(self) -> InMemoryDatasetPort:
        """Return a handle at the newest version."""
        return self._dataset.open()

    def at(self, version: int) -> InMemoryDatasetPort | None:
        """Return a handle at a version, ``None`` if it was cleaned up."""
        return self._dataset.open(version) if self._dataset.at(version) else None

    def properties(self, version: int) -> Mapping[str, str] | None:
        """Return a version's transaction properties, ``None`` if it was cleaned up."""
        found = self._dataset.at(version)
        return None if found is None else found.properties

    def restored(self, version: int) -> int | None:
        """Return the version that a version restored, ``None`` if it did something else."""
        found = self._dataset.at(version)
        change = found.change if found else None
        return change.version if isinstance(change, Restore) else None

    def oldest_fragment(self) -> object | None:
        """Return what identifies the first fragment."""
        return min(self._found.fragments, default=None)

    def added_since(self, earlier: InMemoryDatasetPort) -> object | None:
        """Return what identifies the newest fragment that an earlier version lacks."""
        return max(self._found.fragments.keys() - earlier._found.fragments.keys(), default=None)

    def has_fragment(self, fragment: object) -> bool:
        """Return whether this version has a fragment."""
        return fragment in self._found.fragments

    def is_made_without(self, fragment: Any) -> bool:
        """Compare ids, which grow."""
        newest = max(self._found.fragments, default=-1)
        return not self.has_fragment(fragment) and bool(newest < fragment)

    def is_intact(self) -> bool:
        """Return whether the oldest data file that this version references is in the store."""
        oldest = sorted(self._found.fragments)[:1]
        there = self._dataset.at(self._version) is not None
        return self._dataset.has_files(oldest) if oldest else there

    def newest_intact(self) -> int | None:
        """Return the newest version in the store that is intact."""
        ports = map(self.at, range(self._dataset.version, 0, -1))
        return next((port.version for port in ports if port and port.is_intact()), None)

    def commit(
        self, change: Change, properties: Mapping[str, str] | None = None
    ) -> InMemoryDatasetPort:
        """Commit one change on top of this version; see ``DatasetPort.commit``."""
        landed = self._dataset.commit(self._version, change, properties or {}, self._found)
        return self._dataset.open(landed)


def _name(change: object) -> str:
    return type(change).__name__


def _rows(fragments: Mapping[int, Fragment]) -> Iterator[Row]:
    for number in sorted(fragments):
        yield from fragments[number]
