"""Collect evidence in bounded time: about one stream, and about the dataset as a whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TypedDict, Unpack

from airflow_provider_lance.diagnostics.backlog import find_unread
from airflow_provider_lance.diagnostics.collect_drivers import (
    collect_drivers,
    health_of,
    with_owner,
)
from airflow_provider_lance.diagnostics.collect_proof import Versions, contradictions
from airflow_provider_lance.diagnostics.consumers import collect_consumers
from airflow_provider_lance.diagnostics.evidence import (
    USUAL,
    DatasetEvidence,
    Evidence,
    Tolerance,
)
from airflow_provider_lance.diagnostics.side_tables import collect_sides
from airflow_provider_lance.exceptions import CheckpointCorruptError, SpecError
from airflow_provider_lance.maintenance.cleanup import ORPHAN_SECONDS
from airflow_provider_lance.maintenance.dataset_metrics import (
    Version,
    list_versions,
    measure,
    uncovered_rows,
)
from airflow_provider_lance.maintenance.options import KEEP_SECONDS, MaintenanceOptions
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import assess
from airflow_provider_lance.protocol.codec import auto_cleanup, decode_query, query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import Entry, Files, open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState, QueryState, Watermark
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["CollectOptions", "collect", "collect_dataset", "find_queries"]

_AGES = {"7d": 604_800, "2d": 172_800, "12h": 43_200, "2h": 7_200, "20m": 1_200, "10m": 600}
"""Ages in seconds by the text to type; a cleanup keeps versions of less than 10 minutes."""
_LISTED = 100
"""The most missing versions that are listed."""
_MANIFEST_BYTES = 256 << 20
"""The bytes of manifests that are read for file names; about three seconds on a local disk."""


class CollectOptions(TypedDict, total=False):
    """What :func:`collect` can be given, and what calls it passes on."""

    checkpoint_location: str | None
    """Where the checkpoint is, if not where the owner recorded it."""
    storage_options: Mapping[str, str] | None
    tolerance: Tolerance
    connection_arguments: str
    """What a printed command needs to reach the store, such as ``--conn-id lance_default``."""
    airflow_url: str
    """Airflow's address, for links to tasks."""
    history: int
    """How many of the newest epochs to read; 20 by default."""
    unread: bool
    """Whether to look for what is not read where no driver says it: it does not run, or Spark does
    not count files."""
    files: Callable[[str], Files] | None
    """Opens a location, instead of pyarrow with the storage options."""


def find_queries(port: DatasetPort) -> list[str]:
    """Return every query that has a trace in the dataset, sorted; costs no I/O."""
    return query_ids(port.config)


