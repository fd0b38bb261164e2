"""Follow a dataset poll by poll; shared by sensor and triggers. All of it blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError, TerminalError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import (
    decode_query,
    decode_stamp,
    query_ids,
    require_query_id,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import OwnerState, QueryState, Watermark
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import WatermarkReader

__all__ = [
    "DATASET",
    "DatasetFollower",
    "Follower",
    "Look",
    "OnMissing",
    "WatermarkSnapshot",
    "describe",
    "is_another",
    "ownership",
    "seen",
    "tally",
]

DATASET = ""
"""In place of a query: only the newest version is asked for."""

_REMEMBERED = 512
"""The most versions whose transaction properties are kept for one dataset; about 1 kB each."""


class OnMissing(StrEnum):
    """How to treat a missing dataset, or one without a trace of the query."""

    WAIT = "wait"
    FAIL = "fail"

    @classmethod
    def parse(cls, text: str) -> OnMissing:
        """Read the user's text.

        :raises SpecError: another text.
        """
        try:
            return cls(text)
        except ValueError:
            raise SpecError(f"on_missing must be 'wait' or 'fail', got {text!r}") from None


@dataclass(frozen=True, slots=True)
class WatermarkSnapshot:
    """One query as one poll saw it: its state and exact watermark, or what is missing.

    ``port`` stands at the version that was read and may be used from any thread; ``None`` while
    there is no dataset. ``state`` and ``watermark`` are ``None`` while dataset or query is missing,
    and where :data:`DATASET` was asked for.
    """

    port: LanceDatasetPort | None = None
    state: QueryState | None = None
    watermark: Watermark | None = None
    missing: TerminalError | None = None

    @property
    def version(self) -> int:
        """Return the dataset's version, 0 while there is no dataset."""
        return self.port.version if self.port else 0

    def judge(self, on_missing: OnMissing) -> Watermark | None:
        """Return the watermark, ``None`` while it is missing and may be.

        :raises TerminalError: it is missing and must not be.
        """
        if self.missing is not None and on_missing is OnMissing.FAIL:
            raise self.missing
        return self.watermark


Look = Mapping[str, WatermarkSnapshot | TerminalError]
"""The result of one poll for each query; an error belongs to that query alone."""


class DatasetFollower:
    """Keeps a dataset open; a poll costs one listing, and reads new versions once for all queries.

    One poll at a time. After any error, the next poll opens the dataset, and reads the connection,
    again.
    """

    def __init__(self, open_port: Callable[[], LanceDatasetPort]) -> None:
        self._open = open_port
        self._known: _Known | None = None

    def look(self, queries: Collection[str]) -> Look:
        """Read the newest version.

        :raises TerminalError: the connection or the URI cannot be used.
        :raises StorageUnavailableError: the store did not answer.
        """
        known, self._known = self._known, None
        try:
            known = self._newest(known)
        except DatasetNotFoundError as error:
            return dict.fromkeys(queries, WatermarkSnapshot(missing=error))
        found = known.look(queries)
        self._known = known
        return found

    def _newest(self, known: _Known | None) -> _Known:
        if known is not None:
            port = known.port.latest()
            if not known.is_another(port):
                known.advance(port)
                return known
        # A handle's caches outlive the dataset they were read from: open it again.
        return _Known(self._open())


class Follower:
    """Reads one query's watermark; a poll costs one listing and reading the new versions."""

    def __init__(self, hook: LanceHook, uri: str, query_id: str, on_missing: OnMissing) -> None:
        self._query_id, self._on_missing = require_query_id(query_id), on_missing
        self._dataset = DatasetFollower(lambda: hook.open(uri))

    def look(self) -> Watermark | None:
        """Return the exact watermark now, ``None`` while dataset or query is missing. Blocks.

        :raises TerminalError: it is missing and must not be, or this package cannot read it.
        :raises StorageUnavailableError: the store did not answer.
        """
        found = self._dataset.look([self._query_id])[self._query_id]
        if isinstance(found, TerminalError):
            raise found
        return found.judge(self._on_missing)


