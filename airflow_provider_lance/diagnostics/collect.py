"""Collect evidence about one stream in bounded time: its dataset, checkpoint and drivers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from airflow_provider_lance.diagnostics.collect_dataset import collect_dataset
from airflow_provider_lance.diagnostics.collect_drivers import (
    collect_drivers,
    health_of,
    with_owner,
)
from airflow_provider_lance.diagnostics.collect_proof import Versions, contradictions
from airflow_provider_lance.diagnostics.evidence import (
    USUAL,
    Evidence,
    Tolerance,
)
from airflow_provider_lance.exceptions import CheckpointCorruptError, SpecError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import assess
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState, QueryState, Watermark
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["collect", "collect_dataset", "find_queries"]

_LISTED = 100
"""The most missing versions that are listed."""


def find_queries(port: DatasetPort) -> list[str]:
    """Return every query that has a trace in the dataset, sorted; costs no I/O."""
    return query_ids(port.config)


def collect(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    tolerance: Tolerance = USUAL,
    connection_arguments: str = "",
    history: int = 20,
    files: Callable[[str], Files] | None = None,
) -> Evidence:
    """Collect evidence about one stream; the cost does not grow with the number of versions.

    :param port: a handle at the newest version.
    :param checkpoint_location: where the checkpoint is, if not where the owner recorded it.
    :param history: how many of the newest epochs to read.
    :param files: opens a location, instead of pyarrow with the storage options.
    :raises ProtocolVersionError: the dataset uses a newer protocol, or another tool's values.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    opener = files or (lambda location: open_files(location, storage_options))
    now = datetime.now(UTC)
    state = decode_query(port.config, query_id, port.version)
    recorded = state.owner.driver.checkpoint_location if state.owner else ""
    location = checkpoint_location or recorded
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
    checkpoint, puzzle, broken = _checkpoint(location, opener, state)
    if checkpoint and checkpoint.id == _checkpoint_id(None, state):
        watermark = exact_watermark(port, query_id, spark_done=checkpoint.committed)
    lives = any(
        each.liveness(tolerance.silence).alive for each in drivers if not _released(each, state)
    )
    corruption = None
    if checkpoint is not None and not lives:  # a live driver writes these files, and has read them
        corruption = assess(
            opener(location), checkpoint, max(watermark.epoch, _proven(checkpoint, watermark))
        )
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
        puzzle=puzzle,
        history=versions.newest(history),
        drivers=drivers,
        connection_arguments=connection_arguments,
        missing_versions=_missing(port, state, watermark),
        contradictions=contradictions(versions, state, drivers, _checkpoint_id(checkpoint, state)),
        undone=versions.undone(history, after=state.folded_version),
        broken_checkpoint=broken,
        # A cleanup may just have removed what the handle's version references.
        intact=port.is_intact() or port.latest().is_intact(),
        corruption=corruption,
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
    files, puzzle = _opened(location, opener)
    if files is None:
        return None, puzzle, False
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
