"""The lines of a driver's log that its task shows: warnings and errors, with repeats counted."""

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
_PYTHONS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} |Traceback ")
_FOLLOWING = 60
"""The most lines shown after a Python warning: a user's trace is shown in full."""
_SPARKS_FOLLOWING = 6
"""The most lines shown after a Spark warning, whose trace is Spark's own."""
_OFTEN = 3
_KINDS = 500


class Warnings:
    """Called with a log's lines in turn; returns a line to show, ``None`` for any other.

    It knows Spark's and Python's log formats, and Spark's structured logging. Lines that differ
    only in numbers are one warning: it is shown three times, then at its 10th, 100th, … time.
    """

    def __init__(self) -> None:
        self._following = 0
        self._times: dict[str, int] = {}

    def __call__(self, line: str) -> str | None:
        level, said = _read(line)
        if not level:
            self._following -= 1
            return line if self._following >= 0 else None
        self._following = 0
        if level not in _SHOWN:
            return None
        times = self._count(said)
        if times <= _OFTEN:
            self._following = _FOLLOWING if _PYTHONS.match(line) else _SPARKS_FOLLOWING
            return line
        # Powers of ten: one warning per second adds five lines a day.
        return f"{line} ({times} times by now)" if str(times).strip("0") == "1" else None

    def _count(self, said: str) -> int:
        kind = _VARYING.sub("#", said)[:300]
        if len(self._times) >= _KINDS and kind not in self._times:
            self._times.clear()
        self._times[kind] = self._times.get(kind, 0) + 1
        return self._times[kind]


def _read(line: str) -> tuple[str, str]:
    """Return a log line's level and text; an empty level for a continuation line."""
    if heading := _HEADING.match(line):
        return heading["level"], heading["said"]
    if line.startswith("{"):
        try:
            document = json.loads(line)
            return str(document["level"]), str(document.get("msg"))
        except (ValueError, KeyError, TypeError, RecursionError):  # truncated: it was too long
            level = re.search(r'"level": ?"(\w+)"', line)
            return (level[1] if level else "INFO"), line
    if _BARE.match(line):
        return "WARN", line
    return "", line
