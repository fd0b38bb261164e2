"""Catches a test that starts a process or opens a connection, also through a library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_REFUSED = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
}
"""Names of Python's audit events. Native code, as Lance's, raises none."""

_PLATFORM = ("subprocess.Popen", "file")
"""`platform.architecture()` asks `file`; a module that Airflow imports late asks it once."""

_caught: list[list[str]] = []
"""What the block that runs now has caught; no block, nothing is refused."""


class NotIsolatedError(RuntimeError):
    """A unit test starts a process or uses a socket; such tests lie in tests/processes."""


@contextmanager
def isolated() -> Iterator[list[str]]:
    """Refuse processes and sockets while the block runs; yield the list of those refused.

    The list also has those whose error was caught, or raised in another thread.
    """
    _listen()
    _caught.append([])
    try:
        yield _caught[-1]
    finally:
        _caught.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_refuse)  # for good: Python has no way to remove one


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _caught and event in _REFUSED and (event, *arguments[:1]) != _PLATFORM:
        _caught[-1].append(f"{event} {arguments[:2]}")
        raise NotIsolatedError(f"a unit test may not use {_caught[-1][-1]}")
