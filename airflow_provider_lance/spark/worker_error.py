"""An exception of Python code: one of this package, or one of a user's function."""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_provider_lance import exceptions
from airflow_provider_lance.exceptions import (
    LanceStreamError,
    SpecError,
    TerminalError,
    UserFunctionError,
    error_class,
)

__all__ = ["may_pass", "named_by_worker", "users_failure"]

_RAISED = re.compile(rf"^{re.escape(exceptions.__name__)}\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a Python trace: the class's module, its name, its message."""
_LONGEST = 20_000
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(.*)", line \d+')
_NOT_THE_USERS = re.compile(
    r"(site-packages|dist-packages|python)/(pyspark|py4j)/|/(pyspark|py4j-[^/]+)\.zip/"
    r"|/airflow_provider_lance(\.zip)?/|/importlib/__init__|<frozen "
)
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*\Z")
_MAY_PASS = re.compile(
    r"Timeout|Connect|Unavailable|Throttl|TooManyRequests|Temporar|Retr(y|ies)|MemoryError"
    r"|BlockingIO|Interrupted|BrokenPipe|gaierror|URLError|SSLError"
)


def named_by_worker(text: str) -> LanceStreamError | None:
    """Return this package's error that a worker raised, ``None`` if it was any other error.

    :param text: Spark's text: only the trace of a worker's error arrives.
    """
    raised = _RAISED.findall(text)
    if not raised:
        return None
    name, message = raised[-1]
    return error_class(name)(message)


def may_pass(names: Iterable[str]) -> bool:
    """Return whether the same call may succeed later, by the names of an exception's classes."""
    return any(_MAY_PASS.search(name) for name in names)


def users_failure(text: str, what: str = "a Python function of the stream") -> TerminalError | None:
    """Return an exception of a user's function, with the user's lines of its trace.

    Lines of Spark and of this package are left out. ``None`` if the same call may succeed later.

    :param text: a text that contains a Python trace.
    """
    _, begin, trace = text.partition(_BEGIN)
    if not begin:
        return UserFunctionError(f"{what} failed: {text}")
    lines, users = _users_lines(_STATE.sub("", trace).strip("\n").split("\n"))
    raised = _last_exception(lines)
    name = raised.partition(":")[0].rpartition(".")[2]
    if may_pass([name]):
        return None
    if not users and name in ("ModuleNotFoundError", "ImportError"):
        return SpecError(
            f"{raised}, in the Python of the driver or its executors: install it there, or name "
            "another Python with PYSPARK_PYTHON or spark.pyspark.python"
        )
    return UserFunctionError(_bounded("\n".join([f"{what} raised {raised}", _BEGIN, *lines])))


def _bounded(text: str) -> str:
    """Truncate a message that holds a whole batch, for summaries and logs."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"


def _users_lines(trace: list[str]) -> tuple[list[str], int]:
    """Return a trace without the frames of other code, and the number of remaining frames."""
    kept: list[str] = []
    users, theirs = 0, False
    for line in trace:
        if frame := _FRAME.match(line):
            theirs = bool(_NOT_THE_USERS.search(frame[1]))
            users += not theirs
        elif not line.startswith("    "):
            theirs = False
        if not theirs:
            kept.append(line)
    return kept, users


def _last_exception(lines: list[str]) -> str:
    """Return the trace's last part, type and message: the lines after its last frame."""
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    rest = lines[frames[-1] + 1 :] if frames else lines
    while rest and rest[0].startswith("    "):
        rest = rest[1:]
    return "\n".join(rest).strip()
