"""Wait for a consumer: where it stands, what a wait is for, and the reads. All reads block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from airflow_provider_lance.diagnostics.unread import UnreadVersions
from airflow_provider_lance.exceptions import SpecError, TerminalError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import consumer_ids, require_query_id
from airflow_provider_lance.protocol.consumers import Consumer, read_consumer
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import Reader, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.triggers.watermark_follower import (
    DATASET,
    DatasetFollower,
    OnMissing,
    WatermarkSnapshot,
)

__all__ = ["ConsumerCondition", "ConsumerFollower", "ConsumerReader", "ConsumerState"]


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """Where a consumer stands in a dataset whose newest version is ``newest``, 0 without one.

    ``consumer`` is ``None`` while it has left no position. ``unread`` is the first version with
    rows that it has not read, ``None`` without one.
    """

    newest: int
    consumer: Consumer | None = None
    unread: int | None = None

    def has_read(self, version: int) -> bool:
        """Return whether everything up to a version that exists is read."""
        if self.consumer is None or version > self.newest:
            return False
        return self.unread is None or self.unread > version

    def shown(self) -> dict[str, Any]:
        """Return the state in the form that sensor and trigger pass on."""
        consumer = self.consumer
        return {
            "version": consumer.offset.version if consumer else None,
            "index": consumer.offset.index if consumer else None,
            "snapshot": bool(consumer and consumer.offset.snapshot),
            "writtenAt": consumer.at.isoformat() if consumer else None,
            "newestVersion": self.newest,
        }

    def __str__(self) -> str:
        if self.consumer is None:
            return "seen=nothing"
        return " ".join(f"{name}={value}" for name, value in self.shown().items())


def _version(value: object) -> int | None:
    return None if value is None else whole(value, least=1)


@dataclass(frozen=True, slots=True)
class ConsumerCondition(JsonRecord):
    """A version that a consumer must have read; ``None``: the newest one at the first poll."""

    version: int | None = None

    json_name: ClassVar[str] = "a condition"
    json_readers: ClassVar[Mapping[str, Reader]] = {"version": _version}

    def at(self, state: ConsumerState) -> Self:
        """Return the condition with its version, once there is a dataset."""
        return self if self.version or not state.newest else replace(self, version=state.newest)

    def is_met(self, state: ConsumerState) -> bool:
        """Return whether the wait is over; pure."""
        return self.version is not None and state.has_read(self.version)

    def __str__(self) -> str:
        return "the dataset" if self.version is None else f"version {self.version}"


class ConsumerReader:
    """Reads a consumer's state from each poll's result; reads each version once."""

    def __init__(self, consumer_id: str, on_missing: OnMissing) -> None:
        """Remember whose state is read.

        :raises SpecError: the id is invalid.
        """
        self._consumer_id, self._on_missing = require_query_id(consumer_id), on_missing
        self._unread = UnreadVersions()

    def read(self, snapshot: WatermarkSnapshot) -> ConsumerState:
        """Return where the consumer stands in the version that was polled.

        :raises TerminalError: dataset or consumer is missing and must not be, or this package
            cannot read its record.
        :raises StorageUnavailableError: the store did not answer.
        """
        snapshot.judge(self._on_missing)
        port = snapshot.port
        if port is None:
            return ConsumerState(0)
        consumer = read_consumer(port.config, self._consumer_id, port.version)
        if consumer is None:
            if self._on_missing is OnMissing.FAIL:
                raise _no_position(port, self._consumer_id)
            return ConsumerState(port.version)
        return ConsumerState(
            port.version, consumer, self._unread.first(port, consumer, port.version)
        )


class ConsumerFollower:
    """Reads one consumer's state; a poll costs one listing and reading the new versions."""

    def __init__(self, hook: LanceHook, uri: str, consumer_id: str, on_missing: OnMissing) -> None:
        self._reader = ConsumerReader(consumer_id, on_missing)
        self._dataset = DatasetFollower(lambda: hook.open(uri))

    def look(self) -> ConsumerState:
        """Return where the consumer stands now. Blocks.

        :raises LanceStreamError: as :meth:`ConsumerReader.read`.
        """
        found = self._dataset.look([DATASET])[DATASET]
        if isinstance(found, TerminalError):
            raise found
        return self._reader.read(found)


def _no_position(port: LanceDatasetPort, consumer_id: str) -> SpecError:
    return SpecError(
        f"consumer {consumer_id!r} has left no position in {port.uri} at version {port.version}; "
        f"consumers there: {consumer_ids(port.config) or 'none'}. Correct consumer_id or uri, or "
        "wait for it with on_missing='wait'"
    )
