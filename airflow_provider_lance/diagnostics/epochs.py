"""Spark's progress beside the dataset's history: one row per epoch, newest first.

Built from the stamps in the dataset's versions, the checkpoint's logs and the drivers' reports.
Reads a bounded number of versions, however many exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from airflow_provider_lance.diagnostics.epoch_sources import (
    Durations,
    EpochLogs,
    Kind,
    Offsets,
    kind_of,
    read_durations,
)
from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.added_columns import decode_added
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import EpochStamp, QueryState
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.row_checks import RowChecks

__all__ = ["EpochRow", "EpochTable", "VersionMark", "read_epochs"]

_UNREADABLE = (
    CheckpointCorruptError,
    CheckpointMismatchError,
    SpecError,
    StorageUnavailableError,
)
"""The errors after which the table omits a checkpoint."""
_VERSIONS_PER_EPOCH, _MORE_VERSIONS = 4, 20
_GONE_IN_A_ROW = 5


@dataclass(frozen=True, slots=True)
class EpochRow(JsonRecord):
    """One committed epoch. An unknown value is ``None``.

    ``duration_ms`` runs from the epoch's start in the sink to the moment its commit was sent.
    ``batch_ms`` is Spark's whole trigger; ``write_ms`` and ``commit_ms`` are the sink's. Offsets
    are one JSON text per source. ``spark_committed`` says whether Spark logged it as done.
    ``bytes`` are those of the rows as Arrow data in memory. ``checks`` counts the rows that did not
    land, and what the expectations found.
    """

    epoch: int
    version: int
    committed_at: str
    mode: str
    rows: int
    deletes: int
    fragments: int
    bytes: int
    duration_ms: int
    batch_ms: float | None
    write_ms: float | None
    commit_ms: float | None
    start_offsets: Offsets | None
    end_offsets: Offsets | None
    spark_committed: bool | None
    run_id: str
    token: int
    generation: int
    checks: RowChecks


@dataclass(frozen=True, slots=True)
class VersionMark(JsonRecord):
    """A version that is not an epoch and changed the dataset.

    That is a compaction, an index, columns that an epoch of any query added, or other. ``at`` is
    when the previous epoch was committed, since a version's own time would cost a listing; columns
    have their own time. ``what`` says which columns, and who added them.
    """

    version: int
    kind: str
    at: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class EpochTable(JsonRecord):
    """The newest epochs, newest first, and the marks between them.

    ``seen_versions`` is how many versions were read. ``gap`` says that some of them were cleaned
    up, so epochs may be absent. ``puzzle`` says why checkpoint or reports could not be read; their
    values are then ``None``.
    """

    uri: str
    query_id: str
    rows: tuple[EpochRow, ...]
    marks: tuple[VersionMark, ...]
    seen_versions: int
    gap: bool
    puzzle: str = ""


def read_epochs(
    port: DatasetPort,
    query_id: str,
    *,
    last: int = 20,
    storage_options: Mapping[str, str] | None = None,
    checkpoint_location: str | None = None,
) -> EpochTable:
    """Return a query's newest epochs as of the port's version.

    :param last: how many epochs, at most.
    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
        If it is unreadable, its values are ``None``.
    :raises ProtocolVersionError: the dataset uses a newer protocol.
    :raises StorageUnavailableError: the dataset's store did not answer.
    """
    state = decode_query(port.config, query_id, port.version)
    stamps, others, seen, gap = _walk(port, query_id, last)
    recorded = state.owner.driver.checkpoint_location if state.owner else ""
    location = checkpoint_location or recorded
    puzzle = ""
    try:
        logs = _logs(location, state, storage_options)
        durations = read_durations(location, query_id, storage_options) if location else {}
        rows = tuple(_row(stamp, state, logs, durations) for stamp in stamps)
    except _UNREADABLE as error:
        puzzle = str(error)
        rows = tuple(_row(stamp, state, None, {}) for stamp in stamps)
    return EpochTable(
        uri=port.uri,
        query_id=query_id,
        rows=rows,
        marks=tuple(_marks(others, rows)),
        seen_versions=seen,
        gap=gap,
        puzzle=puzzle,
    )


def _walk(
    port: DatasetPort, query_id: str, last: int
) -> tuple[list[EpochStamp], list[VersionMark], int, bool]:
    """Walk back from the head until enough epochs or versions are read, or none is left."""
    stamps: list[EpochStamp] = []
    others: list[VersionMark] = []
    seen = gone = 0
    gap = False
    oldest = max(0, port.version - last * _VERSIONS_PER_EPOCH - _MORE_VERSIONS)
    for version in range(port.version, oldest, -1):
        if len(stamps) == last or gone == _GONE_IN_A_ROW:
            break
        properties = port.properties(version)
        seen += 1
        if properties is None:
            gap, gone = True, gone + 1
            continue
        gone = 0
        if stamp := decode_stamp(properties, query_id, version):
            stamps.append(stamp)
        elif added := decode_added(properties):
            what = f"{added}, query {added.query_id}"
            others.append(VersionMark(version, Kind.COLUMNS.value, added.time, what))
        elif "streaming.queryId" not in properties and (kind := kind_of(port, version)):
            others.append(VersionMark(version, kind.value, ""))
    return stamps, others, seen, gap


def _logs(
    location: str, state: QueryState, storage_options: Mapping[str, str] | None
) -> EpochLogs | None:
    """Open the logs of the query's own checkpoint; ``None`` if there is none.

    :raises CheckpointMismatchError: another one is there, whose epochs have the same numbers.
    """
    if not location or state.owner is None:
        return None
    files = open_files(location, storage_options)
    found, recorded = read_checkpoint(location, files), state.owner.driver
    if found.id is None:
        return None
    if found.id != recorded.checkpoint_id:
        raise CheckpointMismatchError(
            f"query {state.query_id!r} belongs to checkpoint {recorded.checkpoint_id}, recorded at "
            f"{recorded.checkpoint_location}, and the one at {location} has id {found.id}"
        )
    return EpochLogs(files)


def _row(
    stamp: EpochStamp,
    state: QueryState,
    logs: EpochLogs | None,
    durations: Mapping[tuple[str, int], Durations],
) -> EpochRow:
    took = durations.get((stamp.run_id, stamp.epoch_id), Durations())
    # An older generation numbered its epochs by another checkpoint.
    own = logs if stamp.generation == state.generation else None
    return EpochRow(
        epoch=stamp.epoch_id,
        version=stamp.version,
        committed_at=stamp.committed_at,
        mode=stamp.mode,
        rows=stamp.rows,
        deletes=stamp.deletes,
        fragments=stamp.fragments,
        bytes=stamp.bytes,
        duration_ms=stamp.duration_ms,
        batch_ms=took.batch_ms,
        write_ms=took.write_ms,
        commit_ms=took.commit_ms,
        start_offsets=own.start(stamp.epoch_id) if own else None,
        end_offsets=own.end(stamp.epoch_id) if own else None,
        spark_committed=own.committed(stamp.epoch_id) if own else None,
        run_id=stamp.run_id,
        token=stamp.token,
        generation=stamp.generation,
        checks=stamp.checks,
    )


def _marks(others: list[VersionMark], rows: tuple[EpochRow, ...]) -> Iterator[VersionMark]:
    """Yield the marks that follow an epoch in the table, and all columns that were added."""
    for mark in others:
        before = next((row for row in rows if row.version < mark.version), None)
        if mark.at or before:
            yield replace(mark, at=mark.at or (before.committed_at if before else ""))
