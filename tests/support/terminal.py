"""A terminal, to see what a command writes to one."""

from __future__ import annotations

import os
import subprocess


def on_a_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """Return what a command that succeeds writes to a terminal."""
    master, slave = os.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(command, stdout=slave, env=inherited | environment) as process:
        os.close(slave)
        said = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        process.wait(60)
    os.close(master)
    assert process.returncode == 0
    return said
