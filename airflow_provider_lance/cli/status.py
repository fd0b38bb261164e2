"""``lance-stream status``: one sentence, then the numbers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from airflow_provider_lance.cli.output import Exit, Output, finding_lines
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus, collect_consumers
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.status import UNKNOWN, Status, take_status
from airflow_provider_lance.protocol.json_codec import plain

__all__ = ["exit_for", "look_at", "numbers", "run", "style_of", "tolerance"]


def run(arguments: Namespace, output: Output) -> int:
    """Show one query; or all of a dataset, and its consumers."""
    target = open_target(arguments)
    chosen, named = tolerance(arguments), arguments.query_id
    consumers = collect_consumers(target.port, target.place.storage_options) if not named else ()
    queries = target.queries(named, required=not consumers)
    seen = [look_at(target, query, chosen) for query in queries]
    if not output.json:
        _show(seen, target, output)
        _show_consumers(consumers, output)
    elif named:
        output.document(seen[0].to_json())
    else:
        document = {"statuses": seen, "consumers": consumers}
        output.document({"uri": target.uri, "version": target.port.version} | plain(document))
    return exit_for(seen)


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


def look_at(target: Target, query: str, chosen: Tolerance) -> Status:
    """Return one query's status at the target's version."""
    return target.place.ask(
        lambda: take_status(target.port, query, tolerance=chosen, **target.look), target.places
    )


def style_of(status: Status) -> str:
    """Return the terminal style of a status."""
    return "green" if status.healthy else "bold red"


def _show(seen: list[Status], target: Target, output: Output) -> None:
    if not seen:
        output.say(f"no streaming query writes to {target.uri}")
    for number, status in enumerate(seen):
        if number:
            output.say()
        name = f"{status.query_id}: " if len(seen) > 1 else ""
        output.say(f"{name}{status.sentence}", style_of(status))
        output.show(output.pairs(numbers(status)))
        _show_sides(status, output)
        for line, style in finding_lines(status.findings):
            output.say(line, style)


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
    behind = formatting.unread(status.rows_behind, status.versions_behind, status.seconds_behind)
    by = f" by {status.launched_by}" if status.launched_by else ""
    rows: list[tuple[str, str | None]] = [
        ("query", f"{status.query_id} in {status.uri}"),
        ("watermark", f"{status.watermark} at version {status.version}"),
        ("committed", _ago(status.committed_at) or "-"),
        ("in flight", None if in_flight is None else f"epoch {in_flight}"),
        ("epoch age", None if age is None else formatting.lasted(age)),
        ("source", status.source_position),
        ("behind", behind),
        ("rows/s", None if None in rates else f"{rates[0]:,.0f} in, {rates[1]:,.0f} processed"),
        ("dataset", f"{_count(status.rows)} rows in {_count(status.fragments)} fragments"),
        ("not met", formatting.unmet(status.checks) if status.checks else None),
        ("owner", None if status.token is None else f"token {status.token}, {status.owner_state}"),
        ("driver", status.driver),
        ("launch", f"{status.launch_id}{by}" if status.launch_id else None),
        ("heartbeat", _ago(status.heartbeat_at)),
        ("Spark UI", status.ui_address),
    ]
    return [(name, value) for name, value in rows if value]


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
