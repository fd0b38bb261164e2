"""From evidence to findings: one pure function for a stream, one for a dataset."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.evidence import (
    USUAL,
    DatasetEvidence,
    Evidence,
    Tolerance,
)
from airflow_provider_lance.diagnostics.finding_builder import command, finding, start_again
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.rules_checkpoint import checkpoint_rules
from airflow_provider_lance.diagnostics.rules_driver import driver_rules
from airflow_provider_lance.diagnostics.rules_epochs import epoch_rules
from airflow_provider_lance.protocol.commands import command_line, delete_config_line
from airflow_provider_lance.supervision.health import StreamState

__all__ = ["dataset_rules", "evaluate_rules", "unreadable_finding"]


def evaluate_rules(evidence: Evidence, tolerance: Tolerance = USUAL) -> list[Finding]:
    """Return the findings about one stream, worst first; pure.

    If none is a warning or worse, the first finding says that the stream is healthy.
    """
    found = [
        *_other_tool(evidence),
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
        finding(
            Case.NEWEST_DRIVER_LOST,
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
    return [finding(Case.OTHER_TOOL, shown, typed, of=evidence, watermark=state.watermark)]


def unreadable_finding(query_id: str, error: Exception, version: int) -> Finding:
    """Return the finding for an error in reading a stream that uses another protocol."""
    shown = {"error": type(error).__name__, "message": str(error), "version": version}
    line = "pip install --upgrade airflow-provider-lance"
    return finding(Case.PROTOCOL_NEWER, shown, line, query=query_id, error=error)


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
    return finding(Case.HEALTHY, shown, state=state, of=evidence)


def dataset_rules(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance = USUAL, connection_arguments: str = ""
) -> list[Finding]:
    """Return the findings about a dataset as a whole, worst first; pure."""

    def typed(verb: str, option: str) -> str:
        return command_line(verb, uri, option, connection_arguments=connection_arguments)

    numbers, found = dataset.numbers, list[Finding]()
    if settings := dict(dataset.auto_cleanup):
        told = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        line = delete_config_line(uri, sorted(settings))
        found.append(finding(Case.FOREIGN_CLEANUP, settings, line, uri=uri, settings=told))
    if numbers.small_fragments > tolerance.small_fragments:
        found.append(
            finding(
                Case.SMALL_FRAGMENTS,
                numbers.to_json(),
                typed("optimize", "--yes"),
                small=numbers.small_fragments,
                fragments=numbers.fragments,
                limit=tolerance.small_fragments,
            )
        )
    if numbers.versions > tolerance.versions:
        found.append(
            finding(
                Case.MANY_VERSIONS,
                numbers.to_json(),
                typed("cleanup", "--yes"),
                versions=numbers.versions,
                limit=tolerance.versions,
                size=formatting.size(numbers.history_bytes),
            )
        )
    limit = tolerance.uncovered_rows
    behind = {name: rows for name, rows in dataset.uncovered.items() if rows > limit}
    if behind:
        found.append(
            finding(
                Case.INDEX_BEHIND,
                {"uncovered": dict(dataset.uncovered), "rows": numbers.rows},
                typed("optimize", "--yes"),
                rows=numbers.rows,
                behind=", ".join(f"{name} lacks {rows:,}" for name, rows in sorted(behind.items())),
                limit=limit,
            )
        )
    if files := dataset.orphaned_files:
        size, since = dataset.orphaned_bytes, dataset.orphans_since or 1
        found.append(
            finding(
                Case.ORPHANED_FILES,
                {"files": files, "bytes": size, "sinceVersion": since},
                typed("cleanup", "--dry-run"),
                severity=Severity.WARNING if size > tolerance.orphaned_bytes else None,
                files=files,
                size=formatting.size(size),
                bound=f" Only files written since version {since} were checked."
                if since > 1
                else "",
            )
        )
    return sorted(found, key=lambda finding: -finding.severity)
