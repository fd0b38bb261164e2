"""``lance-stream status``: one stream in detail, or one line for each of many."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.cli.fleet import (
    each_of,
    error_row,
    errors_json,
    open_all,
    show_rows,
    worst_exit,
)
from airflow_provider_lance.cli.output import Exit, Output, finding_lines
from airflow_provider_lance.cli.places import Unreached, chosen_places
from airflow_provider_lance.cli.target import Target, open_place
from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus, collect_consumers
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.fleet import (
    counts,
    status_row,
    status_rows,
    worst_first,
)
from airflow_provider_lance.diagnostics.rules_consumers import consumer_rules
from airflow_provider_lance.diagnostics.status import UNKNOWN, Status, take_status
from airflow_provider_lance.protocol.json_codec import plain

__all__ = ["exit_for", "look_at", "numbers", "run", "style_of", "tolerance"]


def run(arguments: Namespace, output: Output) -> int:
    """Show one query in detail; several, of one dataset or of many, in one line each."""
    chosen, limits = chosen_places(arguments), tolerance(arguments)
    if chosen.one:
        target = open_place(chosen.places[0])
        return _dataset(target, chosen.query_id, arguments, output)
    targets, unreached = open_all(chosen.places)
    found, silent = each_of(
        targets,
        lambda each: [(each, query) for query in each.queries(None, required=False)],
        lambda each, error: Unreached(each.uri, error),
    )
    streams = [stream for each in found for stream in each]
    seen, unread = look_at_all(streams, limits, detail=arguments.verbose)
    failed = [*chosen.unreached, *unreached, *silent, *unread]
    if output.json:
        output.document(_shown(seen, failed))
    elif arguments.verbose:
        _show(seen, failed, output)
    else:
        idle = sum(not each for each in found)
        by_uri = {each.uri: each.connection_arguments for each in chosen.places}
        rows = [*status_rows(seen), *map(error_row, failed)]
        show_rows(rows, output, without=idle, arguments=lambda uri: by_uri.get(uri, ""))
    return worst_exit([exit_for(seen)], failed)


def _dataset(target: Target, named: str | None, arguments: Namespace, output: Output) -> int:
    """Show one query of a dataset; or all of them, and its consumers."""
    place, limits = target.place, tolerance(arguments)
    if named:
        consumers: Sequence[ConsumerStatus] = ()
    else:
        consumers = place.ask(lambda: collect_consumers(target.port, place.storage_options))
    queries = target.queries(named, required=not consumers)
    findings = consumer_rules(target.uri, consumers, limits, place.connection_arguments)
    failed: list[Unreached] = []
    if len(queries) == 1:
        seen = [look_at(target, queries[0], limits, detail=True)]
    else:
        streams = [(target, query) for query in queries]
        seen, failed = look_at_all(streams, limits, detail=arguments.verbose)
    if output.json and named:
        output.document(seen[0].to_json())
    elif output.json:
        document = {"uri": target.uri, "version": target.port.version} | _shown(seen, failed)
        more = {"consumers": plain(consumers), "consumerFindings": [e.to_json() for e in findings]}
        output.document(document | more)
    else:
        if not queries:
            output.say(f"no streaming query writes to {target.uri}")
        elif len(queries) == 1 or arguments.verbose:
            _show(seen, failed, output)
        else:
            rows = [*status_rows(seen), *map(error_row, failed)]
            show_rows(rows, output, arguments=lambda uri: place.connection_arguments)
        _show_consumers(consumers, output)
        for line, style in finding_lines(findings):
            output.say(line, style)
    bad = any(each.severity >= Severity.ERROR for each in findings)
    return worst_exit([exit_for(seen), *([Exit.UNHEALTHY] if bad else [])], failed)


def _shown(seen: Sequence[Status], failed: Sequence[Unreached]) -> dict[str, Any]:
    rows = [*status_rows(seen), *map(error_row, failed)]
    return {
        "statuses": plain(seen),
        "errors": errors_json(failed),
        "summary": counts(rows).to_json(),
    }


def look_at_all(
    streams: Sequence[tuple[Target, str]], limits: Tolerance, *, detail: bool
) -> tuple[list[Status], list[Unreached]]:
    """Return the statuses of many streams, observed side by side, and those that cannot be."""
    return each_of(
        streams,
        lambda stream: look_at(*stream, limits, detail=detail),
        lambda stream, error: Unreached(stream[0].uri, error, stream[1]),
    )


def exit_for(seen: Iterable[Status]) -> Exit:
    """Return the exit status that follows from the statuses of some queries."""
    seen = list(seen)
    if not all(each.healthy for each in seen):
        return Exit.UNHEALTHY
    return Exit.UNKNOWN if any(each.state == UNKNOWN for each in seen) else Exit.HEALTHY


def tolerance(arguments: Namespace) -> Tolerance:
    """Return the limits from which something counts as a problem, as typed."""
    said = {name: getattr(arguments, name) for name in ("stall", "silence")}
    return Tolerance(**{name: value for name, value in said.items() if value is not None})


def look_at(target: Target, query: str, chosen: Tolerance, *, detail: bool = False) -> Status:
    """Return one query's status at the target's version."""
    return target.place.ask(
        lambda: take_status(target.port, query, detail=detail, tolerance=chosen, **target.look),
        target.places,
    )


def style_of(status: Status) -> str:
    """Return the terminal style of a status."""
    return "green" if status.healthy else "bold red"


def _show(seen: Sequence[Status], failed: Sequence[Unreached], output: Output) -> None:
    several = len(seen) + len(failed) > 1
    for row in map(error_row, failed):
        output.say(f"{row.query_id or row.uri}: {row.state}: {row.sentence}", "bold red")
    for number, status in enumerate(_worst_first(seen)):
        if number or failed:
            output.say()
        name = f"{status.query_id}: " if several else ""
        output.say(f"{name}{status.sentence}", style_of(status))
        for line, style in finding_lines(status.findings):
            output.say(line, style)
        output.show(output.pairs(numbers(status)))
        _show_sides(status, output)
        _show_changes(status, output)


def _worst_first(seen: Sequence[Status]) -> list[Status]:
    rows = worst_first(map(status_row, seen))
    order = {(row.uri, row.query_id): place for place, row in enumerate(rows)}
    return sorted(seen, key=lambda each: order[each.uri, each.query_id])


def _show_changes(status: Status, output: Output) -> None:
    if status.changes:
        output.say("changes:")
    now = datetime.now(UTC)
    for each in status.changes:
        where = f" (version {each.version})" if each.version else ""
        when = formatting.ago(each.at, now) or "at an unknown time"
        output.say(f"  {each.at or ''} {when}: {each}{where}")


def _show_sides(status: Status, output: Output) -> None:
    if not status.sides:
        return
    rows = [
        (each.name, f"{each.watermark:,}", f"{each.version:,}", each.lost or each.problem or "-")
        for each in status.sides
    ]
    output.say("side tables:")
    output.show(
        output.table(("name", "watermark", "version", "trouble"), rows, fixed="watermark version")
    )


def numbers(status: Status) -> list[tuple[str, str]]:
    """Return a status's numbers with their names, in display order."""
    rates = (status.input_rows_per_second, status.processed_rows_per_second)
    age, in_flight = status.epoch_age_seconds, status.in_flight
    by = f" by {status.launched_by}" if status.launched_by else ""
    kept = status.query_state
    rows: list[tuple[str, str | None]] = [
        ("since", _ago(status.since)),
        ("query", f"{status.query_id} in {status.uri}"),
        ("watermark", f"{status.watermark} at version {status.version}"),
        ("committed", _ago(status.committed_at) or "-"),
        ("in flight", None if in_flight is None else f"epoch {in_flight}"),
        ("epoch age", None if age is None else formatting.lasted(age)),
        ("source", status.source_position),
        ("behind", _unread(status)),
        ("trend", _trend(status)),
        ("outlook", status.outlook),
        ("rows/s", None if None in rates else f"{rates[0]:,.0f} in, {rates[1]:,.0f} processed"),
        ("dataset", f"{_count(status.rows)} rows in {_count(status.fragments)} fragments"),
        ("not met", formatting.unmet(status.checks) if status.checks else None),
        ("query state", formatting.held(kept) if kept else None),
        ("event time", formatting.event_time(kept, datetime.now(UTC)) if kept else None),
        ("too late", f"{kept.too_late:,} rows dropped" if kept and kept.too_late else None),
        ("upkeep", formatting.upkeep(status.upkeep, datetime.now(UTC)) if status.upkeep else None),
        ("owner", None if status.token is None else f"token {status.token}, {status.owner_state}"),
        ("driver", status.driver),
        ("launch", f"{status.launch_id}{by}" if status.launch_id else None),
        ("heartbeat", _ago(status.heartbeat_at)),
        ("Spark UI", status.ui_address),
    ]
    return [(name, value) for name, value in rows if value]


