"""Many streams at a time: they are observed side by side, and each gets one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from airflow_provider_lance.cli.output import (
    SEVERITY_STYLES,
    Exit,
    Output,
    error_json,
    message_of,
)
from airflow_provider_lance.cli.places import Unreached
from airflow_provider_lance.cli.target import Place, Target, open_place
from airflow_provider_lance.diagnostics.fleet import FleetRow, Level, counts, worst_first
from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.protocol.commands import command_line

__all__ = ["each_of", "error_row", "errors_json", "open_all", "show_rows", "worst_exit"]

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 32
"""A dataset that hangs keeps one of them until its time-out."""
_NAME_WIDTH = 32
_STYLES = SEVERITY_STYLES | {"unknown": "yellow", "fine": ""}


def each_of(
    items: Sequence[T], look: Callable[[T], R], failed: Callable[[T, Exception], Unreached]
) -> tuple[list[R], list[Unreached]]:
    """Return the answers in the order of the items, and what could not be observed.

    :param look: observes one; it ends in time by itself.
    """

    def attempt(item: T) -> R | Unreached:
        try:
            return look(item)
        except Exception as error:
            return failed(item, error)

    if not items:
        return [], []
    with ThreadPoolExecutor(min(_THREADS, len(items)), "lance-fleet") as pool:
        answers = list(pool.map(attempt, items))
    found = [each for each in answers if not isinstance(each, Unreached)]
    return found, [each for each in answers if isinstance(each, Unreached)]


def open_all(places: Sequence[Place]) -> tuple[list[Target], list[Unreached]]:
    """Open datasets side by side."""
    import lance  # noqa: F401  once, before the threads

    return each_of(places, open_place, lambda place, error: Unreached(place.uri, error))


def error_row(unreached: Unreached) -> FleetRow:
    """Return the row of what could not be observed."""
    error = unreached.error
    state = "no answer" if isinstance(error, StorageUnavailableError) else "unreadable"
    level: Level = "unknown" if Exit.of(error) is Exit.UNKNOWN else "error"
    return FleetRow(level, state, unreached.uri, unreached.query_id, message_of(error))


def errors_json(unreached: Iterable[Unreached]) -> list[dict[str, Any]]:
    """Return what could not be observed as plain values."""
    return [
        {"uri": each.uri, "queryId": each.query_id, "error": error_json(each.error)}
        for each in unreached
    ]


def worst_exit(statuses: Iterable[Exit], unreached: Iterable[Unreached]) -> Exit:
    """Return the exit status of the worst: unhealthy, then wrong usage, then unknown."""
    seen = {*statuses, *(Exit.of(each.error) for each in unreached)}
    order = (Exit.UNHEALTHY, Exit.USAGE, Exit.UNKNOWN)
    return next((each for each in order if each in seen), Exit.HEALTHY)


def show_rows(
    rows: Iterable[FleetRow], output: Output, *, without: int = 0, arguments: Callable[[str], str]
) -> None:
    """Print a line for each row, worst first, then how many need somebody.

    :param without: how many datasets have no stream.
    :param arguments: returns the connection arguments of a dataset by its URI.
    """
    found = worst_first(rows)
    names = _names(found)
    cells = [
        (row.level, row.code or "-", row.state, _shortened(name, _NAME_WIDTH, output))
        for row, name in zip(found, names, strict=True)
    ]
    heads = ("severity", "code", "state", "query")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for each, sentence, style in [
        (heads, "sentence", "dim"),
        *((each, row.sentence, _STYLES[row.level]) for each, row in zip(cells, found, strict=True)),
    ]:
        start = "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True))
        room = max(20, output.width - len(start) - 2)
        output.say(f"{start}  {_shortened(sentence, room, output)}", style)
    total = counts(found)
    more = f", {without} dataset{'s' * (without != 1)} without a stream" if without else ""
    output.say(f"{total}{more}{_next(found, arguments)}", "bold red" if total.need_you else "green")


def _next(rows: Sequence[FleetRow], arguments: Callable[[str], str]) -> str:
    """Return what to type for the worst, if it needs somebody."""
    worst = rows[0] if rows else None
    if worst is None or not worst.code or worst.level in ("warning", "fine"):
        return ""
    query = worst.query_id
    named = ["--query", query] if set(query) & {"/", ":"} else [query]
    words = ["check", worst.uri, *(named if query else [])]
    command = command_line(*words, connection_arguments=arguments(worst.uri))
    return f"; what to do about the first: {command}"


def _names(rows: Sequence[FleetRow]) -> list[str]:
    """Return a name for each row: its query, with the dataset where that is not enough."""
    tails = [row.uri.rstrip("/").rpartition("/")[2] for row in rows]
    streams = [(row, tail) for row, tail in zip(rows, tails, strict=True) if row.query_id]
    ids = [row.query_id for row, _ in streams]
    several = len(set(ids)) < len(ids)
    full = several and len({(row.query_id, tail) for row, tail in streams}) < len(ids)
    return [
        " in ".join(filter(None, (row.query_id, row.uri if full else tail)))
        if several or not row.query_id
        else row.query_id
        for row, tail in zip(rows, tails, strict=True)
    ]


def _shortened(text: str, width: int, output: Output) -> str:
    """Shorten a text for a terminal; the reader of a pipe gets all of it."""
    if not output.is_terminal or len(text) <= width:
        return text
    return f"{text[: width - 1]}…"
