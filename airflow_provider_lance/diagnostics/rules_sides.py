"""Rules about a stream's side tables; pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_lance.diagnostics.catalogue_sides import SideCase
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.finding_builder import command, finding
from airflow_provider_lance.diagnostics.findings import Finding
from airflow_provider_lance.protocol.commands import delete_config_line
from airflow_provider_lance.protocol.sides import side_key

__all__ = ["side_rules"]


def side_rules(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each side table that lacks epochs or cannot be read.

    One that is ahead of the query's own table is as it should be: it commits first.
    """
    for each in evidence.sides:
        shown = each.to_json()
        if each.lost:
            key = side_key(evidence.query_id, each.name)
            typed = delete_config_line(evidence.uri, [key])
            yield finding(
                SideCase.LOST,
                shown,
                typed,
                of=evidence,
                name=each.name,
                side=each.uri,
                lost=each.lost,
            )
        elif each.problem:
            yield finding(
                SideCase.UNREADABLE,
                shown,
                command(evidence, "status"),
                of=evidence,
                name=each.name,
                side=each.uri,
                problem=each.problem.rstrip("."),
            )
