"""Rules about a stream's drivers: duplicate, gone, not visible, failed, or not yet stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.catalogue_driver import DriverCase
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import command, finding, start_again
from airflow_provider_lance.diagnostics.findings import Finding, Repair, Severity
from airflow_provider_lance.diagnostics.formatting import ago, is_later, lasted, seconds_since
from airflow_provider_lance.exceptions import FencedError, TerminalError, error_class
from airflow_provider_lance.protocol.model import Owner
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["driver_rules", "is_driver_running", "live_drivers"]

_GRACE = 60.0
"""The age up to which a stop request needs no finding: the default grace of a driver."""
_UNSURE = " Whether the driver is dead cannot be proven from here: check on its host."


def live_drivers(evidence: Evidence, tolerance: Tolerance) -> list[DriverObservation]:
    """Return the drivers that certainly run, newest first, each process once."""
    found: dict[Any, DriverObservation] = {}
    for each in evidence.drivers:
        if each.liveness(tolerance.silence).alive:
            found.setdefault(each.process or each.launch_id, each)
    return list(found.values())


def is_driver_running(evidence: Evidence, tolerance: Tolerance) -> bool | None:
    """Return whether a driver runs; ``None`` if the owner's is not visible.

    A driver that is not visible counts as running if it committed just now.
    """
    if live_drivers(evidence, tolerance):
        return True
    seen = evidence.owner_seen
    if not evidence.active or seen is None or seen.liveness(tolerance.silence).alive is False:
        return False
    age = seconds_since(evidence.watermark.committed_at, evidence.seen_at)
    return True if age is not None and age < tolerance.silence else None


def driver_rules(evidence: Evidence, tolerance: Tolerance) -> Iterator[Finding]:
    """Yield the findings about drivers; pure."""
    alive = live_drivers(evidence, tolerance)
    if len(alive) > 1:
        yield _two(evidence, alive)
    owner, seen = evidence.state.owner, evidence.owner_seen
    if evidence.active and owner and seen and not seen.liveness(tolerance.silence).alive:
        yield _not_there(evidence, tolerance, owner, seen, alive)
    yield from _not_responding(evidence, alive)
    if not alive:
        yield from _failure(evidence)
    yield from _stop(evidence, alive)


def _two(evidence: Evidence, alive: list[DriverObservation]) -> Finding:
    owner = evidence.owner_seen
    keeps = next((each for each in alive if evidence.active and each is owner), alive[0])
    others = [each for each in alive if each is not keeps]
    pids = [str(each.process.pid) for each in others if each.process]
    return finding(
        DriverCase.TWO_DRIVERS,
        {"drivers": [each.shown() for each in alive], "keep": keeps.shown()},
        f"kill {' '.join(pids)}" if pids else "",
        count=len(alive),
        drivers=" and ".join(each.name for each in alive),
        keep=keeps.name,
        others=", ".join(each.where for each in others),
        of=evidence,
    )


def _not_there(
    evidence: Evidence,
    tolerance: Tolerance,
    owner: Owner,
    seen: DriverObservation,
    alive: list[DriverObservation],
) -> Finding:
    shown = {
        **seen.shown(),
        "token": owner.token,
        "since": owner.time,
        "watermark": evidence.watermark.epoch,
        "committedAt": evidence.watermark.committed_at,
    }
    lives = seen.liveness(tolerance.silence).alive
    if lives is None and seen.heartbeat is None and not alive:
        return _unseen(evidence, tolerance, seen, shown)
    if alive:
        return finding(
            DriverCase.DRIVER_REPLACED,
            {**shown, "successor": alive[0].shown()},
            driver=seen.name,
            how=_how_gone(seen),
            successor=alive[0].name,
            of=evidence,
        )
    proven = lives is False
    return finding(
        DriverCase.DRIVER_GONE,
        {**shown, "proven": proven},
        command(evidence, "release", options=("--yes",) if proven else ()),
        repair=Repair.OWNER if proven else None,
        driver=seen.name,
        how=_how_gone(seen),
        unsure="" if proven else _UNSURE,
        again=start_again(owner.driver.launched_by),
        of=evidence,
    )


def _how_gone(seen: DriverObservation) -> str:
    if seen.summary is not None:
        released = "after releasing it" if seen.summary.released else "without releasing it"
        return f"ended ({seen.summary.reason}) {released}"
    if seen.alive is False:
        return "is gone"
    if seen.heartbeat and seen.heartbeat.state == "ended":
        return "reported its end and left no summary"
    if seen.heartbeat:
        return f"has sent no heartbeat for {lasted(seen.silent)} and cannot be seen from here"
    return "cannot be seen from here"


def _unseen(
    evidence: Evidence, tolerance: Tolerance, seen: DriverObservation, shown: dict[str, Any]
) -> Finding:
    watermark, now = evidence.watermark, evidence.seen_at
    age = seconds_since(watermark.committed_at, now)
    last = f"epoch {watermark.epoch} was committed {ago(watermark.committed_at, now)}"
    return finding(
        DriverCase.DRIVER_UNSEEN,
        shown,
        command(evidence, "status"),
        severity=Severity.INFO if age is not None and age < tolerance.silence else None,
        driver=seen.name,
        host=seen.where.rsplit(":", 1)[0],
        last=last if watermark.committed_at else "it has committed nothing yet",
        of=evidence,
    )


def _not_responding(evidence: Evidence, alive: list[DriverObservation]) -> Iterator[Finding]:
    health = evidence.health
    if health is None or health.state is not StreamState.NOT_RESPONDING or not alive:
        return
    driver = alive[0]
    pid = str(driver.process.pid) if driver.process else ""
    yield finding(
        DriverCase.SUSPENDED if driver.suspended else DriverCase.NOT_RESPONDING,
        {**driver.shown(), "silentSeconds": round(driver.silent), "suspended": driver.suspended},
        f"kill {'-CONT' if driver.suspended else '-KILL'} {pid}" if pid else "",
        driver=driver.name,
        reason=health.reason,
        host=driver.where.rsplit(":", 1)[0],
        again=start_again(driver.launched_by),
        of=evidence,
    )


def _failure(evidence: Evidence) -> Iterator[Finding]:
    newest = evidence.drivers[0] if evidence.drivers else None
    summary, owner = newest.summary if newest else None, evidence.state.owner
    if newest is None or summary is None or summary.reason is not EndReason.FAILED:
        return
    error = error_class(summary.error or "")
    ended = newest.heartbeat.time if newest.heartbeat else None
    if issubclass(error, FencedError) or is_later(owner.time if owner else None, ended):
        return  # another driver owned the query, or it was claimed or released since
    terminal = issubclass(error, TerminalError)
    first, _, rest = (summary.message or "no message").partition("\n")
    yield finding(
        DriverCase.FAILED_FOR_GOOD if terminal else DriverCase.FAILED,
        {
            **newest.shown(),
            "error": summary.error,
            "message": summary.message,
            "terminal": terminal,
            "watermark": summary.watermark,
        },
        command(evidence, "check"),
        error=summary.error,
        message=first[:500],
        again=start_again(newest.launched_by),
        # After the first line follows the trace of a user's function.
        trace=f"\n{rest[:4000]}" if rest else "",
        of=evidence,
    )


def _stop(evidence: Evidence, alive: list[DriverObservation]) -> Iterator[Finding]:
    note, owner, seen = standing_request(evidence.state), evidence.state.owner, evidence.owner_seen
    if note is None:
        return
    # A driver without a token takes the next one.
    following = (owner.token if owner else 0) + 1
    meant = [
        each
        for each in alive
        if note.means(each.launch_id, following if each.token is None else each.token)
    ]
    unseen = bool(
        evidence.active and owner and note.token == owner.token and seen and seen.alive is None
    )
    if not meant and not (unseen and seen and seen.summary is None):
        return
    waited = seconds_since(note.time, evidence.seen_at)
    yield finding(
        DriverCase.STOP_PENDING,
        {
            "token": note.token,
            "launchId": note.launch_id,
            "by": note.by,
            "time": note.time,
            "drivers": [each.shown() for each in meant],
        },
        command(evidence, "watch"),
        severity=Severity.INFO if waited is not None and waited < _GRACE else None,
        by=f" by {note.by}" if note.by else "",
        since=f" {lasted(waited)} ago" if waited is not None else "",
        where=" and ".join(each.where for each in meant) or (seen.where if seen else "its host"),
        of=evidence,
    )
