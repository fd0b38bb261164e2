"""A stream's status: one sentence, then the numbers; every place that shows a status calls this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from airflow_provider_lance.diagnostics.around import dataset_findings
from airflow_provider_lance.diagnostics.changes import Change, collect_changes
from airflow_provider_lance.diagnostics.collect import CollectOptions, collect
from airflow_provider_lance.diagnostics.evidence import (
    USUAL,
    Evidence,
)
from airflow_provider_lance.diagnostics.findings import Finding, Severity
from airflow_provider_lance.diagnostics.formatting import ago, seconds_since, unread
from airflow_provider_lance.diagnostics.outlook import (
    Outlook,
    outlook,
    recent_rates,
    samples,
    waiting_seconds,
)
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.diagnostics.side_tables import SideTableStatus
from airflow_provider_lance.diagnostics.since import unhealthy_since
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.heartbeat import Unread, Upkeep
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.query_state import QueryState

__all__ = ["Status", "count", "status", "take_status"]

UNKNOWN = "unknown"
_RECENT = 30
"""Epochs of which a status has the trend."""


@dataclass(frozen=True, slots=True)
class Status(JsonRecord):
    """One stream in numbers; an unknown value is ``None``.

    ``state`` is a :class:`~airflow_provider_lance.supervision.health.StreamState` or ``unknown``,
    ``driver`` is ``host:pid``, times are ISO 8601. ``healthy`` means that no finding is an error or
    worse, ``since`` is the time from which on it is not. ``sides`` are its side tables.

    ``rows_behind``, with ``behind_files`` in files, ``versions_behind`` and ``seconds_behind`` were
    seen at ``behind_at``, by a driver that responds or without one. If neither can be, they are
    ``None``, and ``last_behind`` is what a driver said then, as text. ``outlook`` says what
    follows from the newest epochs, whose ``recent_rows_per_second`` and ``recent_behind`` come
    oldest first. A Lance source also has a ``source_position``, how far it is read. ``checks``
    counts what the expectations found in the newest driver's run, ``query_state`` is what its
    stateful operators hold, ``upkeep`` what that run did to look after its tables. ``changes`` is
    what happened, newest first; read on request.
    """

    uri: str
    query_id: str
    state: str
    sentence: str
    healthy: bool
    watermark: int
    version: int
    committed_at: str | None = None
    epoch_age_seconds: float | None = None
    rows_behind: float | None = None
    versions_behind: float | None = None
    seconds_behind: float | None = None
    behind_at: str | None = None
    behind_files: bool = False
    last_behind: str = ""
    caught_up_in_seconds: float | None = None
    falls_behind_by: float | None = None
    outlook: str = ""
    since: str | None = None
    source_position: str | None = None
    in_flight: int | None = None
    token: int | None = None
    owner_state: str | None = None
    launch_id: str | None = None
    launched_by: str | None = None
    driver: str | None = None
    ui_address: str | None = None
    heartbeat_at: str | None = None
    rows: int | None = None
    fragments: int | None = None
    checks: RowChecks | None = None
    query_state: QueryState | None = None
    upkeep: Upkeep | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    recent_rows_per_second: tuple[float, ...] = ()
    recent_behind: tuple[float, ...] = ()
    sides: tuple[SideTableStatus, ...] = ()
    findings: tuple[Finding, ...] = ()
    changes: tuple[Change, ...] = ()


def take_status(
    port: DatasetPort, query_id: str, *, detail: bool = False, **options: Unpack[CollectOptions]
) -> Status:
    """Observe one stream and return its status; reads 5 epochs of history by default.

    :param detail: also read what changed, and what is not read where no driver says it.
    :param options: as for :func:`~.collect.collect`.
    :raises ProtocolVersionError, DatasetNotFoundError, StorageUnavailableError: as there.
    """
    options.setdefault("history", 5)
    options.setdefault("unread", detail)
    evidence = collect(port, query_id, **options)
    changes = collect_changes(port, query_id, evidence.drivers) if detail else ()
    findings = evaluate_rules(evidence, options.get("tolerance", USUAL))
    findings += dataset_findings(port, **options)
    rows, fragments = count(port)
    return status(evidence, findings, rows=rows, fragments=fragments, changes=changes)


def count(port: DatasetPort) -> tuple[int | None, int | None]:
    """Return a dataset's rows and fragments from its manifest; ``None`` for the in-memory one."""
    dataset = getattr(port, "dataset", None)
    if dataset is None or not hasattr(dataset, "get_fragments"):
        return None, None
    metadata = [each.metadata for each in dataset.get_fragments()]
    return sum(each.physical_rows - each.num_deletions for each in metadata), len(metadata)


