"""Rules about a stream's drivers: duplicate, gone, not visible, failed, or not yet stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_lance.diagnostics.commands import (
    command,
    described,
    name_of,
    start_again,
)
from airflow_provider_lance.diagnostics.evidence import Evidence, Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair, Severity
from airflow_provider_lance.diagnostics.formatting import ago, is_later, lasted, seconds_since
from airflow_provider_lance.exceptions import FencedError, TerminalError, error_class
from airflow_provider_lance.protocol.model import Owner
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["driver_rules", "is_driver_running", "live_drivers"]

_GRACE = 60.0
"""The age up to which a stop request needs no finding: the default grace of a driver."""


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
    if not alive:
        yield from _failure(evidence)
    yield from _stop(evidence, alive)


def _two(evidence: Evidence, alive: list[DriverObservation]) -> Finding:
    owner = evidence.owner_seen
    keeps = next((each for each in alive if evidence.active and each is owner), alive[0])
    others = [each for each in alive if each is not keeps]
    pids = [str(each.process.pid) for each in others if each.process]
    where = ", ".join(each.where for each in others)
    return Finding(
        Code.TWO_DRIVERS,
        f"{len(alive)} drivers of query {evidence.query_id} are alive: "
        f"{' and '.join(name_of(each) for each in alive)}.",
        cause="A task was started again while its last driver went on, or two deployments run one "
        f"query id. Only the owner commits, so no row is doubled. Keep {name_of(keeps)}; the other "
        f"({where}) ends as fenced at its next epoch, or at once by the command, typed on its own "
        "host.",
        command=f"kill {' '.join(pids)}" if pids else "",
        evidence={"drivers": [described(each) for each in alive], "keep": described(keeps)},
        query_id=evidence.query_id,
    )


def _not_there(
    evidence: Evidence,
    tolerance: Tolerance,
    owner: Owner,
    seen: DriverObservation,
    alive: list[DriverObservation],
) -> Finding:
    shown = {
        **described(seen),
        "token": owner.token,
        "since": owner.time,
        "watermark": evidence.watermark.epoch,
        "committedAt": evidence.watermark.committed_at,
    }
    if seen.liveness(tolerance.silence).alive is None and seen.heartbeat is None and not alive:
        return _unseen(evidence, tolerance, seen, shown)
    how = _how_gone(seen)
    if alive:
        return Finding(
            Code.DRIVER_GONE,
            f"The driver that owns query {evidence.query_id}, {name_of(seen)}, {how}; "
            f"{name_of(alive[0])} is at work and takes the query over.",
            cause="A new driver claims the query as it starts, or with its first rows; it has not "
            "yet.",
            evidence={**shown, "successor": described(alive[0])},
            query_id=evidence.query_id,
            raised=Severity.INFO,
        )
    proven = seen.liveness(tolerance.silence).alive is False
    again = start_again(owner.driver.launched_by)
    sure = "" if proven else " Whether it is dead cannot be proven from here: look on its host."
    return Finding(
        Code.DRIVER_GONE,
        f"The driver that owns query {evidence.query_id}, {name_of(seen)}, {how}; the watermark is "
        f"{evidence.watermark.epoch} and nobody is at work.",
        cause="It was killed, its host went down, or it gave up on an epoch that hung. No row is "
        f"lost: the next driver goes on after the watermark.{sure} To go on, {again}; release the "
        "query if it is not to run again.",
        command=command(evidence, "release", options=("--yes",) if proven else ()),
        evidence={**shown, "proven": proven},
        query_id=evidence.query_id,
        repair=Repair.OWNER if proven else None,
    )


def _how_gone(seen: DriverObservation) -> str:
    if seen.summary is not None:
        released = "after it released it" if seen.summary.released else "without releasing it"
        return f"ended ({seen.summary.reason}) {released}"
    if seen.alive is False:
        return "is gone"
    if seen.heartbeat and seen.heartbeat.state == "ended":
        return "said that it ended, and left no summary"
    if seen.heartbeat:
        return f"gave no heartbeat for {lasted(seen.silent)} and is out of sight"
    return "is out of sight"


def _unseen(
    evidence: Evidence, tolerance: Tolerance, seen: DriverObservation, shown: dict[str, Any]
) -> Finding:
    watermark = evidence.watermark
    age = seconds_since(watermark.committed_at, evidence.seen_at)
    last = f"epoch {watermark.epoch} was committed {ago(watermark.committed_at, evidence.seen_at)}"
    what = last if watermark.committed_at else "it has committed nothing yet"
    return Finding(
        Code.DRIVER_UNSEEN,
        f"The driver that owns query {evidence.query_id}, {name_of(seen)}, cannot be seen from "
        f"here; {what}.",
        cause="Its process is on another host and there are no heartbeats: a sink that is used "
        "without the job writes none, and those beside a checkpoint on another host's disk cannot "
        f"be read. Run the same command on {seen.where.rsplit(':', 1)[0]}.",
        command=command(evidence, "status"),
        evidence=shown,
        query_id=evidence.query_id,
        raised=Severity.INFO if age is not None and age < tolerance.silence else None,
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
    again = start_again(newest.launched_by)
    yield Finding(
        Code.QUERY_FAILED,
        f"Query {evidence.query_id} failed with {summary.error}: {_first_line(summary.message)}",
        cause=f"Terminal: it fails again until somebody does what the message says; then {again}."
        + _rest(summary.message)
        if terminal
        else f"Transient: a new start may go through; {again}, or wait for the next retry.",
        command=command(evidence, "check"),
        evidence={
            **described(newest),
            "error": summary.error,
            "message": summary.message,
            "terminal": terminal,
            "watermark": summary.watermark,
        },
        query_id=evidence.query_id,
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
    who = f" by {note.by}" if note.by else ""
    waited = seconds_since(note.time, evidence.seen_at)
    since = f" {lasted(waited)} ago" if waited is not None else ""
    where = " and ".join(each.where for each in meant) or (seen.where if seen else "its host")
    yield Finding(
        Code.STOP_PENDING,
        f"Query {evidence.query_id} was asked to stop{who}{since} and has not yet.",
        cause="A busy driver sees the request at its next commit, an idle one within seconds, and "
        "finishes its epoch within its grace. One that hangs never sees it: end its process on "
        f"{where}, nothing is lost.",
        command=command(evidence, "watch"),
        evidence={
            "token": note.token,
            "launchId": note.launch_id,
            "by": note.by,
            "time": note.time,
            "drivers": [described(each) for each in meant],
        },
        query_id=evidence.query_id,
        raised=Severity.INFO if waited is not None and waited < _GRACE else None,
    )


def _first_line(text: str | None) -> str:
    return (text or "no message").splitlines()[0][:500]


def _rest(text: str | None) -> str:
    """Return the text after a message's first line: the trace of a user's function."""
    rest = (text or "").partition("\n")[2][:4000]
    return f"\n{rest}" if rest else ""
