"""The parser of ``lance-stream``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from airflow_provider_lance import __version__
from airflow_provider_lance.cli.command_spec import Command
from airflow_provider_lance.cli.commands import ABOUT, COMMANDS, TITLE

__all__ = ["build_parser"]


def build_parser() -> ArgumentParser:
    """Return the parser; what it reads names in ``run`` the function that does it."""
    parser = ArgumentParser("lance-stream", description=f"{TITLE}.", epilog=ABOUT)
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