def collect(port: DatasetPort, query_id: str, **options: Unpack[CollectOptions]) -> Evidence:
    """Collect evidence about one stream; the cost does not grow with the number of versions.

    :param port: a handle at the newest version.
    :raises ProtocolVersionError: the dataset uses a newer protocol, or another tool's values.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    storage_options, history = options.get("storage_options"), options.get("history", 20)
    tolerance = options.get("tolerance", USUAL)
    opener = options.get("files") or (lambda location: open_files(location, storage_options))
    now = datetime.now(UTC)
    state = decode_query(port.config, query_id, port.version)
    recorded = state.owner.driver.checkpoint_location if state.owner else ""
    location = options.get("checkpoint_location") or recorded
    # Drivers, dataset, checkpoint, in this order: each can only look newer than the one before,
    # since an epoch is planned before it is committed, and committed before it is reported.
    reports, _ = _opened(report_location(location), opener) if location else (None, "")
    drivers = collect_drivers(reports, query_id, now) if reports else ()
    watermark = exact_watermark(port, query_id)
    # A cleanup folds before it removes, so versions may look missing only because the handle is
    # old.
    if watermark.missing or any(_is_ahead(driver, watermark) for driver in drivers):
        port = port.latest()
        state = decode_query(port.config, query_id, port.version)
        watermark = exact_watermark(port, query_id)
    drivers = with_owner(drivers, state, reports, now)
    checkpoint, problem, broken = _checkpoint(location, opener, state)
    own = checkpoint is not None and checkpoint.id == _checkpoint_id(None, state)
    spark_done = checkpoint.committed if checkpoint and own else None
    if spark_done is not None:
        watermark = exact_watermark(port, query_id, spark_done=spark_done)
    lives = any(
        each.liveness(tolerance.silence).alive for each in drivers if not _released(each, state)
    )
    corruption = None
    if checkpoint is not None and not lives:  # a live driver writes these files, and has read them
        corruption = assess(
            opener(location), checkpoint, max(watermark.epoch, _proven(checkpoint, watermark))
        )
    unread = None
    newest = next(iter(drivers), None)
    said = newest.heartbeat.behind if newest and newest.heartbeat else None
    if options.get("unread") and newest and (not lives or said is None):
        mine = checkpoint if own else None
        unread = find_unread(newest.heartbeat_json, mine, opener, storage_options)
    versions = Versions(port, query_id)
    return Evidence(
        uri=port.uri,
        query_id=query_id,
        seen_at=now,
        version=port.version,
        state=state,
        watermark=watermark,
        health=health_of(
            drivers,
            state,
            watermark=watermark,
            checkpoint=checkpoint,
            tolerance=tolerance,
            now=now,
            reports_unreadable=reports is None,
        ),
        checkpoint_location=location,
        checkpoint=checkpoint,
        checkpoint_problem=problem,
        history=versions.newest(history),
        drivers=drivers,
        connection_arguments=options.get("connection_arguments", ""),
        airflow_url=options.get("airflow_url") or os.environ.get("AIRFLOW__API__BASE_URL", ""),
        missing_versions=_missing(port, state, watermark),
        contradictions=contradictions(versions, state, drivers, _checkpoint_id(checkpoint, state)),
        undone=versions.undone(history, after=state.folded_version),
        broken_checkpoint=broken,
        # A cleanup may just have removed what the handle's version references.
        intact=port.is_intact() or port.latest().is_intact(),
        corruption=corruption,
        unread=unread,
        sides=collect_sides(port, query_id, storage_options, spark_done=spark_done),
    )


def _released(driver: DriverObservation, state: QueryState) -> bool:
    """Return whether a driver is the owner and gave the query up; its process may still run."""
    owner = state.owner
    return owner is not None and owner.state is OwnerState.RELEASED and driver.is_of(owner.driver)


def _proven(checkpoint: Checkpoint, watermark: Watermark) -> int:
    """Return what Spark's log proves of a watermark that versions no longer prove."""
    return checkpoint.committed if watermark.missing else NO_EPOCH


def _checkpoint_id(checkpoint: Checkpoint | None, state: QueryState) -> str | None:
    if checkpoint is not None:
        return checkpoint.id
    return state.owner.driver.checkpoint_id if state.owner else None


def _is_ahead(driver: DriverObservation, watermark: Watermark) -> bool:
    """Return whether a driver has seen a newer version than the watermark's handle."""
    said = [each for each in (driver.heartbeat, driver.summary) if each is not None]
    return any(
        (each.version or 0) > watermark.version or (each.watermark or 0) > watermark.epoch
        for each in said
    )


def _opened(location: str, opener: Callable[[str], Files]) -> tuple[Files | None, str]:
    try:
        return opener(location), ""
    except (SpecError, ImportError) as error:  # a pyarrow build may lack a store's module
        return None, str(error)


def _checkpoint(
    location: str, opener: Callable[[str], Files], state: QueryState
) -> tuple[Checkpoint | None, str, bool]:
    """Return the checkpoint or why it is unavailable, and whether Spark cannot read it either."""
    if not location:
        return None, f"query {state.query_id} has no owner that recorded one", False
    files, problem = _opened(location, opener)
    if files is None:
        return None, problem, False
    try:
        seen = read_checkpoint(location, files, with_ends=True)
    except CheckpointCorruptError as error:
        return None, str(error), True
    if seen.id is None and (host := _elsewhere(location, state)):
        return None, f"{location} is not on this host, and may be on {host}", False
    return seen, "", False