def _unread(status: Status) -> str:
    """Return what is not read, with its age if a driver said it that no longer responds."""
    if status.last_behind:
        return f"{status.last_behind}, seen {formatting.ago(status.behind_at, datetime.now(UTC))}"
    return formatting.unread(
        status.rows_behind,
        status.versions_behind,
        status.seconds_behind,
        files=status.behind_files,
    )


def _trend(status: Status) -> str:
    """Return the newest epochs as bars, oldest first."""
    rates, behind = status.recent_rows_per_second, status.recent_behind
    parts = []
    if len(rates) > 1:
        parts.append(f"{formatting.sparkline(rates)} {rates[-1]:,.0f} rows/s")
    if len(behind) > 1 and any(behind):
        parts.append(f"{formatting.sparkline(behind)} {behind[-1]:,.0f} behind")
    return "   ".join(parts)


def _show_consumers(consumers: Sequence[ConsumerStatus], output: Output) -> None:
    if not consumers:
        return
    output.say()
    output.say("read by:")
    columns = ("consumer", "position", "behind", "since", "written", "writes to")
    rows = [
        (
            each.consumer_id,
            each.position or each.error,
            _behind(each),
            formatting.lasted(each.seconds_behind) if each.seconds_behind else "-",
            _ago(each.at) or "-",
            each.uri or "-",
        )
        for each in consumers
    ]
    output.show(output.table(columns, rows, fixed="consumer behind since"))


def _behind(consumer: ConsumerStatus) -> str:
    behind = consumer.versions_behind
    if behind is None:
        return "-"
    return f"{behind:,} {'version' if behind == 1 else 'versions'}" if behind else "nothing"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _ago(moment: str | None) -> str:
    """Return an ISO time with how long ago it was, by this machine's clock."""
    since = formatting.ago(moment, datetime.now(UTC))
    return f"{moment} ({since})" if since else moment or ""
