"""From evidence to the findings about one stream."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_lance.diagnostics.catalogue import StreamCase
from airflow_provider_lance.diagnostics.evidence import USUAL, Evidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import command, finding, start_again
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.rules_checkpoint import checkpoint_rules
from airflow_provider_lance.diagnostics.rules_driver import driver_rules
from airflow_provider_lance.diagnostics.rules_epochs import epoch_rules
from airflow_provider_lance.diagnostics.rules_rows import row_rules
from airflow_provider_lance.diagnostics.rules_sides import side_rules
from airflow_provider_lance.supervision.health import StreamState

__all__ = ["evaluate_rules", "unreadable_finding"]


def evaluate_rules(evidence: Evidence, tolerance: Tolerance = USUAL) -> list[Finding]:
    """Return the findings about one stream, worst first; pure.

    If none is a warning or worse, the first finding says that the stream is healthy.
    """
    found = [
        *_other_tool(evidence),
        *checkpoint_rules(evidence),
        *epoch_rules(evidence, tolerance),
        *driver_rules(evidence, tolerance),
        *side_rules(evidence),
        *row_rules(evidence, tolerance),
    ]
    found += _otherwise_lost(evidence, found)
    found.sort(key=lambda finding: (-finding.severity, finding.code))
    if found and found[0].severity is Severity.CRITICAL:
        # Rows are at stake: nothing is repaired before a person has checked.
        found = [replace(finding, repair=None) for finding in found]
    if not found or found[0].severity < Severity.WARNING:
        found.insert(0, _healthy(evidence))
    return found


def _otherwise_lost(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Report a lost driver if no other finding does, such as one that died before its claim."""
    health = evidence.health
    said = any(finding.severity >= Severity.WARNING for finding in found)
    if health is None or said or not (health.state.lost or health.state is StreamState.FAILED):
        return []
    code = {StreamState.STALLED: Code.STALLED, StreamState.FAILED: Code.QUERY_FAILED}
    newest = evidence.drivers[0] if evidence.drivers else None
    return [
        finding(
            StreamCase.NEWEST_DRIVER_LOST,
            newest.shown() if newest else {},
            command(evidence, "status"),
            code=code.get(health.state),
            driver=newest.name if newest else "unknown",
            state=health.state,
            reason=health.reason,
            again=start_again(newest.launched_by if newest else ""),
            of=evidence,
        )
    ]


def _other_tool(evidence: Evidence) -> list[Finding]:
    state = evidence.state
    if state.owner is not None or not state.known:
        return []
    shown = {"watermark": state.watermark, "version": evidence.version}
    typed = command(evidence, "epochs")
    return [finding(StreamCase.OTHER_TOOL, shown, typed, of=evidence, watermark=state.watermark)]


def unreadable_finding(query_id: str, error: Exception, version: int) -> Finding:
    """Return the finding for an error in reading a stream that uses another protocol."""
    shown = {"error": type(error).__name__, "message": str(error), "version": version}
    line = "pip install --upgrade airflow-provider-lance"
    return finding(StreamCase.PROTOCOL_NEWER, shown, line, query=query_id, error=error)


def _healthy(evidence: Evidence) -> Finding:
    watermark, health = evidence.watermark, evidence.health
    if health is not None:
        state = f"{health.state.value}: {health.reason}"
    elif evidence.state.known:
        state = f"no driver can be seen, watermark {watermark.epoch}"
    else:
        state = "it has no trace in the dataset yet"
    shown = {
        "watermark": watermark.epoch,
        "version": evidence.version,
        "committedAt": watermark.committed_at,
    }
    return finding(StreamCase.HEALTHY, shown, state=state, of=evidence)
