"""The reader of one query: where it begins, how far an epoch reads, and which rows those are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_lance.exceptions import (
    SchemaMismatchError,
    SourceChangedError,
    SourceDataLossError,
    SpecError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.source.admission import Budget
from airflow_provider_lance.source.changes import (
    Effect,
    VersionChange,
)
from airflow_provider_lance.source.columns import SourceColumns
from airflow_provider_lance.source.history import SourceHistory
from airflow_provider_lance.source.options import LATEST, SourceOptions
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.source.slices import Slice

__all__ = ["Lag", "SourceReader"]

_QUIET_VERSIONS = 100
"""Versions without rows after which an epoch without rows moves the query's position on, so that
cleanup can remove them. A position that is left in the dataset makes one such version itself."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query is behind: versions, rows that they add, and the age of the first in seconds.

    Versions count from the first with unread rows. ``rows`` is ``None`` if more versions are
    unread than are counted.
    """

    versions: int
    rows: int | None
    seconds: float


class SourceReader:
    """Reads one dataset for one query; not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        columns: SourceColumns,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options
        self._history = SourceHistory(options, columns, storage_options)

    def initial(self) -> SourceOffset:
        """Return where reading begins, by the options and the newest version.

        :raises SourceDataLossError: the starting version was cleaned up.
        :raises SpecError: the starting version or time is in the future.
        """
        port = self._history.open()
        options = self.options
        if options.starting_timestamp is not None:
            return self._since(port, int(options.starting_timestamp.timestamp() * 1_000_000))
        if options.starting_version is None:
            return self._offset(port, index=0, is_snapshot=True)
        if options.starting_version == LATEST:
            return self._offset(port)
        number = int(options.starting_version)
        if number > port.version:
            raise SpecError(
                f"startingVersion={number} is in the future: the newest version of {port.uri} is "
                f"{port.version}. Give startingVersion=latest to read what comes next"
            )
        return self._before(self._history.at(port, number, f"startingVersion={number}"))

    def _before(self, here: LanceDatasetPort) -> SourceOffset:
        """Return the position from which what a version changed is read."""
        transaction = here.transaction(here.version)
        # What an overwrite replaced was never read, so its rows are read as a snapshot.
        is_overwrite = transaction and type(transaction.operation).__name__ == "Overwrite"
        return self._offset(here, index=0, is_snapshot=bool(is_overwrite))

    def latest(
        self, start: SourceOffset, *, unlimited: bool = False, last: int | None = None
    ) -> SourceOffset:
        """Return where the epoch that begins at ``start`` ends; ``start`` if nothing is new.

        :param unlimited: ignore the limits of one epoch.
        :param last: the newest version to read.
        :raises LanceStreamError: the version of ``start``, or one after it, cannot be read.
        """
        if start == NOT_BEGUN:
            return self.initial()
        port = self._history.verified(start)
        newest = port.version if last is None else min(last, port.version)
        return self._admit(port, start, newest, unlimited)

    def newest(self) -> SourceOffset:
        """Return the end of the newest version.

        :raises DatasetNotFoundError, StorageUnavailableError: the dataset cannot be opened.
        """
        return self._offset(self._history.open())

    def seen(self) -> SourceOffset:
        """Return the end of the version that was opened last."""
        return self._offset(self._history.newest_seen or self._history.open())

    def plan(self, start: SourceOffset, end: SourceOffset) -> list[Slice]:
        """Return the rows between two positions, in the order of the versions; a replay is equal.

        :raises LanceStreamError: as :meth:`latest`.
        """
        if start == NOT_BEGUN:
            return []
        port = self._history.verified(start)
        self._history.verify(port, end)
        slices: list[tuple[VersionChange, Slice]] = []
        for change in self._history.walk(port, start, end.version):
            first = self._first(change, start)
            last = end.index if change.version == end.version else None
            slices += [(change, each) for each in change.slices(first, last)]
        return self._read_late(port, slices, start, end)

    def lag(self, position: SourceOffset) -> Lag:
        """Return how far a position is behind the newest version that was opened last.

        Reads at most as many versions as one epoch does.

        :raises LanceStreamError: as :meth:`latest`.
        """
        port = self._history.newest_seen or self._history.open()
        unread: VersionChange | None = None
        rows, is_counted = 0, True
        for counted, change in enumerate(self._history.walk(port, position, port.version)):
            if counted > self.options.max_versions:
                is_counted = False
                break
            more = change.units - self._first(change, position)
            unread = unread or (change if more else None)
            rows += more
        if unread is None:
            return Lag(0, 0, 0.0)
        age = max(0.0, time.time() - unread.timestamp / 1_000_000)
        return Lag(port.version - unread.version + 1, rows if is_counted else None, age)

    def _since(self, port: LanceDatasetPort, moment: int) -> SourceOffset:
        """Find the first version that was committed at or after a moment."""
        if moment > time.time() * 1_000_000:
            raise SpecError(
                f"startingTimestamp={self.options.starting_timestamp} is in the future. Give "
                "startingVersion=latest to read what comes next"
            )
        try:
            numbers = sorted(int(each["version"]) for each in port.dataset.version_refs())
        except LANCE_ERRORS as error:
            raise read_error(port.uri, error) from error
        low, high = 0, len(numbers)
        while low < high:
            middle = (low + high) // 2
            if commit_time(self._history.at(port, numbers[middle], "startingTimestamp")) < moment:
                low = middle + 1
            else:
                high = middle
        if low == len(numbers):
            return self._offset(port)
        found = self._history.at(port, numbers[low], "startingTimestamp")
        if low == 0 and found.version > 1 and commit_time(found) > moment:
            raise SourceDataLossError(
                f"startingTimestamp={self.options.starting_timestamp} is before the oldest version "
                f"of {port.uri} that was not cleaned up, {found.version}. Give "
                f"startingVersion={found.version}, or leave it out to begin with a snapshot"
            )
        return self._before(found)

    def _offset(
        self, port: LanceDatasetPort, index: int | None = None, is_snapshot: bool = False
    ) -> SourceOffset:
        feed = self.options.read_change_feed
        return SourceOffset(port.version, commit_time(port), index, is_snapshot, feed)

    @staticmethod
    def _first(change: VersionChange, start: SourceOffset) -> int:
        return start.index or 0 if change.version == start.version else 0

    def _admit(
        self, port: LanceDatasetPort, start: SourceOffset, last: int, unlimited: bool
    ) -> SourceOffset:
        """Take units from ``start`` on until a limit is reached; at least one if there is one.

        A version that the query may not pass over ends the epoch, and is refused by the next one.
        """
        budget = Budget(self.options, unlimited=unlimited)
        end, rows, quiet = start, 0, 0
        changes = self._history.walk(port, start, last)
        while not budget.is_spent() and quiet < 10 * _QUIET_VERSIONS:
            try:
                change = next(changes, None)
            except (SourceChangedError, SchemaMismatchError):
                if rows:
                    break
                raise
            if change is None:
                break
            first = self._first(change, start)
            taken = budget.take(change, first)
            if taken == first < change.units:
                break
            rows += taken - first
            whole = taken == change.units
            end = SourceOffset(
                change.version,
                change.timestamp,
                None if whole else taken,
                start.snapshot and change.version == start.version and not whole,
                self.options.read_change_feed,
            )
            quiet += not change.units
            if not whole:
                break
        moved_on = rows or end.version == start.version or quiet >= _QUIET_VERSIONS
        return end if moved_on else start

    def _read_late(
        self,
        port: LanceDatasetPort,
        slices: list[tuple[VersionChange, Slice]],
        start: SourceOffset,
        end: SourceOffset,
    ) -> list[Slice]:
        """Let appended rows be read at the last version that still has their fragments unchanged.

        So an epoch of a thousand appends opens one version and not a thousand.
        """
        late: dict[int, int] = {}
        reach = end.version
        for number in range(end.version, start.version, -1):
            late[number] = reach
            change = self._history.known(number)
            if change is None or change.breaks_fragments:
                reach = number - 1
        return [
            replace(each, version=late.get(each.version, each.version))
            if change.effect is Effect.APPEND and each.version == change.version
            else each
            for change, each in slices
        ]
