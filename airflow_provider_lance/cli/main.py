"""Run one command: errors become one clear message and an exit status."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, NoReturn

from airflow_provider_lance import __version__
from airflow_provider_lance.cli.command_spec import Command
from airflow_provider_lance.cli.commands import ABOUT, COMMANDS, TITLE
from airflow_provider_lance.cli.output import Exit, Output, error_json, harmless
from airflow_provider_lance.cli.waiting import leave
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.lance_errors import named_panics

__all__ = ["build_parser", "main", "run"]

_PACKAGE = __name__.partition(".")[0]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that was typed; the entry point ``lance-stream``. Returns the exit status.

    :param words: instead of the process's own, which ends at once where a store still hangs.
    """
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        import argcomplete

        argcomplete.autocomplete(parser)
    status = run(parser.parse_args(words))
    if words is None:
        leave(status)
    return status


def run(arguments: Namespace) -> int:
    """Run one command whose arguments have been parsed."""
    output = Output(arguments.output)
    if isinstance(sys.stdout, TextIOWrapper):  # a name may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _logging(arguments.debug), named_panics("the dataset"):
            module, _, function = str(arguments.run).partition(":")
            status = getattr(importlib.import_module(module), function)(arguments, output)
        return int(status)
    except KeyboardInterrupt:
        return 130  # a shell's status for a command that SIGINT ended
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        output.error(error)
        return Exit.of(error)


class _Parser(ArgumentParser):
    """Says what is wrong with the words typed; in JSON, too, if they ask for it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember the words: a parser of a command gets those after its name."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        if _wants_json(self._words):
            Output("json").document({"error": error_json(SpecError(message))})
        super().error(message)


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether words that cannot be parsed ask for JSON."""
    return bool({"-ojson", "-o=json", "--output=json"} & set(words)) or any(
        pair in (("-o", "json"), ("--output", "json")) for pair in pairwise(words)
    )


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).split("\n")
        return "\n".join(harmless(line) for line in lines)


@contextmanager
def _logging(debug: bool) -> Iterator[None]:
    """Send the package's log to stderr while a command runs."""
    log = logging.getLogger(_PACKAGE)
    before = log.level, log.propagate
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def build_parser() -> ArgumentParser:
    """Return the parser; its result names in ``run`` the function to call."""
    parser = _Parser("lance-stream", description=f"{TITLE}.", epilog=ABOUT)
    parser.add_argument("--version", action="version", version=f"lance-stream {__version__}")
    _add(parser, COMMANDS)
    return parser


def _add(parser: ArgumentParser, commands: tuple[Command, ...]) -> None:
    group: Any = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        about = command.description or f"{command.help[0].upper()}{command.help[1:]}."
        one = group.add_parser(
            command.name, help=command.help, description=about, epilog=ABOUT, allow_abbrev=False
        )
        for argument in command.arguments:
            one.add_argument(*argument.flags, **argument.settings)
        if command.commands:
            _add(one, command.commands)
        else:
            one.set_defaults(run=command.run)
