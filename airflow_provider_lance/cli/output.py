"""Output of a command: tables, findings, plans, or one JSON document; and its exit status."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.diagnostics.findings import Finding, Severity
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    LanceStreamError,
    SpecError,
    TransientError,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "SEVERITY_STYLES",
    "Exit",
    "Output",
    "Plan",
    "asker",
    "error_json",
    "finding_lines",
    "harmless",
    "message_of",
    "refuse_contradiction",
]

SEVERITY_STYLES = {
    "info": "",
    "warning": "yellow",
    "error": "bold red",
    "critical": "bold white on red",
}

_PIPE_WIDTH = 10_000
"""Columns if stdout is not a terminal: the reader of a pipe needs whole lines."""


class Exit(IntEnum):
    """The exit status of every command."""

    HEALTHY = 0
    """Healthy, or done."""
    UNHEALTHY = 1
    """Something is wrong, or could not be done; the output says what."""
    USAGE = 2
    """The command as typed cannot be run: a wrong option, an unknown dataset, no ``--yes``."""
    UNKNOWN = 3
    """The answer is unknown: the store is unreachable, for instance."""

    @classmethod
    def of(cls, error: Exception) -> Exit:
        """Return the exit status for an error."""
        match error:
            case SpecError() | DatasetNotFoundError():
                return cls.USAGE
            case TransientError():
                return cls.UNKNOWN
            case LanceStreamError():
                return cls.UNHEALTHY
            case _:
                return cls.UNKNOWN


def message_of(error: Exception) -> str:
    """Return what people read of an error."""
    if isinstance(error, LanceStreamError):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"


def error_json(error: Exception) -> dict[str, Any]:
    """Return an error as plain values; ``detail`` is what a store said word for word."""
    return {
        "class": type(error).__name__,
        "message": message_of(error),
        "detail": getattr(error, "detail", ""),
        "exit": int(Exit.of(error)),
    }


def harmless(text: object) -> str:
    """Return a text on one line, with every unprintable character spelled out.

    Query ids, names of processes and messages come from the dataset, where any tool may have
    written them: escape sequences, line ends, marks that change the direction of writing.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text)
    )


def whole(value: int | None) -> str:
    """Return a number with thousands separators; ``-`` if there is none."""
    return "-" if value is None else f"{value:,}"


class Output:
    """Prints results to stdout and notes to stderr. All text is escaped first.

    A reader that exits early, such as ``head``, changes no exit status: later output is dropped,
    and ``closed`` says so.
    """

    def __init__(self, form: str = "table") -> None:
        self.json = form == "json"
        self.closed = False

    @cached_property
    def console(self) -> Console:
        """Return rich's console on stdout; colours only on a terminal, and never with NO_COLOR."""
        from rich.console import Console

        class Ours(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # rich itself would exit

        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        return Ours(width=width, markup=False, highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Return whether stdout is a terminal."""
        return bool(self.console.is_terminal)

    @property
    def width(self) -> int:
        """Return the columns of a line."""
        return int(self.console.width)

    def document(self, value: Any, *, lines: bool = False) -> None:
        """Print a JSON document, on one line if several ``lines`` follow each other."""
        # This escapes everything that is not ASCII, so it steers no terminal and fits any encoding.
        self._print(json.dumps(value, indent=None if lines else 2))

    def error(self, error: Exception, *, lines: bool = False) -> None:
        """Print an error to stderr; with JSON also as a document on stdout."""
        self.note(f"error: {message_of(error)}")
        if self.json:
            self.document({"error": error_json(error)}, lines=lines)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line without wrapping: it may be a command to copy."""
        from rich.text import Text

        with self._while_read():
            self.console.print(Text(harmless(text), style), soft_wrap=True)

    def show(self, renderable: Any) -> None:
        """Print a table or another renderable of rich."""
        if self.console.is_terminal:
            with self._while_read():
                self.console.print(renderable)
            return
        with self.console.capture() as captured:
            self.console.print(renderable)
        self._print("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def line(self, text: str) -> None:
        """Print a line at once, without rich."""
        self._print(harmless(text))

    def _print(self, text: str) -> None:
        with self._while_read():
            print(text, flush=True)

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.closed = True
            # The rest of the buffer must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    @staticmethod
    def note(text: str) -> None:
        """Print to stderr, line by line."""
        for line in text.split("\n"):
            print(harmless(line), file=sys.stderr, flush=True)

    @staticmethod
    def pairs(rows: Sequence[tuple[str, str]]) -> Table:
        """Return names and values as a table of two columns."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text(f"  {name}", "dim"), Text(harmless(value)))
        return table

    @staticmethod
    def table(
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: str = "",
        fixed: str = "",
        styles: Sequence[str] = (),
    ) -> Table:
        """Return a table.

        :param right: the columns that are numbers, separated by spaces.
        :param fixed: further columns that are never wrapped, likewise.
        :param styles: the style of each row.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            table.add_column(
                Text(name),
                justify="right" if name in right.split() else "left",
                overflow="fold",
                no_wrap=name in f"{right} {fixed}".split(),
            )
        for row, style in zip_longest(rows, styles):
            table.add_row(*(Text(harmless(cell)) for cell in row), style=style)
        return table


def finding_lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles, for each finding that calls for action."""
    for finding in findings:
        if finding.severity < Severity.WARNING:
            continue
        label = finding.severity.label
        yield f"{finding.code} {label}: {finding.summary}", SEVERITY_STYLES[label]
        for line in finding.step_lines():
            yield f"  {line}", "bold"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command would do, line by line, and the command that does it."""

    lines: Sequence[str]
    command: str
    details: Any = None
    """The same as plain values, for JSON."""

    def refuse(self, output: Output) -> int:
        """Print the plan, because ``--yes`` is missing; return the exit status."""
        if output.json:
            output.document(
                {"done": False, "plan": list(self.lines), "command": self.command}
                | ({"details": self.details} if self.details is not None else {})
            )
        else:
            self.show(output)
            output.say(f"Nothing was changed. To do it: {self.command}")
        output.note("error: this changes the dataset and needs --yes")
        return Exit.USAGE

    def show(self, output: Output) -> None:
        """Print the plan for people; in JSON mode it is part of the result."""
        if not output.json:
            output.say("Plan:")
            for line in self.lines:
                output.say(f"  {line}")


def refuse_contradiction(arguments: Namespace) -> None:
    """Refuse ``--dry-run`` with ``--yes``.

    :raises SpecError: both were typed.
    """
    if arguments.dry_run and arguments.yes:
        raise SpecError("--dry-run and --yes exclude each other")


def asker(arguments: Namespace) -> str:
    """Return who asks: the value of ``--by``, or the user and this host."""
    if arguments.by:
        return str(arguments.by)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
