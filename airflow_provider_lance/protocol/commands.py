"""Commands for the user to type; the only place where they are built."""

from __future__ import annotations

import shlex

__all__ = ["clear_task_line", "command_line"]


def command_line(*words: str, connection_arguments: str = "") -> str:
    """Return a ``lance-stream`` command, quoted for a shell.

    :param words: everything after the command's name, not quoted.
    :param connection_arguments: the arguments that reach the store, such as ``--conn-id
        lance_default``; quoted.
    """
    return " ".join(filter(None, (shlex.join(["lance-stream", *words]), connection_arguments)))


def clear_task_line(dag: str, run: str, task: str, map_index: int = -1) -> str:
    """Return the command that clears one task instance of Airflow."""
    mapped = ["--map-index", str(map_index)] if map_index >= 0 else []
    return shlex.join(["airflow", "lance", "clear-task", dag, run, task, *mapped, "--yes"])
