"""``lance-stream epochs``: Spark's progress beside the dataset's history."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime

from airflow_provider_lance.cli.output import Exit, Output
from airflow_provider_lance.cli.target import open_target
from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.epoch_sources import Offsets, readable_offset
from airflow_provider_lance.diagnostics.epochs import EpochRow, EpochTable, read_epochs
from airflow_provider_lance.exceptions import SpecError

__all__ = ["run"]

_COLUMNS = (
    "version",
    "epoch",
    "committed",
    "mode",
    "rows",
    "deletes",
    "not met",
    "fragments",
    "bytes",
    "write",
    "commit",
    "batch",
    "in Spark's log",
)
_NUMBERS = "epoch version rows deletes fragments bytes write commit batch"
_MATTER = (
    "epoch",
    "committed",
    "rows",
    "in Spark's log",
    "batch",
    "not met",
    "version",
    "commit",
    "write",
    "deletes",
    "mode",
    "bytes",
    "fragments",
)
"""The columns in the order in which a narrow terminal keeps them."""
_EDGE, _BETWEEN = 2, 3
"""Blanks of a table at its edges and between two columns."""


def run(arguments: Namespace, output: Output) -> int:
    """Show the newest epochs of one query."""
    if arguments.last < 1:
        raise SpecError("--last must be 1 or more")
    target = open_target(arguments)
    query = target.query(arguments.query_id)
    place = target.place
    table = place.ask(
        lambda: read_epochs(
            target.port,
            query,
            last=arguments.last,
            checkpoint_location=place.checkpoint,
            storage_options=place.storage_options,
        ),
        target.places,
    )
    if output.json:
        output.document(table.to_json())
    else:
        _show(table, output, offsets=arguments.offsets)
    return Exit.HEALTHY


def _show(table: EpochTable, output: Output, *, offsets: bool) -> None:
    output.say(f"Query {table.query_id} in {table.uri}, newest first; durations in ms")
    columns = [*_COLUMNS, *(["start", "end"] if offsets else [])]
    lines = [(row.version, _cells(row, offsets=offsets)) for row in table.rows]
    for mark in table.marks:
        cells = [str(mark.version), mark.kind, "", *[""] * (len(columns) - 3)]
        lines.append((mark.version, cells))
    lines.sort(key=lambda line: -line[0])
    rows: list[list[str]] = [cells for _, cells in lines]
    gone: list[str] = []
    if not offsets:
        columns, rows, gone = _fitting(columns, rows, output.width)
    output.show(output.table(columns, rows, right=_NUMBERS))
    if gone:
        output.say(f"A wider terminal also shows: {', '.join(gone)}", "dim")
    if not table.rows:
        output.say("No epoch in the versions that were read.")
    for mark in table.marks:
        if mark.what:
            output.say(f"Version {mark.version}, {mark.at}: {mark.what}")
    if table.gap:
        output.say("Versions in between were cleaned up: epochs may be absent here.", "yellow")


def _fitting(
    columns: list[str], rows: list[list[str]], width: int
) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the columns that matter most and fit, their cells, and the columns that do not."""
    place = columns.index("committed")
    widths = _widths(columns, rows)
    if sum(widths) + _BETWEEN * (len(columns) - 1) + _EDGE > width:
        rows = [[*row[:place], _short_time(row[place]), *row[place + 1 :]] for row in rows]
        widths = _widths(columns, rows)
    room, kept = width - _EDGE + _BETWEEN, set[str]()
    for name in _MATTER:
        room -= widths[columns.index(name)] + _BETWEEN
        if room < 0:
            break
        kept.add(name)
    chosen = [at for at, name in enumerate(columns) if name in kept]
    gone = [name for name in columns if name not in kept]
    return [columns[at] for at in chosen], [[row[at] for at in chosen] for row in rows], gone


def _widths(columns: list[str], rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]


def _short_time(moment: str) -> str:
    """Return a time in UTC to the second."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    except ValueError:
        return moment


def _cells(row: EpochRow, *, offsets: bool) -> list[str]:
    logged = {True: "yes", False: "no", None: "-"}[row.spark_committed]
    cells = [
        str(row.version),
        str(row.epoch),
        row.committed_at,
        row.mode,
        f"{row.rows:,}",
        f"{row.deletes:,}",
        formatting.unmet(row.checks) or "-",
        f"{row.fragments:,}",
        formatting.size(row.bytes),
        _ms(row.write_ms),
        _ms(row.commit_ms),
        _ms(row.batch_ms),
        logged,
    ]
    ends = [row.start_offsets, row.end_offsets] if offsets else []
    return cells + [_offsets(each) for each in ends]


def _offsets(texts: Offsets | None) -> str:
    return "-" if texts is None else " | ".join(map(readable_offset, texts))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
