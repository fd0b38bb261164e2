"""``lance-stream epochs``: Spark's progress beside the dataset's history."""

from __future__ import annotations

from argparse import Namespace

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
    output.show(output.table(columns, [cells for _, cells in lines], right=_NUMBERS))
    if not table.rows:
        output.say("No epoch in the versions that were read.")
    for mark in table.marks:
        if mark.what:
            output.say(f"Version {mark.version}, {mark.at}: {mark.what}")
    if table.gap:
        output.say("Versions in between were cleaned up: epochs may be absent here.", "yellow")


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