def _elsewhere(location: str, state: QueryState) -> str:
    """Return the host whose own disk may hold the checkpoint; empty if it would be visible here."""
    local = location.startswith(("/", "file:"))
    driver = state.owner.driver if state.owner else None
    if not local or driver is None or not driver.host:
        return ""
    process = ProcessIdentity.recorded(driver)
    seen = process.alive() is not None or not process.start
    return "" if process.host == socket.gethostname() and seen else driver.host


def _missing(port: DatasetPort, state: QueryState, watermark: Watermark) -> tuple[int, ...]:
    if not watermark.missing:
        return ()
    gone: list[int] = []
    for version in range(state.folded_version + 1, port.version + 1):
        if len(gone) == min(watermark.missing, _LISTED):
            break
        if port.properties(version) is None:
            gone.append(version)
    return tuple(gone)


def collect_dataset(
    port: LanceDatasetPort,
    storage_options: Mapping[str, str] | None = None,
    *,
    orphans: bool = False,
    manifest_bytes: int = _MANIFEST_BYTES,
) -> DatasetEvidence:
    """Measure the dataset; lists its versions.

    :param orphans: count data files that no version references: lists the data files, and reads
        manifests, newest first, up to ``manifest_bytes``.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    # The data files first: a file that a later commit references is then not in the list.
    written = _data_files(port, storage_options) if orphans else None
    versions = list_versions(port, storage_options)
    target_rows = MaintenanceOptions().target_rows(port.config)
    numbers = measure(port, target_rows, storage_options, versions)
    since, found = None, list[Entry]()
    if written is not None:
        since, before = _bound(versions, manifest_bytes)
        found = _unnamed(port, written, since, before)
    now = datetime.now(UTC)
    old = now - timedelta(seconds=ORPHAN_SECONDS)
    return DatasetEvidence(
        numbers=numbers,
        uncovered=uncovered_rows(port),
        auto_cleanup=auto_cleanup(port.config),
        younger={
            text: sum((now - each.written).total_seconds() < age for each in versions)
            for text, age in _AGES.items()
        },
        orphaned_files=len(found),
        orphaned_bytes=sum(entry.size for entry in found),
        orphaned_old=sum(bool(entry.modified and entry.modified <= old) for entry in found),
        orphans_since=since,
        consumers=collect_consumers(port, storage_options),
    )


def _data_files(
    port: LanceDatasetPort, storage_options: Mapping[str, str] | None
) -> list[Entry] | None:
    """Return the data files that no commit in flight can reference; ``None`` if unknown.

    A branch may reference files that the main line no longer does, so with branches the answer is
    unknown.
    """
    try:
        if port.dataset.branches.list():
            return None
        entries = open_files(f"{port.uri}/data", storage_options).entries("")
    except (SpecError, ImportError):
        return None
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    young = datetime.now(UTC) - timedelta(seconds=KEEP_SECONDS)
    return [
        entry
        for entry in entries
        if entry.name.endswith(".lance") and entry.modified and entry.modified <= young
    ]


def _bound(versions: list[Version], manifest_bytes: int) -> tuple[int, datetime | None]:
    """Return the oldest version to read, and when the version before it was written.

    A version references files that were written before it. So only versions after N reference what
    was written after version N, and reading those is enough to decide about it.
    """
    size = versions[-1].size if versions else 0
    for older, newer in reversed(list(pairwise(versions))):
        size += older.size
        if size > manifest_bytes:
            return newer.number, older.written
    return 1, None


def _unnamed(
    port: LanceDatasetPort, written: list[Entry], since: int, before: datetime | None
) -> list[Entry]:
    candidates = {
        entry.name: entry
        for entry in written
        if before is None or (entry.modified and entry.modified > before)
    }
    if not candidates:
        return []
    try:
        for batch in port.latest().dataset.tracked_files(min_version=since):
            for path in batch.column("path").unique().to_pylist():
                candidates.pop(path.removeprefix("data/"), None)
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    return list(candidates.values())
