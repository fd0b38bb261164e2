"""Collect evidence about one stream in bounded time."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypedDict, Unpack

from airflow_provider_lance.diagnostics.backlog import find_unread
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
from airflow_provider_lance.diagnostics.neighbours import find_home, find_neighbours
from airflow_provider_lance.diagnostics.side_tables import collect_sides
from airflow_provider_lance.diagnostics.traces import kept_config
from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import assess
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState, QueryState, Watermark
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["CollectOptions", "collect"]

_LISTED = 100
"""The most missing versions that are listed."""


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
    kept = kept_config(port, query_id) if state.owner is None else None
    owner = kept.state.owner if kept else state.owner
    recorded = owner.driver.checkpoint_location if owner else ""
    location = options.get("checkpoint_location") or recorded
    # Drivers, dataset, checkpoint, in this order: each can only look newer than the one before,
    # since an epoch is planned before it is committed, and committed before it is reported.
    reports, _ = _opened(report_location(location), opener) if location else (None, "")
    try:
        drivers = collect_drivers(reports, query_id, now) if reports else ()
    except StorageUnavailableError as error:
        if not error.denied:
            raise
        reports, drivers = None, ()
    watermark = exact_watermark(port, query_id)
    # A cleanup folds before it removes, so versions may look missing only because the handle is
    # old.
    if watermark.missing or any(_is_ahead(driver, watermark) for driver in drivers):
        port = port.latest()
        state = decode_query(port.config, query_id, port.version)
        watermark = exact_watermark(port, query_id)
    drivers = with_owner(drivers, state, reports, now)
    checkpoint, problem, broken, denied = _checkpoint(location, opener, state)
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
    said_else = contradictions(versions, state, drivers, _checkpoint_id(checkpoint, state))
    astray = state.owner is not None and checkpoint is not None
    if astray and checkpoint is not None:
        ahead = watermark.epoch > checkpoint.planned or watermark.missing_above
        astray = not own or bool(ahead)
    found = checkpoint.id if astray and checkpoint and not own else None
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
        contradictions=said_else,
        cleaned_up=bool(said_else or astray or corruption) and port.properties(1) is None,
        undone=versions.undone(history, after=state.folded_version),
        broken_checkpoint=broken,
        denied_checkpoint=denied,
        kept_config=kept,
        # A cleanup may just have removed what the handle's version references.
        intact=port.is_intact() or port.latest().is_intact(),
        corruption=corruption,
        neighbours=find_neighbours(location, opener) if astray else (),
        home=find_home(found, location, port, query_id, opener) if found else None,
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
) -> tuple[Checkpoint | None, str, bool, bool]:
    """Return the checkpoint or why it is unavailable.

    And whether Spark cannot read it either, and whether it is refused to this user.
    """
    if not location:
        return None, f"query {state.query_id} has no owner that recorded one", False, False
    files, problem = _opened(location, opener)
    if files is None:
        return None, problem, False, False
    try:
        seen = read_checkpoint(location, files, with_ends=True).with_changed_entries()
    except CheckpointCorruptError as error:
        return None, str(error), True, False
    except StorageUnavailableError as error:
        if not error.denied:
            raise
        return None, str(error), False, True
    if seen.id is None and (host := _elsewhere(location, state)):
        return None, f"{location} is not on this host, and may be on {host}", False, False
    return seen, "", False, False


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