def status(
    evidence: Evidence,
    findings: list[Finding],
    *,
    rows: int | None = None,
    fragments: int | None = None,
    changes: tuple[Change, ...] = (),
) -> Status:
    """Return a stream's status; pure.

    :param findings: about the stream, and about the dataset around it.
    :param rows: the dataset's rows; ``fragments`` likewise.
    :param changes: what happened, newest first.
    """
    findings = sorted(findings, key=lambda finding: -finding.severity)
    watermark, owner, now = evidence.watermark, evidence.state.owner, evidence.seen_at
    driver = _shown(evidence)
    heartbeat = driver.heartbeat if driver else None
    checkpoint = evidence.own_checkpoint
    in_flight = checkpoint.in_flight if checkpoint else None
    record = owner.driver if owner else None
    is_owner = bool(driver and record and driver.is_of(record))
    launched_by = (driver.launched_by if driver else "") or (
        record.launched_by if record and is_owner else ""
    )
    running = driver is not None and driver.summary is None
    responds = running and evidence.health is not None and evidence.health.state.responds
    seen, seen_at = _unread(evidence, driver)
    current = seen if responds or evidence.unread else Unread(files=seen.files)
    expected = _outlook(driver) if responds else Outlook()
    said = driver.heartbeat_json if driver and responds else None
    return Status(
        uri=evidence.uri,
        query_id=evidence.query_id,
        state=evidence.health.state.value if evidence.health else UNKNOWN,
        sentence=_sentence(evidence, findings, driver),
        healthy=all(finding.severity < Severity.ERROR for finding in findings),
        watermark=watermark.epoch,
        version=evidence.version,
        committed_at=watermark.committed_at,
        epoch_age_seconds=_rounded(seconds_since(watermark.committed_at, now)),
        rows_behind=current.rows,
        versions_behind=current.versions,
        seconds_behind=_rounded(current.seconds),
        behind_at=seen_at,
        behind_files=current.files,
        last_behind="" if current == seen else _behind(seen),
        caught_up_in_seconds=expected.caught_up_in_seconds,
        falls_behind_by=expected.falls_behind_by,
        outlook=str(expected),
        since=unhealthy_since(evidence, findings, changes),
        source_position=(heartbeat.position if heartbeat else "") or None,
        in_flight=in_flight if in_flight is not None and in_flight > watermark.epoch else None,
        token=owner.token if owner else None,
        owner_state=owner.state.value if owner else None,
        launch_id=(driver.launch_id or None) if driver else None,
        launched_by=launched_by or None,
        driver=driver.where if driver and driver.process else None,
        ui_address=(heartbeat.ui_address if heartbeat else "")
        or (record.ui_address if record and is_owner else "")
        or None,
        heartbeat_at=heartbeat.time if heartbeat else None,
        rows=rows,
        fragments=fragments,
        checks=heartbeat.checks if heartbeat and heartbeat.checks else None,
        query_state=heartbeat.query_state if heartbeat else None,
        upkeep=heartbeat.upkeep if heartbeat and heartbeat.upkeep != Upkeep() else None,
        input_rows_per_second=_progress(driver, "inputRowsPerSecond") if responds else None,
        processed_rows_per_second=_progress(driver, "processedRowsPerSecond") if responds else None,
        recent_rows_per_second=recent_rates(said)[-_RECENT:],
        recent_behind=tuple(each.behind for each in samples(said))[-_RECENT:],
        sides=evidence.sides,
        findings=tuple(findings),
        changes=changes,
    )


