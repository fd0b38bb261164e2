"""Many streams at a glance: one row each, worst first, and how many need somebody; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.status import UNKNOWN, Status
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = [
    "FleetCounts",
    "FleetRow",
    "Level",
    "counts",
    "report_rows",
    "status_row",
    "status_rows",
    "worst_first",
]

Level = Literal["critical", "error", "unknown", "warning", "fine"]
_WORST_FIRST: tuple[Level, ...] = ("critical", "error", "unknown", "warning", "fine")
_LEVELS: dict[Severity, Level] = {
    Severity.CRITICAL: "critical",
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "fine",
}


@dataclass(frozen=True, slots=True)
class FleetRow(JsonRecord):
    """One stream, or what a dataset has besides: ``query_id`` is then empty.

    ``level`` is the severity of its worst finding, ``fine`` without one, ``unknown`` if it could
    not be observed.
    """

    level: Level
    state: str
    uri: str
    query_id: str
    sentence: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class FleetCounts(JsonRecord):
    """How many streams need somebody, have a warning, are fine."""

    need_you: int
    warned: int
    fine: int

    def __str__(self) -> str:
        """Return them as a line; what is none is left out, but never all."""
        said = {
            "need you" if self.need_you != 1 else "needs you": self.need_you,
            "warned": self.warned,
            "fine": self.fine,
        }
        return ", ".join(f"{count} {word}" for word, count in said.items() if count) or "no stream"


def status_row(status: Status) -> FleetRow:
    """Return a stream's row, of the findings about the stream itself."""
    own = (each for each in status.findings if each.query_id or each.code is Code.HEALTHY)
    level, code = _level(next(own, None))
    if level == "fine" and status.state == UNKNOWN:
        level = "unknown"
    said = status.sentence.removeprefix(f"{status.state}: ")
    return FleetRow(level, status.state, status.uri, status.query_id, said, code)


def status_rows(statuses: Sequence[Status]) -> list[FleetRow]:
    """Return a row for each stream, and one for each finding about their datasets."""
    about = {(each.uri, finding.code): finding for each in statuses for finding in each.findings}
    return [
        *map(status_row, statuses),
        *(
            _dataset_row(uri, finding)
            for (uri, _), finding in about.items()
            if not finding.query_id and finding.severity >= Severity.WARNING
        ),
    ]


def report_rows(report: CheckReport) -> list[FleetRow]:
    """Return a row for each stream of a checked dataset, and for what the dataset itself has."""
    rows = status_rows(report.statuses)
    known = {each.query_id for each in report.statuses}
    said = {row.code for row in rows if not row.query_id}
    return rows + [
        _dataset_row(report.uri, finding)
        for finding in report.at_or_above(Severity.WARNING)
        if finding.query_id not in known and finding.code.value not in said
    ]


def _dataset_row(uri: str, finding: Finding) -> FleetRow:
    level, code = _level(finding)
    return FleetRow(level, "dataset", uri, finding.query_id, finding.summary, code)


def _level(worst: Finding | None) -> tuple[Level, str]:
    if worst is None or worst.code is Code.HEALTHY:
        return "fine", ""
    return _LEVELS[worst.severity], worst.code.value


def worst_first(rows: Iterable[FleetRow]) -> list[FleetRow]:
    """Return the rows, worst first."""
    return sorted(
        rows, key=lambda row: (_WORST_FIRST.index(row.level), row.query_id, row.uri, row.code)
    )


def counts(rows: Sequence[FleetRow]) -> FleetCounts:
    """Count the rows; one that could not be observed needs somebody."""
    found = [row.level for row in rows]
    warned, fine = found.count("warning"), found.count("fine")
    return FleetCounts(len(found) - warned - fine, warned, fine)
