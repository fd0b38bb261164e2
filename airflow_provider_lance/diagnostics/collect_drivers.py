"""The launches of one query, as recorded beside the checkpoint and in the dataset."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.formatting import (
    is_later,
    seconds_ahead,
    seconds_since,
)
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.files import ArrowFiles, Files
from airflow_provider_lance.protocol.model import (
    ByHand,
    Driver,
    Owner,
    OwnerState,
    QueryState,
    StopNote,
    Watermark,
)
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.driver_reports import (
    HEARTBEAT,
    EndReason,
    Summary,
    launched_at,
    read_heartbeat,
    read_summary,
)
from airflow_provider_lance.supervision.health import Health, StreamState, evaluate
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["collect_drivers", "health_of", "with_owner"]

_OPENED = 5


def collect_drivers(reports: Files, query_id: str, now: datetime) -> tuple[DriverObservation, ...]:
    """Read the newest launches' reports, newest first.

    :raises StorageUnavailableError: the store did not answer.
    """
    names = sorted(reports.names(""), reverse=True)[:_OPENED]
    seen = (_see(reports, launch_id, now) for launch_id in names)
    return tuple(each for each in seen if each and _is_of(each, query_id))


def _see(reports: Files, launch_id: str, now: datetime) -> DriverObservation | None:
    # The process first: a driver writes its summary before it ends.
    document = read_heartbeat(reports, launch_id)
    process = ProcessIdentity.reported(document or {})
    alive = process.alive() if process else None
    summary: Summary | None = None
    with suppress(SpecError):  # a summary of another form is ignored
        summary = read_summary(reports, launch_id)
    if document is None and summary is None:
        return None
    heartbeat = Heartbeat.parse(document) if document else None
    silent = _silent(reports, launch_id, heartbeat, now)
    token = heartbeat.token if heartbeat else None
    return DriverObservation(
        launch_id,
        document,
        heartbeat,
        summary,
        alive,
        suspended=bool(process and process.suspended()),
        silent=silent,
        process=process,
        token=token,
    )


def _silent(reports: Files, launch_id: str, heartbeat: Heartbeat | None, now: datetime) -> float:
    """Return the seconds since a heartbeat was written.

    Where the driver's clock is ahead of this host's, its store's clock decides: otherwise a driver
    that is gone would look alive until this host's clock reaches that time.
    """
    time = heartbeat.time if heartbeat else None
    if seconds_ahead(time, now) and isinstance(reports, ArrowFiles):
        written = [each.modified for each in reports.entries(launch_id) if each.name == HEARTBEAT]
        if written and written[0]:
            return max(0.0, (now - written[0]).total_seconds())
    return seconds_since(time, now) or 0.0


def _is_of(seen: DriverObservation, query_id: str) -> bool:
    named = seen.summary.query_id if seen.summary else (seen.heartbeat_json or {}).get("queryId")
    return named in (None, query_id)


def with_owner(
    drivers: tuple[DriverObservation, ...], state: QueryState, reports: Files | None, now: datetime
) -> tuple[DriverObservation, ...]:
    """Return the drivers including the recorded owner's, which gets its token."""
    owner = state.owner
    if owner is None:
        return drivers
    record = owner.driver
    seen = next((each for each in drivers if each.is_of(record)), None)
    others = [each for each in drivers if each is not seen]
    if seen is None and reports is not None and record.launch_id:
        seen = _see(reports, record.launch_id, now)
    if seen is None:
        seen = DriverObservation(record.launch_id, token=owner.token)
    if seen.process is None:
        process = _recorded(record)
        seen = replace(seen, process=process, alive=process.alive() if process else None)
    if seen.token is None and record.run_id in (_run_id(seen), ""):
        seen = replace(seen, token=owner.token)  # one that has ended no longer holds a token
    found = [*others, seen]
    return tuple(sorted(found, key=lambda each: _age(each, state, now)))


def _run_id(seen: DriverObservation) -> str | None:
    return seen.summary.run_id if seen.summary else seen.said_of_itself.get("runId")


def _recorded(driver: Driver) -> ProcessIdentity | None:
    return ProcessIdentity.recorded(driver) if driver.host else None


