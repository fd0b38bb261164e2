"""From evidence to the findings about one stream."""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_provider_lance.diagnostics.catalogue import (
    NEW_TABLE,
    OWN_QUERY_ID,
    UPGRADE,
    VALUES_BACK,
    StreamCase,
)
from airflow_provider_lance.diagnostics.catalogue_driver import END_FIRST, END_IT
from airflow_provider_lance.diagnostics.evidence import USUAL, Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import (
    again_or_not,
    command,
    end_process,
    finding,
    restart,
    start_again,
)
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity, Step
from airflow_provider_lance.diagnostics.formatting import reached
from airflow_provider_lance.diagnostics.rules_checkpoint import checkpoint_rules
from airflow_provider_lance.diagnostics.rules_driver import driver_rules, live_drivers
from airflow_provider_lance.diagnostics.rules_epochs import epoch_rules
from airflow_provider_lance.diagnostics.rules_rows import row_rules
from airflow_provider_lance.diagnostics.rules_sides import side_rules
from airflow_provider_lance.diagnostics.traces import KeptConfig, is_beyond_proof
from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.supervision.health import StreamState

__all__ = ["evaluate_rules", "unreadable_finding"]

_PROMISE = re.compile(r"[^.]*\b(?:[Nn]o row is|[Nn]othing is) (?:lost|missing)\b[^.]*\.\s*")
"""A sentence that nothing is lost; it is wrong where a worse finding says that rows are."""


def evaluate_rules(evidence: Evidence, tolerance: Tolerance = USUAL) -> list[Finding]:
    """Return the findings about one stream, worst first; pure.

    If none is a warning or worse, the first finding says that the stream is healthy.
    """
    if evidence.kept_config:  # without its keys, nothing else can be said of the query
        return [_config_removed(evidence, evidence.kept_config)]
    found = [
        *_other_tool(evidence),
        *checkpoint_rules(evidence),
        *epoch_rules(evidence, tolerance),
        *driver_rules(evidence, tolerance),
        *side_rules(evidence),
        *row_rules(evidence, tolerance),
    ]
    found = [_without_driver(evidence, tolerance, each) for each in found]
    found += _otherwise_lost(evidence, found)
    found.sort(key=_rank)
    if found and found[0].severity is Severity.ERROR and not found[0].code.driver:
        found = [_start_later(each, found[0]) for each in found]
    if found and found[0].severity is Severity.CRITICAL:
        # Rows are at stake: nothing is repaired, or done, before that is decided.
        found = [found[0], *(_behind_rows(each, found[0]) for each in found[1:])]
    if not found or found[0].severity < Severity.WARNING:
        found.insert(0, _healthy(evidence))
    return found


def _rank(finding: Finding) -> tuple[int, bool, str]:
    """Return a finding's place: of errors, what refuses a start precedes what a start ends."""
    later = finding.severity is Severity.ERROR and finding.code.driver
    return -finding.severity, later, finding.code.value


def _without_driver(evidence: Evidence, tolerance: Tolerance, finding: Finding) -> Finding:
    """Return a finding whose repairs come after the end of every driver that runs."""
    if not any(each.alone for each in finding.steps):
        return finding
    silent = evidence.health is not None and evidence.health.state.silent
    first = [
        end_process(each, END_FIRST)
        if silent or each.suspended
        else Step(END_FIRST, command(evidence, "stop", options=("--wait", "10m", "--yes")))
        for each in live_drivers(evidence, tolerance)
        if evidence.active or each is not evidence.owner_seen  # a released one is not in the way
    ]
    return replace(finding, steps=(*dict.fromkeys(first), *finding.steps))


def _start_later(finding: Finding, worst: Finding) -> Finding:
    """Return a finding as it reads beneath one that refuses a start: that one comes first."""
    if finding.code not in (Code.DRIVER_GONE, Code.QUERY_FAILED) or not finding.steps:
        return finding
    return replace(finding, steps=(Step(f"Do what {worst.code.value} says first."),))


