"""``lance-stream check``: what is wrong, the evidence for it, and what to type."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from airflow_provider_lance.cli.fleet import (
    each_of,
    error_row,
    errors_json,
    open_all,
    show_rows,
    worst_exit,
)
from airflow_provider_lance.cli.output import SEVERITY_STYLES, Exit, Output, error_json
from airflow_provider_lance.cli.places import Unreached, chosen_places
from airflow_provider_lance.cli.status import tolerance
from airflow_provider_lance.cli.target import Target, open_place
from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.fleet import counts, report_rows
from airflow_provider_lance.diagnostics.status import UNKNOWN

__all__ = ["run"]


def run(arguments: Namespace, output: Output) -> int:
    """Check one query, or a dataset and all its queries, or many datasets."""
    chosen = chosen_places(arguments)
    if chosen.one:
        target = open_place(chosen.places[0])
        reports = [_check(target, chosen.query_id, arguments)]
        failed: list[Unreached] = []
        if _is_unwritten(reports[0]):
            return _unwritten(reports[0], target.unwritten(), arguments, output)
    else:
        targets, closed = open_all(chosen.places)
        reports, unread = each_of(
            targets,
            lambda target: _check(target, None, arguments),
            lambda target, error: Unreached(target.uri, error),
        )
        failed = [*chosen.unreached, *closed, *unread]
    rows = [*(row for each in reports for row in report_rows(each)), *map(error_row, failed)]
    if output.json and chosen.one:
        output.document(reports[0].to_json())
    elif output.json:
        output.document(
            {
                "reports": [each.to_json() for each in reports],
                "errors": errors_json(failed),
                "summary": counts(rows).to_json(),
            }
        )
    elif arguments.verbose or (chosen.one and len(reports[0].statuses) < 2):
        for row in map(error_row, failed):
            output.say(f"{row.uri}: {row.state}: {row.sentence}", "bold red")
        for report in reports:
            _show(report, output)
    else:
        by_uri = {each.uri: each.connection_arguments for each in chosen.places}
        idle = sum(not each.statuses for each in reports)
        show_rows(rows, output, without=idle, arguments=lambda uri: by_uri.get(uri, ""))
    least = Severity[arguments.fail_on.upper()]
    return worst_exit((_exit(each, least) for each in reports), failed)


def _check(target: Target, named: str | None, arguments: Namespace) -> CheckReport:
    place = target.place
    if named and place.checkpoint:
        queries: Sequence[str] = (named,)  # the dataset may have lost all trace of it
    else:
        queries = target.queries(named, required=False)
    return place.ask(
        lambda: check(
            target.port,
            queries,
            tolerance=tolerance(arguments),
            orphans=not arguments.no_orphans,
            **target.look,
        ),
        target.places,
    )


def _is_unwritten(report: CheckReport) -> bool:
    """Return whether no query writes the dataset, and none reads it."""
    named = any(each.query_id for each in report.findings)
    return not (report.statuses or report.consumers or named)


def _unwritten(report: CheckReport, error: Exception, arguments: Namespace, output: Output) -> Exit:
    """Show what is wrong with a dataset without a query, and say that it has none."""
    if output.json:
        output.document(report.to_json() | {"error": error_json(error)})
    elif report.findings:
        _show(report, output)
    output.note(f"error: {error}")
    bad = report.at_or_above(Severity[arguments.fail_on.upper()])
    return Exit.UNHEALTHY if bad else Exit.of(error)


def _exit(report: CheckReport, least: Severity) -> Exit:
    if report.at_or_above(least):
        return Exit.UNHEALTHY
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
