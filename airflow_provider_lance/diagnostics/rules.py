"""From evidence to findings: one pure function for a stream, one for a dataset."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_lance.diagnostics.commands import (
    command,
    described,
    name_of,
    start_again,
)
from airflow_provider_lance.diagnostics.evidence import USUAL, Evidence, Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.rules_checkpoint import checkpoint_rules
from airflow_provider_lance.diagnostics.rules_dataset import dataset_rules
from airflow_provider_lance.diagnostics.rules_driver import driver_rules
from airflow_provider_lance.diagnostics.rules_epochs import epoch_rules
from airflow_provider_lance.supervision.health import StreamState

__all__ = ["dataset_rules", "evaluate_rules", "unreadable_finding"]


def evaluate_rules(evidence: Evidence, tolerance: Tolerance = USUAL) -> list[Finding]:
    """Return the findings about one stream, worst first; pure.

    If none is a warning or worse, the first finding says that the stream is healthy.
    """
    found = [
        *_other_protocol(evidence),
        *checkpoint_rules(evidence),
        *epoch_rules(evidence, tolerance),
        *driver_rules(evidence, tolerance),
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
        Finding(
            code.get(health.state, Code.DRIVER_GONE),
            f"The newest driver of query {evidence.query_id}, "
            f"{name_of(newest) if newest else 'unknown'}, is no good: {health.reason}.",
            cause="It does not own the query, so there is nothing to release and nothing is lost. "
            f"To go on, {start_again(newest.launched_by if newest else '')}.",
            command=command(evidence, "status"),
            evidence=described(newest) if newest else {},
            query_id=evidence.query_id,
        )
    ]


def _other_protocol(evidence: Evidence) -> list[Finding]:
    state = evidence.state
    if state.owner is not None or not state.known:
        return []
    return [
        Finding(
            Code.PROTOCOL_NEWER,
            f"Query {evidence.query_id} has watermark {state.watermark} and no owner record in "
            f"{evidence.uri}: another tool wrote it.",
            cause="Another Lance sink uses the same keys. Its watermark proves nothing here, and a "
            "driver refuses to start; give this query a queryId of its own.",
            command=command(evidence, "epochs"),
            evidence={"watermark": state.watermark, "version": evidence.version},
            query_id=evidence.query_id,
        )
    ]


def unreadable_finding(query_id: str, error: Exception, version: int) -> Finding:
    """Return the finding for an error in reading a stream that uses another protocol."""
    return Finding(
        Code.PROTOCOL_NEWER,
        f"Query {query_id} cannot be read: {error}",
        cause="A newer airflow-provider-lance, or another tool, writes this query. This one can "
        "say nothing of it, and its driver refuses to start.",
        command="pip install --upgrade airflow-provider-lance",
        evidence={"error": type(error).__name__, "message": str(error), "version": version},
        query_id=query_id,
    )


def _healthy(evidence: Evidence) -> Finding:
    watermark, health = evidence.watermark, evidence.health
    if health is not None:
        said = f"{health.state.value}: {health.reason}"
    elif evidence.state.known:
        said = f"no driver is to be seen, watermark {watermark.epoch}"
    else:
        said = "it has no trace in the dataset yet"
    return Finding(
        Code.HEALTHY,
        f"Query {evidence.query_id} is healthy: {said}.",
        evidence={
            "watermark": watermark.epoch,
            "version": evidence.version,
            "committedAt": watermark.committed_at,
        },
        query_id=evidence.query_id,
    )
