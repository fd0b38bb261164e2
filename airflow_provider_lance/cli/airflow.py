"""``airflow lance …``: the same commands for Airflow's own parser.

Every ``airflow`` command imports this module: it imports declarations only.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.cli.command_spec import Command
from airflow_provider_lance.cli.commands import ABOUT, COMMANDS, TITLE

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, GroupCommand

__all__ = ["get_cli_commands"]


def get_cli_commands() -> list[GroupCommand]:
    """Return the group ``lance``; named in the provider info under ``cli``."""
    return [_group(Command("lance", TITLE, commands=COMMANDS))]


def _group(command: Command) -> GroupCommand:
    from airflow.cli.cli_config import GroupCommand

    members = [_group(each) if each.commands else _action(each) for each in command.commands]
    return GroupCommand(command.name, command.help, members, epilog=ABOUT)


def _action(command: Command) -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    declare: Any = Arg  # it has no types
    arguments = [declare(each.flags, **each.settings) for each in command.arguments]
    return ActionCommand(
        command.name,
        command.help,
        _call(command.run),
        arguments,
        description=command.description or None,
        epilog=ABOUT,
    )


def _call(target: str) -> Callable[[Namespace], None]:
    def run(arguments: Namespace) -> None:
        from airflow_provider_lance.cli.main import run as run_command
        from airflow_provider_lance.cli.waiting import leave

        arguments.run = target
        status = run_command(arguments)
        leave(status)
        sys.exit(status)

    return run
