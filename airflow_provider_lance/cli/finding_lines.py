"""Findings as lines for a terminal: what is wrong, and what to type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_lance.cli.output import SEVERITY_STYLES
from airflow_provider_lance.diagnostics.findings import Finding, Severity

__all__ = ["troubles"]


def troubles(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles, for each finding that needs somebody."""
    for finding in findings:
        if finding.severity < Severity.WARNING:
            continue
        label = finding.severity.label
        yield f"{finding.code} {label}: {finding.summary}", SEVERITY_STYLES[label]
        if finding.command:
            yield f"  {finding.command}", "bold"