def _behind_rows(finding: Finding, worst: Finding) -> Finding:
    """Return a finding as it reads beneath one about lost rows: it promises nothing about rows."""
    if finding.severity is Severity.CRITICAL:
        return replace(finding, repair=None)
    first = (Step(f"Do what {worst.code.value} says first."),) if finding.steps else ()
    cause = _PROMISE.sub("", finding.cause).strip()
    return replace(finding, cause=cause, steps=first, repair=None)


def _otherwise_lost(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Report a lost driver if no other finding does, such as one that died before its claim."""
    health = evidence.health
    said = any(
        each.severity >= Severity.ERROR or (each.severity is Severity.WARNING and each.code.driver)
        for each in found
    )
    if health is None or said or not (health.state.lost or health.state is StreamState.FAILED):
        return []
    code = {StreamState.STALLED: Code.STALLED, StreamState.FAILED: Code.QUERY_FAILED}
    newest = evidence.drivers[0] if evidence.drivers else None
    by = newest.launched_by if newest else ""
    steps = [start_again(by, evidence.airflow_url)]
    if newest and health.state is StreamState.STALLED:
        steps.insert(0, end_process(newest, END_IT))
    elif health.state is StreamState.DEAD and evidence.state.owner:
        steps = again_or_not(evidence, by)
    return [
        finding(
            StreamCase.NEWEST_DRIVER_LOST,
            newest.shown() if newest else {},
            steps,
            code=code.get(health.state),
            driver=newest.name if newest else "unknown",
            state=health.state,
            reason=health.reason,
            of=evidence,
        )
    ]


def _config_removed(evidence: Evidence, kept: KeptConfig) -> Finding:
    owner = kept.state.owner
    return finding(
        StreamCase.CONFIG_REMOVED,
        {
            "keys": sorted(kept.keys),
            "removedIn": kept.removed_in,
            "keptIn": kept.version,
            "epoch": kept.epoch,
        },
        [
            Step(command=command(evidence, "resolve", "config", options=("--yes",))),
            start_again(owner.driver.launched_by if owner else "", evidence.airflow_url),
        ],
        of=evidence,
        removed=kept.removed_in,
        kept=kept.version,
        epoch=kept.epoch,
    )


def _other_tool(evidence: Evidence) -> list[Finding]:
    state = evidence.state
    if state.owner is not None or not state.known:
        return []
    shown = {"watermark": state.watermark, "version": evidence.version}
    steps = [Step(OWN_QUERY_ID), restart(evidence)]
    return [finding(StreamCase.OTHER_TOOL, shown, steps, of=evidence, watermark=state.watermark)]


def unreadable_finding(
    port: DatasetPort, query_id: str, error: Exception, connection_arguments: str = ""
) -> Finding:
    """Return the finding for an error in reading a stream whose values are not this package's.

    :param port: where it was read; looks whether an older version shows the right value.
    """
    shown = {"error": type(error).__name__, "message": str(error), "version": port.version}
    again = start_again("")
    if isinstance(error, ProtocolVersionError) and error.newer:
        steps = [Step(UPGRADE, "pip install --upgrade airflow-provider-lance"), again]
        return finding(StreamCase.PROTOCOL_NEWER, shown, steps, query=query_id, error=error)
    words = ("resolve", "config", port.uri, query_id, "--yes")
    typed = command_line(*words, connection_arguments=connection_arguments)
    steps = [Step(VALUES_BACK, typed), again]
    if "config key" not in str(error):
        steps = [Step(OWN_QUERY_ID), again]
    elif is_beyond_proof(port, query_id):
        steps = [Step(NEW_TABLE), again]
    return finding(StreamCase.VALUE_WRONG, shown, steps, query=query_id, error=error)


def _healthy(evidence: Evidence) -> Finding:
    watermark, health = evidence.watermark, evidence.health
    if health is not None:
        state = f"{health.state.value}: {health.reason}"
    elif evidence.state.known:
        state = f"no driver can be seen, {reached(watermark.epoch)}"
    else:
        state = "it has no trace in the dataset yet"
    shown = {
        "watermark": watermark.epoch,
        "version": evidence.version,
        "committedAt": watermark.committed_at,
    }
    return finding(StreamCase.HEALTHY, shown, state=state, of=evidence)
