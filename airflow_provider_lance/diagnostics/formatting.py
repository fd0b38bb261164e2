"""Durations, sizes and ISO times for people; the CLI and every finding use these."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.supervision.heartbeat import Upkeep
from airflow_provider_lance.supervision.query_state import QueryState

__all__ = [
    "ago",
    "event_time",
    "held",
    "is_later",
    "lasted",
    "reached",
    "seconds_ahead",
    "seconds_since",
    "size",
    "sparkline",
    "unmet",
    "unread",
]

_SKEW_SECONDS = 5.0
"""What two clocks may differ by: NTP keeps them within milliseconds, a busy host within seconds."""
_UNITS = (("days", 86_400), ("h", 3600), ("min", 60))


def lasted(seconds: float) -> str:
    """Return a duration in the largest unit that gives at least two."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars, from 0 to the largest."""
    most = max(values, default=0.0)
    top = len(_BARS) - 1
    return "".join(_BARS[round(top * max(0.0, each) / most) if most > 0 else 0] for each in values)


def size(count: int) -> str:
    """Return a number of bytes in decimal units."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def unread(
    rows: float | None, versions: float | None, seconds: float | None, *, files: bool = False
) -> str:
    """Return how far a source is behind: rows or files, versions of a Lance dataset, and seconds.

    Empty if the source does not say.
    """
    counted = f"{versions:,.0f} {'version' if versions == 1 else 'versions'}" if versions else ""
    late = ", ".join(each for each in (counted, lasted(seconds) if seconds else "") if each)
    if rows is None:
        return late
    unit = (" file" if rows == 1 else " files") if files and rows else ""
    counted = f"{rows:,.0f}{unit}"
    return f"{counted} ({late})" if late else counted


def upkeep(done: Upkeep, now: datetime) -> str:
    """Return what a driver did to look after its tables; empty for nothing."""
    parts = []
    if done.compacted_at:
        parts.append(
            f"{done.fragments_removed:,} fragments compacted into {done.fragments_added:,}, last "
            f"{ago(done.compacted_at, now)}"
        )
    if done.cleaned_at:
        parts.append(
            f"{done.versions_removed:,} old versions removed ({size(done.bytes_removed)}), last "
            f"{ago(done.cleaned_at, now)}"
        )
    if done.why:
        parts.append(f"not done {ago(done.why_at, now)}: {done.why}")
    return "; ".join(parts)


def unmet(checks: RowChecks) -> str:
    """Return the expectations that rows did not meet, and how many did not land for which reason.

    Empty if all rows met all expectations and landed, or were superseded by others of their epoch.
    """
    parts = [
        f"{name} {each.unmet:,} of {each.met + each.unmet:,}"
        for name, each in checks.expectations.items()
        if each.unmet
    ]
    gone = {
        "dropped": checks.dropped,
        "quarantined": checks.quarantined,
        "late": checks.late,
        "lost": checks.lost,
    }
    parts += [f"{count:,} {word}" for word, count in gone.items() if count]
    return ", ".join(parts)


def held(state: QueryState) -> str:
    """Return what stateful operators hold, each with its rows and its memory."""
    return ", ".join(
        f"{each.name} {each.rows:,} {'row' if each.rows == 1 else 'rows'} in {size(each.bytes)}"
        for each in state.operators
    )


def event_time(state: QueryState, now: datetime) -> str:
    """Return an event-time watermark with its distance from now; empty if there is none.

    It may lie ahead: rows carry the times that their producers wrote.
    """
    then = _parsed(state.event_time_watermark)
    if then is None:
        return ""
    seconds = (now - then).total_seconds()
    where = "ago" if seconds >= 0 else "ahead"
    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({lasted(abs(seconds))} {where})"


def reached(epoch: int) -> str:
    """Return a watermark as text."""
    return f"the watermark is {epoch}" if epoch > NO_EPOCH else "no epoch has been committed"


def ago(moment: str | None, now: datetime) -> str:
    """Return how long ago a moment was; empty if it is unknown.

    A moment that lies ahead, beyond what clocks differ by, is told as such.
    """
    ahead = seconds_ahead(moment, now)
    if ahead:
        return f"{lasted(ahead)} ahead of this host's clock, so one of the two clocks is wrong"
    seconds = seconds_since(moment, now)
    return "" if seconds is None else f"{lasted(seconds)} ago"


def seconds_ahead(moment: str | None, now: datetime) -> float:
    """Return the seconds by which a moment lies ahead of now; 0 if clocks may differ by as much."""
    then = _parsed(moment)
    ahead = (then - now).total_seconds() if then else 0.0
    return ahead if ahead >= _SKEW_SECONDS else 0.0


def seconds_since(moment: str | None, now: datetime) -> float | None:
    """Return the seconds since a moment, never below 0; ``None`` if it is unknown."""
    then = _parsed(moment)
    return None if then is None else max(0.0, (now - then).total_seconds())


def is_later(one: str | None, other: str | None) -> bool:
    """Return whether one moment is after another; false if either is unknown."""
    first, second = _parsed(one), _parsed(other)
    return first is not None and second is not None and first > second


def _parsed(moment: str | None) -> datetime | None:
    try:
        then = datetime.fromisoformat(moment or "")
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)