def _unread(evidence: Evidence, driver: DriverObservation | None) -> tuple[Unread, str | None]:
    """Return what is not read, and when that was seen: now, or with a driver's last heartbeat."""
    if evidence.unread is not None:
        return evidence.unread, evidence.seen_at.isoformat(timespec="seconds")
    beat = driver.heartbeat if driver else None
    if driver is None or beat is None:
        return Unread(), None
    seconds = beat.seconds_behind
    if seconds is None and not beat.behind_files:
        seconds = waiting_seconds(samples(driver.heartbeat_json), beat.time)
    seen = Unread(beat.behind, beat.versions_behind, seconds, beat.behind_files)
    return seen, None if seen == Unread() else beat.time


def _behind(seen: Unread) -> str:
    """Return what is not read as people read it; empty if it is unknown."""
    said = unread(seen.rows, seen.versions, seen.seconds, files=seen.files)
    return "nothing" if said == "0" else said


def _outlook(driver: DriverObservation | None) -> Outlook:
    if driver is None or driver.heartbeat is None:
        return Outlook()
    return outlook(samples(driver.heartbeat_json), files=driver.heartbeat.behind_files)


def _shown(evidence: Evidence) -> DriverObservation | None:
    """Return the driver to show: the newest that may be running, otherwise the newest."""
    working = [each for each in evidence.drivers if each.liveness(float("inf")).alive is not False]
    return next(iter(working or evidence.drivers), None)


def _sentence(evidence: Evidence, findings: list[Finding], driver: DriverObservation | None) -> str:
    state = evidence.health.state.value if evidence.health else UNKNOWN
    worst = findings[0] if findings else None
    if worst and worst.severity >= Severity.ERROR:
        # A stream that ended well and cannot start again, or lacks rows, is not well.
        well = evidence.health is not None and evidence.health.state.meant
        return f"{worst.severity.label if well else state}: {_lowered(worst.summary)}"
    said = f"{state}: {', '.join(_parts(evidence, driver))}"
    if worst and worst.severity is Severity.WARNING and evidence.health is not None:
        said += f"; but {worst.code.title}"
    return said


def _parts(evidence: Evidence, driver: DriverObservation | None) -> list[str]:
    watermark, health, now = evidence.watermark, evidence.health, evidence.seen_at
    parts = [
        f"watermark {watermark.epoch}" if watermark.epoch > NO_EPOCH else "no epoch committed yet"
    ]
    if watermark.committed_at:
        parts.append(f"committed {ago(watermark.committed_at, now)}")
    if health is None:
        return [*parts, "no driver can be seen from here"]
    if health.state.ended:
        found = evidence.unread
        waiting = _behind(found) if found else ""
        return [health.reason, *parts[1:], *([f"{waiting} not read"] if found else [])]
    if not health.state.responds or health.state is StreamState.STOPPING:
        return [*parts, health.reason]
    rate = _progress(driver, "processedRowsPerSecond")
    if health.state is StreamState.RUNNING and rate:
        parts.append(f"{rate:,.0f} rows/s")
    seen, _ = _unread(evidence, driver)
    if behind := _behind(seen):
        parts.append(f"{behind} behind")
        parts += filter(None, [str(_outlook(driver))])
    elif health.state is StreamState.IDLE:
        parts.append("nothing to read")
    return parts


def _progress(driver: DriverObservation | None, name: str) -> float | None:
    progress = (driver.heartbeat_json or {}).get("progress") if driver else None
    value = progress.get(name) if isinstance(progress, Mapping) else None
    return _rounded(value) if isinstance(value, int | float) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 1)


def _lowered(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
