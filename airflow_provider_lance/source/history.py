"""The versions of one dataset as a query sees them: verified, and each with what it changed.

Nothing of an earlier version is trusted because it was read once: a dataset may be restored, or
dropped and created again, while a query waits. So every epoch compares the commit time of the
version where it begins, through a handle without caches of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetRestoredError,
    SourceChangedError,
    SourceDataLossError,
    SpecError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.source.changes import Effect, VersionChange, effect_of, snapshot
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.source.slices import another_dataset

__all__ = ["SourceHistory"]

_NEW_START = "start the query with a new checkpointLocation and query id"


class SourceHistory:
    """The history of the dataset that one query reads; not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        columns: SourceColumns,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.options, self.columns = options, columns
        self.storage_options = dict(storage_options or {})
        self.newest_seen: LanceDatasetPort | None = None
        """The newest version, as it was opened last."""
        self._changes: dict[tuple[int, bool], VersionChange] = {}

    def known(self, version: int) -> VersionChange | None:
        """Return what a version changed, if that was read before; no I/O."""
        return self._changes.get((version, False))

    def open(self) -> LanceDatasetPort:
        """Open the newest version without earlier caches.

        :raises DatasetNotFoundError, StorageUnavailableError: it cannot be opened.
        :raises SpecError: a change feed is wanted, and the dataset has none.
        """
        self.newest_seen = port = open_dataset(self.options.path, self.storage_options)
        if self.options.read_change_feed and not port.dataset.has_stable_row_ids:
            raise SpecError(
                f"readChangeFeed=true needs stable row ids, and {port.uri} was created without "
                "them; Lance cannot add them later. Create a dataset with them, for example by a "
                "sink with createIfMissing=true and changeFeed=true, and copy the rows into it. If "
                "rows are only appended, leave readChangeFeed out"
            )
        return port

    def verified(self, start: SourceOffset) -> LanceDatasetPort:
        """Open the newest version; make sure that it descends from where reading begins.

        :raises DatasetRestoredError: another dataset is in its place.
        :raises SourceDataLossError: the version where reading begins was cleaned up.
        :raises CheckpointMismatchError: the position counts rows in another way.
        """
        port = self.newest_seen
        fresh = self.open()
        if port is not None:
            same = fresh if port.version == fresh.version else fresh.at(port.version)
            if same is None or commit_time(same) != commit_time(port):
                self._changes.clear()
        self.verify(fresh, start)
        if start.change_feed != self.options.read_change_feed and start.index is not None:
            raise CheckpointMismatchError(
                f"the checkpoint stopped at {start} with readChangeFeed="
                f"{str(start.change_feed).lower()}, and its rows are counted in another way with "
                f"readChangeFeed={str(self.options.read_change_feed).lower()}. Set it back until "
                f"the query has read all of version {start.version}, or {_NEW_START}"
            )
        return fresh

    def verify(self, port: LanceDatasetPort, position: SourceOffset) -> None:
        """Make sure that a position is one of this dataset.

        :raises DatasetRestoredError, SourceDataLossError: as :meth:`verified`.
        """
        if position.version > port.version:
            raise another_dataset(
                port.uri,
                f"it was at version {position.version}, and its newest version is {port.version}",
            )
        found = self.at(port, position.version, f"the query's position, {position},")
        if commit_time(found) != position.timestamp:
            raise another_dataset(
                port.uri,
                f"version {position.version} was committed at {commit_time(found)} microseconds "
                f"since 1970, and the version that was read at {position.timestamp}",
            )

    def at(self, port: LanceDatasetPort, version: int, what: str) -> LanceDatasetPort:
        """Return a handle at a version.

        :param what: what needs the version, for the error.
        :raises SourceDataLossError: it was cleaned up.
        """
        if found := port.at(version):
            return found
        raise SourceDataLossError(
            f"version {version} of {port.uri} was cleaned up, and {what} needs it: rows that later "
            f"versions deleted or replaced can no longer be read (the newest is {port.version}). "
            f"Let cleanup keep what consumers need (consumerRetention). To go on, {_NEW_START}: it "
            "begins with a snapshot of what the table holds now"
        )

    def walk(
        self, port: LanceDatasetPort, start: SourceOffset, last: int
    ) -> Iterator[VersionChange]:
        """Yield what each version changed, from the one in which reading stands to ``last``.

        :raises LanceStreamError: a version cannot be read, or this query may not pass over it.
        """
        before = self.at(port, start.version, f"the query's position, {start},")
        if start.index is not None:
            yield self._change(before, None, start)
        for number in range(start.version + 1, last + 1):
            known = self.known(number)
            if known is None:
                here = self.at(port, number, f"the query at {start}")
                if before.version != number - 1:
                    before = self.at(port, number - 1, f"the query at {start}")
                known = self._change(here, before)
                before = here
            yield known

    def _change(
        self,
        here: LanceDatasetPort,
        before: LanceDatasetPort | None,
        start: SourceOffset | None = None,
    ) -> VersionChange:
        """Return what one version changed, as far as this query reads it.

        :param start: the position, for the version in which reading stands.
        """
        key = (here.version, bool(start and start.snapshot))
        if key not in self._changes:
            if len(self._changes) > 2 * self.options.max_versions:
                self._changes.clear()
            self.columns.check(here)
            if start and start.snapshot:
                self._changes[key] = snapshot(here)
            else:
                if start and here.version > 1:
                    before = here.at(here.version - 1)
                feed = self.options.read_change_feed
                change = effect_of(here, before, columns=self.columns.names, feed=feed)
                self._changes[key] = self._accepted(here, change)
        return self._changes[key]

    def _accepted(self, port: LanceDatasetPort, change: VersionChange) -> VersionChange:
        """Return a change that this query reads or passes over.

        :raises DatasetRestoredError, SourceChangedError: it can do neither.
        """
        options, effect = self.options, change.effect
        if effect in (Effect.NONE, Effect.APPEND):
            return change
        what = f"version {change.version} of {port.uri} {effect.value} ({change.operation})"
        if effect is Effect.RESTORE:
            raise DatasetRestoredError(
                f"{what}: rows that this query has read may no longer be in the table. {_NEW_START}"
                f" and startingVersion={change.version + 1} to read what follows, or without it to "
                "begin with a snapshot"
            )
        if options.read_change_feed and effect is not Effect.UNKNOWN:
            return change
        if options.skip_change_commits or (options.ignore_deletes and effect is Effect.DELETE):
            return VersionChange(
                change.version,
                change.timestamp,
                effect,
                change.operation,
                breaks_fragments=change.breaks_fragments,
            )
        ways = ["skipChangeCommits=true passes over such versions"]
        if effect is Effect.DELETE:
            ways.insert(0, "ignoreDeletes=true passes over deletes")
        if effect is not Effect.UNKNOWN and port.dataset.has_stable_row_ids:
            ways.insert(0, "readChangeFeed=true reads the changed rows")
        if options.read_change_feed:
            ways = []
        ways.append(f"{_NEW_START} to begin with a snapshot")
        raise SourceChangedError(
            f"{what}, and the stream reads {'a change feed' if not ways[:-1] else 'appended rows'}."
            f" Choose: {'; '.join(ways)}"
        )
