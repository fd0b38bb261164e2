"""Output of results: tables for people, or one JSON document; and notes on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.cli.text import harmless
from airflow_provider_lance.diagnostics.findings import Finding, Severity

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["SEVERITY_STYLES", "Output", "finding_lines"]

SEVERITY_STYLES = {
    "info": "",
    "warning": "yellow",
    "error": "bold red",
    "critical": "bold white on red",
}

_PIPE_WIDTH = 10_000
"""Columns if stdout is not a terminal: the reader of a pipe needs whole lines."""


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

    def document(self, value: Any, *, lines: bool = False) -> None:
        """Print a JSON document, on one line if several ``lines`` follow each other."""
        # This escapes everything that is not ASCII, so it steers no terminal and fits any encoding.
        self._print(json.dumps(value, indent=None if lines else 2))

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
    def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> Table:
        """Return a table; the columns named in ``right``, separated by spaces, are numbers."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            number = name in right.split()
            table.add_column(
                Text(name), justify="right" if number else "left", overflow="fold", no_wrap=number
            )
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        return table


def finding_lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield lines with their styles, for each finding that calls for action."""
    for finding in findings:
        if finding.severity < Severity.WARNING:
            continue
        label = finding.severity.label
        yield f"{finding.code} {label}: {finding.summary}", SEVERITY_STYLES[label]
        if finding.command:
            yield f"  {finding.command}", "bold"
