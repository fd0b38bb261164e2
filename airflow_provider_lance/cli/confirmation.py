"""Every command that changes state says what it is about to do, and needs ``--yes``."""

from __future__ import annotations

import getpass
import os
import socket
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_lance.cli.exit_codes import Exit
from airflow_provider_lance.cli.output import Output

__all__ = ["Plan", "asker"]


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


def asker(arguments: Namespace) -> str:
    """Return who asks: the value of ``--by``, or the user and this host."""
    if arguments.by:
        return str(arguments.by)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
