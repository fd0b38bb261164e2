"""``lance-stream watch``: follow a stream until Ctrl-C."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_provider_lance.cli.output import (
    Exit,
    Output,
    error_json,
    finding_lines,
    harmless,
)
from airflow_provider_lance.cli.status import exit_for, look_at, numbers, style_of, tolerance
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.protocol.model import utc_now

__all__ = ["run"]

Look = Status | TransientError


def run(arguments: Namespace, output: Output) -> int:
    """Print each status, or each change, until the requested end."""
    if not arguments.interval:
        raise SpecError("--interval must be more than 0")
    if arguments.count == 0:
        raise SpecError("--count must be 1 or more; without it, the watch goes on")
    with suppress(KeyboardInterrupt):  # the usual end of a watch; nothing is left half done
        looks = _Looks(arguments)
        if output.json or not sys.stdout.isatty():
            return _follow(looks, output)
        return _live(looks, output)
    return Exit.HEALTHY


class _Looks:
    """One status after another; an error of the store is one too."""

    def __init__(self, arguments: Namespace) -> None:
        self._interval: float = arguments.interval
        self._count: int | None = arguments.count
        self._until: int | None = arguments.until_epoch
        self._tolerance = tolerance(arguments)
        self._target: Target = open_target(arguments)
        self._query = self._target.query(arguments.query_id)
        self.exit = Exit.HEALTHY

    def __iter__(self) -> Iterator[Look]:
        number = 0
        while True:
            number += 1
            look = self._look()
            self.exit = self._exit(look)
            yield look
            if self._reached(look) or number == self._count:
                return
            time.sleep(self._interval)

    def _look(self) -> Look:
        try:
            newest = self._target.place.ask(self._target.port.latest)
            target = replace(self._target, port=newest)
            return look_at(target, self._query, self._tolerance)
        except TransientError as error:
            return error

    def _reached(self, look: Look) -> bool:
        return (
            self._until is not None and isinstance(look, Status) and look.watermark >= self._until
        )

    def _exit(self, look: Look) -> Exit:
        if isinstance(look, TransientError):
            return Exit.UNKNOWN
        if self._until is not None:
            return Exit.HEALTHY if self._reached(look) else Exit.UNHEALTHY
        return exit_for([look])


def _follow(looks: _Looks, output: Output) -> int:
    """Print changes: one line each, or one JSON document per line."""
    before: Any = None
    for look in looks:
        if isinstance(look, TransientError):
            if before != str(look):
                output.note(f"store unreachable: {look}")
                if output.json:
                    output.document({"error": error_json(look)}, lines=True)
            before = str(look)
            continue
        now = _gist(look)
        if now != before:
            _print(look, output)
            if output.closed:  # the reader of the lines has exited
                return Exit.HEALTHY
        before = now
    return looks.exit


def _gist(status: Status) -> tuple[Any, ...]:
    """Return what counts as a change; ages and rates do not."""
    codes = tuple(sorted({each.code for each in _bad(status)}))
    return (status.state, status.watermark, status.token, status.owner_state, codes)


def _bad(status: Status) -> list[Any]:
    return [each for each in status.findings if each.severity >= Severity.WARNING]


def _print(status: Status, output: Output) -> None:
    if output.json:
        output.document(status.to_json(), lines=True)
        return
    codes = "".join(f" [{each.code}]" for each in _bad(status))
    output.line(f"{utc_now()} {status.sentence}{codes}")


def _live(looks: _Looks, output: Output) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=output.console, auto_refresh=False) as live:
        seen: list[Any] = []
        for look in looks:
            if isinstance(look, TransientError):
                head = Text(harmless(f"store unreachable: {look}"), "yellow")
            else:
                head = Text(harmless(look.sentence), style_of(look))
                lines = finding_lines(look.findings)
                seen = [
                    *(Text(harmless(line), style) for line, style in lines),
                    output.pairs(numbers(look)),
                ]
            foot = Text(f"{utc_now()}  Ctrl-C ends", "dim")
            live.update(Group(head, *seen, foot), refresh=True)
    return looks.exit