def health_of(
    drivers: tuple[DriverObservation, ...],
    state: QueryState,
    *,
    watermark: Watermark,
    checkpoint: Checkpoint | None,
    tolerance: Tolerance,
    now: datetime,
    reports_unreadable: bool,
) -> Health | None:
    """Return the health of the stream's driver; ``None`` if there is no evidence of one.

    Of several launches, the newest that may be running counts, otherwise the owner's unless it
    released, otherwise the newest.
    """
    chosen, owner = _chosen(drivers, state, tolerance), state.owner
    if chosen is None:
        return None
    note = standing_request(state)
    if owner and owner.state is OwnerState.RELEASED and _released_since(chosen, owner, tolerance):
        return _released(owner, note, watermark)
    unheard = chosen.summary is None and chosen.heartbeat is None and chosen.alive is None
    if owner and unheard and chosen.is_of(owner.driver):
        age = seconds_since(watermark.committed_at, now)
        if age is None or age >= tolerance.silence:
            return None
        return Health(StreamState.RUNNING, f"{_reached(watermark)}; its driver cannot be seen")
    observation = replace(
        chosen,
        launched_at=_launched_at(chosen, state),
        age=_age(chosen, state, now),
        reports_unreadable=reports_unreadable or not chosen.launch_id,
        checkpoint=checkpoint,
        owner=owner,
        stop_note=note if note and note.means(chosen.launch_id, chosen.token) else None,
    )
    return evaluate(observation, tolerance)


def _chosen(
    drivers: tuple[DriverObservation, ...], state: QueryState, tolerance: Tolerance
) -> DriverObservation | None:
    working = [each for each in drivers if each.liveness(tolerance.silence).alive is not False]
    if sure := [each for each in working if each.liveness(tolerance.silence).alive]:
        return sure[0]
    if state.owner and state.owner.state is OwnerState.ACTIVE:
        record = state.owner.driver
        return next((each for each in drivers if each.is_of(record)), None)
    return next(iter(working or drivers), None)


def _released_since(chosen: DriverObservation, owner: Owner, tolerance: Tolerance) -> bool:
    """Return whether the query was released in order, by the driver or after its end."""
    if chosen.liveness(tolerance.silence).alive:
        return False
    summary = chosen.summary
    if summary is None and chosen.is_of(owner.driver):
        return True
    ended = chosen.heartbeat.time if chosen.heartbeat else ""
    failed = summary is not None and summary.reason is EndReason.FAILED
    hand = owner.driver.by_hand
    if failed and hand and hand.what == ByHand.RELEASED:
        return False  # releasing the query did not change what made it fail
    return (failed or summary is None) and is_later(owner.time, ended)


def _released(owner: Owner, note: StopNote | None, watermark: Watermark) -> Health:
    """Return the state of a query that was released, and that no driver has claimed since.

    A release by hand replaces a dead driver's own; that nothing runs is meant only if somebody says
    so, by a release for good or by a stop request.
    """
    hand, reached = owner.driver.by_hand, _reached(watermark)
    if hand is None or hand.for_good:
        by = f" by {hand.who}" if hand else ""
        return Health(StreamState.STOPPED, f"released at {owner.time}{by}, {reached}")
    if note is not None and note.token > owner.token:
        by = f" by {note.by}" if note.by else ""
        reason = f"asked to{by} after its driver was gone, {reached}"
        return Health(StreamState.STOPPED, reason, asked_by=note.by)
    reason = f"{hand.what} by {hand.who} at {owner.time}, and not started since, {reached}"
    return Health(StreamState.DEAD, reason, restartable=True)


def _reached(watermark: Watermark) -> str:
    return f"watermark {watermark.epoch}" if watermark.epoch >= 0 else "no epoch yet"


def _age(seen: DriverObservation, state: QueryState, now: datetime) -> float:
    return seconds_since(_launched_at(seen, state), now) or 0.0


def _launched_at(seen: DriverObservation, state: QueryState) -> str:
    if moment := launched_at(seen.launch_id):
        return moment.isoformat()
    owner = state.owner
    if owner and seen.is_of(owner.driver):
        return owner.time
    return seen.heartbeat.time if seen.heartbeat else ""