class _Known:
    """The state of one dataset: newest handle, cached reads, a reader for each query."""

    def __init__(self, port: LanceDatasetPort) -> None:
        self._memory = _Memory()
        self.port: LanceDatasetPort = _RememberingPort(port, self._memory)
        self._readers: dict[str, WatermarkReader] = {}
        self._states: dict[str, QueryState] = {}

    def is_another(self, port: LanceDatasetPort) -> bool:
        """Return whether this is another dataset at the same place: dropped and recreated."""
        if port.version <= self.port.version:
            return port.version < self.port.version
        for query, state in self._states.items():
            # An undecodable value is reported as that query's own error when it is read.
            with suppress(TerminalError):
                now = decode_query(port.config, query, port.version)
                if is_another(ownership(state), ownership(now)):
                    return True
        return False

    def advance(self, port: LanceDatasetPort) -> None:
        """Move to a newer version; drop what every query has folded."""
        if port.version == self.port.version:
            return
        self._memory.forget(min(map(_folded, self._states.values()), default=self.port.version))
        self.port = _RememberingPort(port, self._memory)

    def look(self, queries: Collection[str]) -> Look:
        """Read every query at this version."""
        self._readers = {query: self._readers[query] for query in queries if query in self._readers}
        self._states = {query: self._states[query] for query in queries if query in self._states}
        return {query: self._look(query) for query in queries}

    def _look(self, query: str) -> WatermarkSnapshot | TerminalError:
        port = self.port
        if query == DATASET:
            return WatermarkSnapshot(port)
        reader = self._readers.pop(query, None) or WatermarkReader(port, query)
        try:
            state = decode_query(port.config, query, port.version)
            if not state.known:
                return WatermarkSnapshot(port, missing=_no_trace(port, query))
            watermark = reader.at(port)
        except TerminalError as error:
            return error
        self._readers[query], self._states[query] = reader, state
        return WatermarkSnapshot(port, state, watermark)


class _Memory:
    """Transaction properties by version, read once for all threads; bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[int, Mapping[str, str] | None] = {}

    def read(
        self, version: int, properties: Callable[[int], Mapping[str, str] | None]
    ) -> Mapping[str, str] | None:
        with self._lock:
            if version in self._read:
                return self._read[version]
            found = self._read[version] = properties(version)
            if len(self._read) > _REMEMBERED:
                del self._read[min(self._read)]
            return found

    def forget(self, upto: int) -> None:
        with self._lock:
            self._read = {version: found for version, found in self._read.items() if version > upto}


class _RememberingPort(LanceDatasetPort):
    """A port that shares its reads of old versions with the ports before and after it."""

    def __init__(self, port: LanceDatasetPort, memory: _Memory) -> None:
        super().__init__(port.dataset)
        self._memory = memory

    def properties(self, version: int) -> Mapping[str, str] | None:
        return self._memory.read(version, super().properties)


def ownership(state: QueryState | None) -> tuple[int, str]:
    """Return what :func:`is_another` compares: the query's token and its owner's run."""
    owner = state.owner if state else None
    return (owner.token, owner.driver.run_id) if owner else (0, "")


def is_another(before: tuple[int, str], now: tuple[int, str]) -> bool:
    """Return whether the ownership shows a recreated dataset: within one, tokens only grow."""
    return now[0] < before[0] or (now[0] == before[0] and now[1] != before[1])


def tally(port: DatasetPort, query_id: str, after: int, upto: int) -> tuple[int, int, int]:
    """Count the epochs and rows in the versions after ``after``, and the versions that are gone.

    :raises ProtocolVersionError: an epoch is newer than this package, or another tool's.
    :raises StorageUnavailableError: the store did not answer.
    """
    found = {version: port.properties(version) for version in range(after + 1, upto + 1)}
    stamps = [
        stamp
        for version, properties in found.items()
        if properties is not None and (stamp := decode_stamp(properties, query_id, version))
    ]
    return len(stamps), sum(stamp.rows for stamp in stamps), list(found.values()).count(None)


def _folded(state: QueryState) -> int:
    # Without an active owner the reader needs no history.
    active = state.owner is not None and state.owner.state is OwnerState.ACTIVE
    return state.folded_version if active else state.version


def _no_trace(port: LanceDatasetPort, query: str) -> SpecError:
    return SpecError(
        f"query {query!r} has no trace in {port.uri} at version {port.version}; queries there: "
        f"{query_ids(port.config) or 'none'}. Correct query_id or uri, or wait for it with "
        "on_missing='wait'"
    )


def seen(watermark: Watermark) -> dict[str, Any]:
    """Return a watermark in the form that sensor and trigger pass on."""
    return {
        "epoch": watermark.epoch,
        "version": watermark.version,
        "committedAt": watermark.committed_at,
    }


def describe(watermark: Watermark | None) -> str:
    """Return a watermark as the end of a log line."""
    if watermark is None:
        return "seen=nothing"
    return " ".join(f"{name}={value}" for name, value in seen(watermark).items())
