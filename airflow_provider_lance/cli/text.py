"""Text for a terminal: control characters are made visible, so no text can steer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from airflow_provider_lance.cli.output import SEVERITY_STYLES
from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.findings import Finding, Severity

__all__ = ["ago", "harmless", "size", "span", "troubles", "whole"]


def harmless(text: object) -> str:
    """Return a text on one line, with every unprintable character spelled out.

    Query ids, names of processes and messages come from the dataset, where any tool may have
    written them: escape sequences, line ends, marks that change the direction of writing.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text)
    )


def whole(value: int | None) -> str:
    """Return a number with thousands separators; ``-`` if there is none."""
    return "-" if value is None else f"{value:,}"


def size(count: int | None) -> str:
    """Return a number of bytes; ``-`` if there is none."""
    return "-" if count is None else formatting.size(count)


def span(duration: float | None) -> str:
    """Return a duration in seconds; ``-`` if there is none."""
    return "-" if duration is None else formatting.lasted(duration)


def ago(moment: str | None) -> str:
    """Return an ISO time with how long ago it was, by this machine's clock."""
    if not moment:
        return "-"
    since = formatting.ago(moment, datetime.now(UTC))
    return f"{moment} ({since})" if since else moment


def troubles(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles, for each finding that needs action."""
    for finding in findings:
        if finding.severity < Severity.WARNING:
            continue
        label = finding.severity.label
        yield f"{finding.code} {label}: {finding.summary}", SEVERITY_STYLES[label]
        if finding.command:
            yield f"  {finding.command}", "bold"
