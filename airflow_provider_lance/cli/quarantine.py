"""``lance-stream quarantine``: list the rows that did not land, and write mended rows back."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from airflow_provider_lance.cli.output import Exit, Output, Plan
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.diagnostics.quarantine import (
    QuarantineTable,
    open_quarantine,
    open_rows,
    read_quarantine,
)
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import json_object, shown
from airflow_provider_lance.repair.feed import FeedResult, feed_rows
from airflow_provider_lance.repair.feed_plan import Mended

__all__ = ["run"]

_SHOWN = 200


def run(arguments: Namespace, output: Output) -> int:
    """List, export or feed the quarantined rows of one query."""
    if arguments.export and arguments.feed:
        raise SpecError("--export and --feed exclude each other")
    if (arguments.yes or arguments.replace) and not arguments.feed:
        raise SpecError("--yes and --replace belong to --feed")
    target = open_target(arguments)
    query = target.query(arguments.query_id)
    place = target.place
    quarantine = place.ask(lambda: open_quarantine(target.port, query, place.storage_options))
    if arguments.feed:
        return _feed(arguments, output, target, quarantine, query)
    if arguments.export:
        return _export(arguments, output, quarantine, query)
    table = place.ask(
        lambda: read_quarantine(quarantine, query, last=arguments.last, reason=arguments.reason),
        quarantine.uri,
    )
    if output.json:
        output.document(table.to_json())
    else:
        _show(table, output)
    return Exit.HEALTHY


def _show(table: QuarantineTable, output: Output) -> None:
    total, still = (sum(getattr(e, w) for e in table.reasons) for w in ("rows", "open"))
    output.say(f"Query {table.query_id}, quarantine {table.uri}: {total:,} rows, {still:,} open")
    if not table.reasons:
        return
    columns = ("reason", "rows", "open", "first epoch", "last epoch")
    counts = [
        (e.reason, f"{e.rows:,}", f"{e.open:,}", str(e.first_epoch), str(e.last_epoch))
        for e in table.reasons
    ]
    output.show(output.table(columns, counts, right="rows open"))
    names = ("epoch", "id", "state", "reason", "detail", "row")
    rows = [
        (str(e.epoch), e.id, e.state, e.reason, _cut(e.detail), _cut(e.row)) for e in table.newest
    ]
    output.show(output.table(names, rows, right="epoch", fixed="id state"))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _export(arguments: Namespace, output: Output, quarantine: LanceDatasetPort, query: str) -> int:
    path = Path(arguments.export)
    count = 0
    try:
        with path.open("x", encoding="utf-8") as file:
            for each in open_rows(quarantine, query, reason=arguments.reason):
                file.write(json.dumps(each) + "\n")
                count += 1
    except FileExistsError:
        raise SpecError(f"--export {path}: there is such a file; it is not overwritten") from None
    except OSError as error:
        raise SpecError(f"--export {path}: {error.strerror or error}") from error
    if output.json:
        output.document({"file": str(path), "rows": count})
    else:
        output.say(f"{count:,} open rows in {path}. Mend the columns in 'row', then --feed it.")
    return Exit.HEALTHY


def _feed(
    arguments: Namespace,
    output: Output,
    target: Target,
    quarantine: LanceDatasetPort,
    query: str,
) -> int:
    mended = _read(Path(arguments.feed))
    planned = feed_rows(
        target.port, quarantine, query, mended, replace=arguments.replace, dry_run=True
    )
    if planned.fed or planned.finished:
        options = ["--feed", arguments.feed, *(["--replace"] if arguments.replace else [])]
        plan = Plan(
            list(_lines(planned)),
            target.command("quarantine", query=query, options=options),
            planned.to_json(),
        )
        if not arguments.yes:
            return plan.refuse(output)
        plan.show(output)
        planned = feed_rows(target.port, quarantine, query, mended, replace=arguments.replace)
    if output.json:
        output.document({"done": bool(planned.feed or planned.finished)} | planned.to_json())
    else:
        output.say(_done(planned))
    return Exit.HEALTHY


def _read(path: Path) -> list[Mended]:
    """Read the lines of an export that was mended.

    :raises SpecError: names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--feed {path}: {error}") from error
    mended = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json_object(line)
        except ValueError as error:
            raise SpecError(f"--feed {path}, line {number}: it must be {error}") from None
        name, row = record.get("id"), record.get("row")
        if not isinstance(name, str) or not isinstance(row, dict):
            raise SpecError(
                f"--feed {path}, line {number}: it needs 'id', a text, and 'row', an object, as an "
                f"export has them; it is {shown(line)}"
            )
        mended.append(Mended(name, row))
    return mended


def _lines(planned: FeedResult) -> list[str]:
    lines = [f"write {planned.fed:,} mended rows into {planned.uri} (version {planned.version})"]
    if planned.replaced:
        lines.append(f"{planned.replaced:,} rows that the table has now are replaced")
    if planned.finished:
        lines.append(f"{planned.finished:,} rows landed by an earlier feed: only mark them as fed")
    if planned.already:
        lines.append(f"{planned.already:,} rows are fed already: leave them")
    return lines


def _done(result: FeedResult) -> str:
    if not result.feed:
        done = result.already + result.finished
        return f"Nothing to write: {done:,} rows of the file are in the table already."
    return (
        f"{result.fed:,} rows written into {result.uri} as version {result.version}, and marked as "
        f"fed; {result.already + result.finished:,} were fed before."
    )
