"""Since when a stream is not healthy, as far as anything says so; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_lance.diagnostics.changes import Change, ended_at
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.supervision.driver_reports import launched_at
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["unhealthy_since"]

_ENDED = {Code.DRIVER_GONE, Code.QUERY_FAILED, Code.NOT_RESPONDING}


def unhealthy_since(
    evidence: Evidence, findings: Sequence[Finding], changes: Iterable[Change] = ()
) -> str | None:
    """Return since when the worst finding holds, ISO 8601; ``None`` if nothing says.

    :param changes: what is known to have happened; a restore's time is among them.
    """
    worst = findings[0] if findings else None
    if worst is None or worst.severity < Severity.ERROR:
        return None
    checkpoint = evidence.own_checkpoint
    if worst.code is Code.STALLED:
        return checkpoint.planned_at if checkpoint else None
    if worst.code is Code.TWO_DRIVERS:
        begun = [launched_at(each.launch_id) for each in _running(evidence)]
        newest = max((each for each in begun if each), default=None)
        return newest.isoformat(timespec="seconds") if newest else None
    if worst.code is Code.COMMIT_LOG_AHEAD:
        undone = {each.version for each in evidence.undone}
        return next((each.at for each in changes if each.version in undone), None)
    if worst.code in _ENDED:
        driver = evidence.owner_seen if worst.code is Code.DRIVER_GONE else None
        driver = driver or next(iter(evidence.drivers), None)
        return ended_at(driver) if driver else None
    return None


def _running(evidence: Evidence) -> list[DriverObservation]:
    return [each for each in evidence.drivers if each.liveness(float("inf")).alive]
