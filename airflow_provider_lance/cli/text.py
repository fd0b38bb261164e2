"""Text for a terminal; nothing in it can steer the terminal, of any origin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from airflow_provider_lance.cli.output import SEVERITY_STYLES
from airflow_provider_lance.diagnostics.findings import Finding, Severity

__all__ = ["ago", "harmless", "size", "span", "troubles", "whole"]


def harmless(text: object) -> str:
    """Return a text on one line in which whatever does not print is spelled out.

    Query ids, names of processes and messages come from the dataset, where any tool may have put
    them: escape sequences, line ends, marks that turn the direction of writing.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text)
    )


def whole(value: int | None) -> str:
    """Return a number with its thousands apart; ``-`` where there is none."""
    return "-" if value is None else f"{value:,}"


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def span(duration: float | None) -> str:
    """Return a duration in seconds for people."""
    if duration is None:
        return "-"
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.0f} h" if duration < 172_800 else f"{duration / 86_400:.0f} d"


def ago(moment: str | None) -> str:
    """Return an ISO time with how long ago it was, as far as this machine's clock can tell."""
    if not moment:
        return "-"
    try:
        then = datetime.fromisoformat(moment)
        return f"{moment} ({span((datetime.now(UTC) - then).total_seconds())} ago)"
    except (ValueError, TypeError):
        return moment


def troubles(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles, for each finding that needs somebody."""
    for finding in findings:
        if finding.severity < Severity.WARNING:
            continue
        label = finding.severity.label
        yield f"{finding.code} {label}: {finding.summary}", SEVERITY_STYLES[label]
        if finding.command:
            yield f"  {finding.command}", "bold"
