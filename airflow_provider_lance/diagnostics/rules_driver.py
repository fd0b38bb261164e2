"""Rules about a stream's drivers: duplicate, gone, not visible, failed, or not yet stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.catalogue_driver import (
    CORRECT,
    END_IT,
    END_THE_OTHER,
    LET_IT_CONTINUE,
    STOP_FOR_GOOD,
    THE_SAME_TOPIC,
    THE_TOPIC_ANEW,
    DriverCase,
)
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import (
    again_or_not,
    command,
    end_process,
    finding,
    start_again,
)
from airflow_provider_lance.diagnostics.findings import Finding, Repair, Severity, Step
from airflow_provider_lance.diagnostics.formatting import (
    ago,
    is_later,
    lasted,
    reached,
    seconds_since,
)
from airflow_provider_lance.exceptions import (
    FencedError,
    SourceReplacedError,
    TerminalError,
    TransientError,
    error_class,
)
from airflow_provider_lance.protocol.model import NO_EPOCH, ByHand, Owner, OwnerState
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["driver_rules", "is_driver_running", "live_drivers"]

_GRACE = 60.0
"""The age up to which a stop request needs no finding: the default grace of a driver."""
_UNSURE = (
    " Whether it is dead cannot be proven from here; a new driver fences it if it still runs, and "
    "no row is duplicated."
)
_TRACE = "\nTraceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.M)


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
    yield from _nobody_runs(evidence)
    yield from _not_responding(evidence, alive)
    if not alive:
        yield from _failure(evidence)
    yield from _stop(evidence, alive)


def _two(evidence: Evidence, alive: list[DriverObservation]) -> Finding:
    owner = evidence.owner_seen
    keeps = next((each for each in alive if evidence.active and each is owner), alive[0])
    others = [each for each in alive if each is not keeps]
    return finding(
        DriverCase.TWO_DRIVERS,
        {"drivers": [each.shown() for each in alive], "keep": keeps.shown()},
        [end_process(each, END_THE_OTHER) for each in others],
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
    meant = evidence.health is not None and evidence.health.state.meant
    return finding(
        DriverCase.DRIVER_ENDED if meant else DriverCase.DRIVER_GONE,
        {**shown, "proven": proven},
        again_or_not(evidence, owner.driver.launched_by, "" if proven else seen.host),
        repair=Repair.OWNER if proven else None,
        driver=seen.name,
        how=_how_gone(seen),
        unsure="" if proven else _UNSURE,
        watermark=reached(evidence.watermark.epoch),
        of=evidence,
    )


def _nobody_runs(evidence: Evidence) -> Iterator[Finding]:
    """Report a query that a repair has released, and that no driver has claimed since."""
    health, owner = evidence.health, evidence.state.owner
    hand = owner.driver.by_hand if owner and owner.state is OwnerState.RELEASED else None
    if owner is None or hand is None or health is None or health.state is not StreamState.DEAD:
        return
    newest = evidence.drivers[0] if evidence.drivers else None
    if newest is not None and not newest.is_of(owner.driver):
        return  # a driver came after the release, and is lost: that is another finding
    yield finding(
        DriverCase.NOBODY_RUNS,
        {"releasedAt": owner.time, "by": hand.who, "watermark": evidence.watermark.epoch},
        again_or_not(evidence, owner.driver.launched_by),
        what=hand.what,
        who=hand.who,
        since=f" {ago(owner.time, evidence.seen_at)}",
        watermark=reached(evidence.watermark.epoch),
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
    recent = age is not None and age < tolerance.silence
    record = evidence.state.owner.driver if evidence.state.owner else None
    steps = again_or_not(evidence, record.launched_by if record else "", seen.host)
    return finding(
        DriverCase.DRIVER_UNSEEN,
        shown,
        () if recent else steps,
        severity=Severity.INFO if recent else None,
        driver=seen.name,
        host=seen.host or "a host that is not recorded",
        last=last if watermark.epoch > NO_EPOCH else "it has committed nothing yet",
        of=evidence,
    )


def _not_responding(evidence: Evidence, alive: list[DriverObservation]) -> Iterator[Finding]:
    health = evidence.health
    if health is None or health.state is not StreamState.NOT_RESPONDING or not alive:
        return
    driver = alive[0]
    steps = [end_process(driver, END_IT), start_again(driver.launched_by, evidence.airflow_url)]
    if driver.suspended:
        steps = [end_process(driver, LET_IT_CONTINUE, "CONT")]
    yield finding(
        DriverCase.SUSPENDED if driver.suspended else DriverCase.NOT_RESPONDING,
        {**driver.shown(), "silentSeconds": round(driver.silent), "suspended": driver.suspended},
        steps,
        driver=driver.name,
        reason=health.reason,
        of=evidence,
    )


def _failure(evidence: Evidence) -> Iterator[Finding]:
    newest = evidence.drivers[0] if evidence.drivers else None
    summary, owner = newest.summary if newest else None, evidence.state.owner
    if newest is None or summary is None or summary.reason is not EndReason.FAILED:
        return
    error = error_class(summary.error or "")
    ended = newest.heartbeat.time if newest.heartbeat else None
    since = is_later(owner.time if owner else None, ended)
    hand = owner.driver.by_hand if owner else None
    if issubclass(error, FencedError) or (since and not (hand and hand.what == ByHand.RELEASED)):
        return  # another driver owned the query, or it was claimed or released since
    if issubclass(error, SourceReplacedError):
        yield _replaced(evidence, newest, summary)
        return
    case, what = DriverCase.FAILED_UNKNOWN, ""
    said, where, trace = _parts_of(summary.message or "no message")
    if issubclass(error, TransientError):
        case = DriverCase.FAILED
    elif issubclass(error, TerminalError):
        case, what = DriverCase.FAILED_FOR_GOOD, where or "what the message names"
    yield finding(
        case,
        {
            **newest.shown(),
            "error": summary.error,
            "message": summary.message,
            "line": where or None,
            "terminal": issubclass(error, TerminalError),
            "watermark": summary.watermark,
        },
        [
            *([Step(CORRECT.format(what=what))] if what else []),
            start_again(newest.launched_by, evidence.airflow_url),
        ],
        error=summary.error,
        message=said,
        where=f" (at {where})" if where else "",
        trace=trace,
        of=evidence,
    )


def _replaced(evidence: Evidence, newest: DriverObservation, summary: Summary) -> Finding:
    return finding(
        DriverCase.TOPIC_REPLACED,
        {
            **newest.shown(),
            "error": summary.error,
            "message": summary.message,
            "watermark": summary.watermark,
        },
        [
            Step(THE_TOPIC_ANEW),
            # Not the finding's command: whoever types it without reading on loses records.
            Step(THE_SAME_TOPIC.format(typed=command(evidence, "resolve", "topics"))),
        ],
        message=(summary.message or "").partition(". ")[0] + ".",
        of=evidence,
    )


def _parts_of(message: str) -> tuple[str, str, str]:
    """Return an error's own text, the user's line that raised it, and the trace, if it has one."""
    said, found, trace = message.partition(_TRACE)
    frames = list(_FRAME.finditer(trace))
    last = frames[-1] if frames else None
    name = f" in {last['name']}" if last and last["name"] else ""
    where = f"{last['file']}:{last['line']}{name}" if last else ""
    return " ".join(said.split())[:500], where, f"{found}{trace[:4000]}" if found else ""


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
    recent = waited is not None and waited < _GRACE
    busy = meant or [each for each in (seen,) if each]
    release = command(evidence, "release", options=("--for-good", "--yes"))
    host = next((each.host for each in busy if each.alive is None), "")
    steps = [*(end_process(each, END_IT) for each in busy), Step(STOP_FOR_GOOD, release, host)]
    yield finding(
        DriverCase.STOP_PENDING,
        {
            "token": note.token,
            "launchId": note.launch_id,
            "by": note.by,
            "time": note.time,
            "drivers": [each.shown() for each in meant],
        },
        () if recent else steps,
        severity=Severity.INFO if recent else None,
        by=f" by {note.by}" if note.by else "",
        since=f" {ago(note.time, evidence.seen_at)}" if waited is not None else "",
        of=evidence,
    )
