"""Numbers, durations and times in the page's format."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "clock", "cut", "duration", "epoch", "number"]

NOTHING = "–"
"""Shown for an unknown value."""


def number(value: float | None) -> str:
    """Return a count or a rate with thousands separators."""
    if value is None:
        return NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def epoch(value: int | None) -> str:
    """Return the number of an epoch or a watermark, which is -1 before the first."""
    return NOTHING if value is None or value < 0 else f"{value:,}"


def ago(seconds: float | None) -> str:
    """Return how long ago something was."""
    return NOTHING if seconds is None else f"{duration(max(1, round(seconds)) * 1_000)} ago"


def duration(milliseconds: float | None) -> str:
    """Return a duration in the most readable unit."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    for limit, divisor, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{_fixed(seconds / divisor)} {unit}"
    return f"{_fixed(seconds / 86_400)} d"


def _fixed(value: float) -> str:
    """Return a number with one decimal, or none if it is zero or does not matter."""
    text = f"{value:,.1f}" if abs(value) < 10 else f"{value:,.0f}"
    return text.removesuffix(".0")


def clock(moment: str | datetime | None) -> str:
    """Return a time of day with its date, in UTC; a text of another form unchanged."""
    if not moment:
        return NOTHING
    try:
        read = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        aware = read if read.tzinfo else read.replace(tzinfo=UTC)
        return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):  # the calendar's first day may not exist in UTC
        return str(moment)


def cut(text: str, most: int = 4_000) -> str:
    """Return a text from outside this package, cut to a length that fits the page."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
