"""The lines of a driver's log that its task shows: warnings and errors, repeats counted."""

from __future__ import annotations

import json
import re

__all__ = ["Warnings"]

_HEADING = re.compile(
    r"\d[\d/-]+[ T][\d:.,]+\S* "
    r"(?P<level>TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL) (?P<said>.*)"
)
_BARE = re.compile(r"Traceback \(most recent call last\):|Exception in thread |[\w.]+Warning: ")
_SHOWN = ("WARN", "WARNING", "ERROR", "FATAL", "CRITICAL")
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
_FOLLOWING, _FRAMES = 60, 5
"""How many lines may follow a warning's first, and how many of them may be frames of the JVM."""
_OFTEN = 3
_KINDS = 500


class Warnings:
    """Called with a log's lines in turn; returns a line to be shown, ``None`` for any other.

    Spark's and Python's log formats are known, and Spark's structured logging. Lines that differ in
    numbers only are one warning: it is shown three times, then at its 10th, 100th, … time.
    """

    def __init__(self) -> None:
        self._following = self._frames = 0
        self._times: dict[str, int] = {}

    def __call__(self, line: str) -> str | None:
        level, said = _read(line)
        if not level:
            return line if self._goes_on(line) else None
        self._following = 0
        if level not in _SHOWN:
            return None
        times = self._count(said)
        if times <= _OFTEN:
            self._following, self._frames = _FOLLOWING, _FRAMES
            return line
        # Powers of ten: a warning a second makes five more lines a day.
        return f"{line} ({times} times by now)" if str(times).strip("0") == "1" else None

    def _goes_on(self, line: str) -> bool:
        self._following -= 1
        if line.startswith("\t"):
            self._frames -= 1
            return self._following >= 0 and self._frames >= 0
        return self._following >= 0

    def _count(self, said: str) -> int:
        kind = _VARYING.sub("#", said)[:300]
        if len(self._times) >= _KINDS and kind not in self._times:
            self._times.clear()
        self._times[kind] = self._times.get(kind, 0) + 1
        return self._times[kind]


def _read(line: str) -> tuple[str, str]:
    """Return a log line's level and text; an empty level where a line goes on with another."""
    if heading := _HEADING.match(line):
        return heading["level"], heading["said"]
    if line.startswith("{"):
        try:
            document = json.loads(line)
            return str(document["level"]), str(document.get("msg"))
        except (ValueError, KeyError, TypeError, RecursionError):  # cut off: it was a long one
            level = re.search(r'"level": ?"(\w+)"', line)
            return (level[1] if level else "INFO"), line
    if _BARE.match(line):
        return "WARN", line
    return "", line
