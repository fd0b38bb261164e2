"""The sources of an epoch's description: Spark's logs, heartbeats, and other clients' commits.

Spark writes the end offsets of epoch N into `offsets/N` when it plans it. An epoch starts where the
previous one ended. The newest 100 are kept (seen on Spark 3.5 to 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import CheckpointCorruptError
from airflow_provider_lance.protocol.checkpoint import (
    VOID_OFFSET,
    OffsetLog,
    epoch_of,
    read_offset_log,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import json_value
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, report_location

__all__ = [
    "Durations",
    "EpochLogs",
    "Kind",
    "Offsets",
    "kind_of",
    "read_durations",
    "readable_offset",
]

Offsets = tuple[str, ...]
"""One text per source, JSON as the source writes it; ``-`` if it has no offset yet.

If sources have names, each text begins with its source's name and a colon.
"""


def readable_offset(text: str) -> str:
    """Return an offset as people read it: that of a Lance source as its version, others as is."""
    name, brace, rest = text.partition("{")
    try:
        found = SourceOffset.found_in(json_value(brace + rest))
    except ValueError:
        return text
    return f"{name.replace(':', ': ')}{found}" if found else text


class EpochLogs:
    """Spark's two logs of one checkpoint; each file is read once."""

    def __init__(self, files: Files) -> None:
        """List the commit log; read nothing else.

        :raises StorageUnavailableError: the store did not answer or refused.
        """
        self._files = files
        epochs = map(epoch_of, files.names("commits"))
        self._done = {epoch for epoch in epochs if epoch is not None}
        self._logs: dict[int, OffsetLog | None] = {}

    def committed(self, epoch: int) -> bool | None:
        """Return whether Spark logged an epoch as done; ``None`` if it is older than the log."""
        if epoch in self._done:
            return True
        return None if self._done and epoch < min(self._done) else False

    def end(self, epoch: int) -> Offsets | None:
        """Return where an epoch ends; ``None`` if Spark no longer has it, or it is unreadable."""
        log = self._log(epoch)
        return log.lines if log else None

    def start(self, epoch: int) -> Offsets | None:
        """Return where an epoch starts, in the order of its end; empty for the first epoch."""
        end, before = self._log(epoch), self._log(epoch - 1) if epoch > 0 else None
        if epoch > 0 and (before is None or end is None):
            return before.lines if before else None
        if end is None:
            return None
        known = before.sources if before else {}
        starts = {source: known.get(source, VOID_OFFSET) for source in end.sources}
        return OffsetLog(starts, named=end.named).lines

    def _log(self, epoch: int) -> OffsetLog | None:
        if epoch not in self._logs:
            try:
                self._logs[epoch] = read_offset_log(self._files, epoch)
            except CheckpointCorruptError:  # has its own finding
                self._logs[epoch] = None
        return self._logs[epoch]


_NEWEST = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """Milliseconds of Spark's trigger, the sink's write and commit; ``None`` if unknown."""

    batch_ms: float | None = None
    write_ms: float | None = None
    commit_ms: float | None = None


def read_durations(
    checkpoint_location: str, query_id: str, storage_options: Mapping[str, str] | None
) -> dict[tuple[str, int], Durations]:
    """Return the durations of epochs by run id and epoch.

    :raises SpecError: the location cannot be opened from here.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    files = open_files(report_location(checkpoint_location), storage_options)
    found: dict[tuple[str, int], Durations] = {}
    for launch_id in sorted(files.names(""), reverse=True)[:_NEWEST]:
        heartbeat = read_heartbeat(files, launch_id) or {}
        if heartbeat.get("queryId") == query_id:
            found |= dict(_epochs(heartbeat))
    return found


def _epochs(heartbeat: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], Durations]]:
    driver, recent = heartbeat.get("driver"), heartbeat.get("recent")
    run_id = driver.get("runId") if isinstance(driver, Mapping) else None
    for each in recent if isinstance(recent, list) else []:
        if isinstance(each, Mapping) and isinstance(each.get("epoch"), int):
            took = (_number(each.get(word)) for word in ("batchMs", "writeMs", "commitMs"))
            yield (str(run_id), each["epoch"]), Durations(*took)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


class Kind(StrEnum):
    """Changes that are shown as a mark between two epochs."""

    COMPACTION = "compaction"
    INDEX = "index"
    COLUMNS = "columns"
    OTHER = "other"


_KINDS = {"Rewrite": Kind.COMPACTION, "CreateIndex": Kind.INDEX}
_BOOKKEEPING = {"UpdateConfig", "Project", "BaseOperation"}
"""Claims, folds and releases; barriers; fragment ids that a compaction reserves for itself.

The last one has no name in pylance 14.0.2.
"""


def kind_of(port: DatasetPort, version: int) -> Kind | None:
    """Return what a version changed, ``None`` if neither rows nor indices, or if it is gone.

    Reads that version's transaction; its operation's class decides.
    """
    try:
        operation = _operation(port, version)
    except _UnreadableCompactionError:
        return Kind.COMPACTION
    name = type(operation).__name__
    if operation is None or name in _BOOKKEEPING:
        return None
    return _KINDS.get(name, Kind.OTHER)


class _UnreadableCompactionError(Exception):
    """pylance 14.0.2 cannot read a compaction that remapped an index."""


def _operation(port: DatasetPort, version: int) -> Any:
    if not isinstance(port, LanceDatasetPort):
        return None
    try:
        transaction = port.dataset.read_transaction(version)
    except TypeError as error:
        if "RewrittenIndex" in str(error):
            raise _UnreadableCompactionError from error
        raise
    except LANCE_ERRORS:
        return None  # cleaned up since its properties were read
    return transaction.operation if transaction else None
