"""A Lance dataset in memory: same conflicts, same errors, no files.

For tests of the protocol and of code that uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetNotFoundError,
)
from airflow_provider_lance.protocol.port import (
    AddColumns,
    Append,
    Change,
    Configure,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.testing.commit_rules import (
    Committed,
    Fragment,
    Restore,
    Rewrite,
    Row,
    Version,
    conflicts,
    keys_of,
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
        self._layouts = 0
        self.is_local = False
        """Whether drivers read the store before each commit."""
        self.faults: list[Fault | None] = []
        """The faults of the next commits, in order; ``None`` lets one pass."""
        self.while_paused: Callable[[], None] = lambda: None
        """What other writers do while a writer is paused."""
        self.version = 1
        """The newest version."""
        self._lock = threading.RLock()
        self._versions: dict[int, Version] = {1: Version(dict(config or {}), {})}
        self._next_fragment = 0
        self._files: set[int] = set()
        self._late: tuple[int, Version] | None = None

    def open(self, version: int | None = None) -> InMemoryDatasetPort:
        """Return a port at the newest version, or at the given one."""
        return InMemoryDatasetPort(self, version or self.version)

    @property
    def fragments(self) -> int:
        """Return how many fragments the newest version has."""
        return len(self._versions[self.version].fragments)

    def rows(self) -> list[Row]:
        """Return all rows of the newest version.

        :raises DatasetNotFoundError: a data file that the version references was deleted.
        """
        fragments = self._versions[self.version].fragments
        self._refuse_lost_files(fragments)
        return [row for number in sorted(fragments) for row in fragments[number]]

    def compact(self, read_version: int | None = None) -> int:
        """Rewrite all fragments into one; return the new version."""
        return self.commit(read_version or self.version, Rewrite(), {})

    def alter(self) -> None:
        """Alter a column: earlier fragments no longer fit."""
        self.commit(self.version, Rewrite(alters=True), {})

    def clean_up(self, keep_from: int) -> None:
        """Remove every version below ``keep_from``, transactions included, as Lance does."""
        with self._lock:
            for version in [v for v in self._versions if v < min(keep_from, self.version)]:
                del self._versions[version]

    def restore(self, version: int) -> int:
        """Restore an older version, as ``LanceDataset.restore`` does; return the new one."""
        return self.commit(self.version, Restore(version), {})

    def recreate(self, config: Mapping[str, str] | None = None) -> None:
        """Drop the dataset with all its files, and create another in its place."""
        with self._lock:
            self._versions, self.version = {1: Version(dict(config or {}), {})}, 1
            self._files, self._late = set(), None

    def at(self, version: int) -> Version | None:
        """Return a version, or ``None`` if it was cleaned up."""
        return self._versions.get(version)

    def has_files(self, fragments: Collection[int]) -> bool:
        """Return whether the data files of some fragments are in the store."""
        return self._files.issuperset(fragments)

    def _refuse_lost_files(self, fragments: Collection[int]) -> None:
        if not self.has_files(fragments):
            raise DatasetNotFoundError(f"{self.uri} names data files that are gone")

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
        what = type(change).__name__
        with self._lock:
            if self._late and self._late[0] not in self._versions:
                # It is one manifest under one version number: it lands there or nowhere.
                self._link(*self._late)
            self._late = None
            fault = self.faults.pop(0) if self.faults else None
            if fault is Fault.LOST_REQUEST:
                raise CommitStateUnknownError(f"{what}: the request was lost")
            target, made = self._apply(read_version, change, properties, base)
            if fault is Fault.LATE:
                self._late = target, made
                raise CommitStateUnknownError(f"{what}: the request is late")
            if fault is Fault.PAUSED:
                self.while_paused()
            if target in self._versions:  # the number must be free, and may be an old one
                raise CommitPreemptedError(f"{what}: version {target} was taken meanwhile")
            self._link(target, made)
            if fault is Fault.LOST_ANSWER:
                raise CommitStateUnknownError(f"{what}: the answer was lost")
            return target

    def _link(self, target: int, made: Version) -> None:
        self._versions[target] = made
        self.version = max(self.version, target)

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
        for version in range(read_version + 1, self.version + 1):
            landed = self._versions.get(version)
            # As in Lance, a version that was cleaned up is no conflict, even if it was a barrier.
            missing = landed is None and isinstance(change, Overwrite)
            if missing or (landed and conflicts(landed, change, touched)):
                what = f"{type(change).__name__} on version {read_version}"
                raise CommitPreemptedError(f"{what} was preempted by version {version}")
        head = self._versions[self.version] if self.version >= read_version else base
        config, fragments, layout = dict(head.config), dict(head.fragments), head.layout
        if change == Rewrite(alters=True) or isinstance(change, AddColumns):
            layout = self._layouts = self._layouts + 1
        match change:
            case Append(added):
                self._add(fragments, added)
            case Overwrite(added):
                fragments.clear()
                self._add(fragments, added)
            case Upsert(added, keys, merge_keys, _):
                doomed = keys_of(keys, merge_keys)
                for number in touched & fragments.keys():
                    kept = (
                        row for row in fragments[number] if not keys_of([row], merge_keys) & doomed
                    )
                    fragments[number] = tuple(kept)
                self._add(fragments, added)
            case Configure(updates):
                config = {k: v for k, v in (config | dict(updates)).items() if v is not None}
            case Rewrite():
                self._refuse_lost_files(touched)
                merged = tuple(row for number in sorted(touched) for row in fragments.pop(number))
                self._add(fragments, [merged])
            case Restore(version):
                old = self._versions[version]
                config, fragments, layout = dict(old.config), dict(old.fragments), old.layout
        made = Version(config, fragments, change, touched, dict(properties), layout)
        return max(self.version, read_version) + 1, made

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
        self._dataset, self._found = dataset, found
        self.uri = dataset.uri
        """The dataset's URI."""
        self.version = version
        """The version at which the handle stands."""
        self.config = found.config
        """The manifest config at that version."""
        self.layout: object = found.layout
        """The schema's number; each change of the schema has another."""

    @property
    def is_local(self) -> bool:
        """Return whether a read of the store is declared to cost nothing."""
        return self._dataset.is_local

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

    def changed_rows(self, version: int) -> bool:
        """Return whether a version may have changed rows."""
        found = self._dataset.at(version)
        change = found.change if found else Restore(version)
        if isinstance(change, Append):
            return bool(change.fragments)
        return isinstance(change, Overwrite | Upsert | Restore)

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
        there = self._dataset.at(self.version) is not None
        return self._dataset.has_files(oldest) if oldest else there

    def newest_intact(self) -> int | None:
        """Return the newest version in the store that is intact."""
        ports = map(self.at, range(self._dataset.version, 0, -1))
        return next((port.version for port in ports if port and port.is_intact()), None)

    def commit(
        self, change: Change, properties: Mapping[str, str] | None = None
    ) -> InMemoryDatasetPort:
        """Commit one change on top of this version; see ``DatasetPort.commit``."""
        landed = self._dataset.commit(self.version, change, properties or {}, self._found)
        return self._dataset.open(landed)
