"""``lance-stream check``: what is wrong, the evidence for it, and what to type."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from airflow_provider_lance.cli.output import SEVERITY_STYLES, Exit, Output, error_json
from airflow_provider_lance.cli.status import tolerance
from airflow_provider_lance.cli.target import open_target
from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.status import UNKNOWN

__all__ = ["run"]


def run(arguments: Namespace, output: Output) -> int:
    """Check one query, or the dataset and all its queries."""
    target = open_target(arguments)
    named, place = arguments.query_id, target.place
    if named and place.checkpoint:
        queries: Sequence[str] = (named,)  # the dataset may have lost all trace of it
    else:
        queries = target.queries(named, required=False)
    report = place.ask(
        lambda: check(
            target.port,
            queries,
            tolerance=tolerance(arguments),
            orphans=not arguments.no_orphans,
            **target.look,
        ),
        target.places,
    )
    unwritten = None if queries or report.consumers else target.unwritten()
    if output.json:
        error = {"error": error_json(unwritten)} if unwritten else {}
        output.document(report.to_json() | error)
    else:
        _show(report, output)
    if unwritten:
        output.note(f"error: {unwritten}")
    if report.at_or_above(Severity[arguments.fail_on.upper()]):
        return Exit.UNHEALTHY
    if unwritten:
        return Exit.of(unwritten)
    unknown = any(each.state == UNKNOWN for each in report.statuses)
    return Exit.UNKNOWN if unknown else Exit.HEALTHY


def _show(report: CheckReport, output: Output) -> None:
    output.say(f"{report.uri} at version {report.version}, checked at {report.seen_at}")
    rows = [
        (each.code, each.severity.label, each.query_id, each.summary) for each in report.findings
    ]
    columns = ("code", "severity", "query", "finding")
    styles = [SEVERITY_STYLES[each.severity.label] for each in report.findings]
    output.show(output.table(columns, rows, fixed="code severity", styles=styles))
    for finding in report.at_or_above(Severity.WARNING):
        output.say(f"{finding.code}: {finding.code.title}", SEVERITY_STYLES[finding.severity.label])
        if finding.cause:
            output.say(f"  why: {finding.cause}")
        for line in finding.step_lines():
            output.say(f"  {line}", "bold")
