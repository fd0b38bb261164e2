"""Rules about a stream's side tables; pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_lance.diagnostics.catalogue_sides import Say, SideCase
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.finding_builder import command, finding, restart
from airflow_provider_lance.diagnostics.findings import Finding, Step
from airflow_provider_lance.diagnostics.side_tables import SideTableStatus
from airflow_provider_lance.protocol.commands import command_line

__all__ = ["side_rules"]


def side_rules(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each side table that lacks epochs or cannot be read.

    One that is ahead of the query's own table is as it should be: it commits first.
    """
    for each in evidence.sides:
        shown = each.to_json()
        if each.lost:
            typed = command(evidence, "resolve", "side", options=("--name", each.name, "--yes"))
            steps = [
                Step(Say.FOLDER_BACK.format(side=each.uri)),
                Step(Say.FORGET.format(name=each.name), typed, alone=True),
                restart(evidence),
            ]
            if "restored" in each.lost:
                back = ("resolve", "restore", each.uri, evidence.query_id, "--bring-back", "--yes")
                line = command_line(*back, connection_arguments=evidence.connection_arguments)
                steps[0] = Step(Say.BRING_BACK, line, alone=True)
            yield finding(
                SideCase.LOST,
                shown,
                steps,
                of=evidence,
                name=each.name,
                side=each.uri,
                lost=each.lost,
            )
        elif each.problem:
            yield finding(
                SideCase.UNREADABLE,
                shown,
                _readable_again(evidence, each),
                of=evidence,
                name=each.name,
                side=each.uri,
                problem=each.problem.rstrip("."),
            )


def _readable_again(evidence: Evidence, side: SideTableStatus) -> list[Step]:
    """Return the steps of a side table that a store refuses, or that another tool wrote into."""
    if "config key" not in side.problem:
        return [Step(Say.REACHABLE.format(side=side.uri)), restart(evidence)]
    words = ("resolve", "config", side.uri, evidence.query_id, "--yes")
    typed = command_line(*words, connection_arguments=evidence.connection_arguments)
    return [Step(Say.VALUES_BACK, typed), restart(evidence)]
