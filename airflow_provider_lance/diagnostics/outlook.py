"""Whether a stream catches up with its sources, and when it will have; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_lance.diagnostics.formatting import lasted

__all__ = ["Outlook", "Sample", "outlook", "recent_rates", "samples", "waiting_seconds"]

_WINDOW = 600.0
"""Seconds before the newest sample that count."""
_LEAST, _LEAST_SECONDS = 3, 5.0
_NOISE = 0.02
"""A change of what is behind by less than this share over the window is none."""
_LONGEST = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The moment at which an epoch was committed, as seconds since 1970; what was unread then."""

    at: float
    behind: float
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the newest epochs show. Rates are rows per second, or files if the sources have files.

    At most one of ``caught_up_in_seconds`` and ``falls_behind_by`` is given.
    """

    caught_up_in_seconds: float | None = None
    falls_behind_by: float | None = None
    unit: str = "rows"

    def __str__(self) -> str:
        """Return it as people read it; empty if there is nothing to say."""
        if self.caught_up_in_seconds is not None:
            return f"caught up in about {lasted(self.caught_up_in_seconds)}"
        if self.falls_behind_by is not None:
            by = self.falls_behind_by
            return f"falls behind by {by:,.0f} {self.unit}/s" if by >= 1 else "falls behind slowly"
        return ""


def recent_rates(heartbeat: Mapping[str, Any] | None) -> tuple[float, ...]:
    """Return the rows per second of the newest epochs, oldest first."""
    recent = (heartbeat or {}).get("recent")
    found = []
    for each in recent if isinstance(recent, list) else []:
        try:
            rows, milliseconds = float(each["rows"]), float(each["batchMs"])
        except (KeyError, TypeError, ValueError):
            continue
        if milliseconds > 0 and math.isfinite(rows / milliseconds):
            found.append(round(rows / milliseconds * 1000, 1))
    return tuple(found)


def samples(heartbeat: Mapping[str, Any] | None) -> tuple[Sample, ...]:
    """Return what a heartbeat remembers of the newest epochs, oldest first."""
    recent = (heartbeat or {}).get("recent")
    return tuple(_samples(recent)) if isinstance(recent, list) else ()


def _samples(recent: list[Any]) -> Iterator[Sample]:
    for each in recent:
        try:
            at = datetime.fromisoformat(each["at"])
            behind, read = float(each["behind"]), float(each.get("read") or 0)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if at.tzinfo and math.isfinite(behind) and math.isfinite(read):
            yield Sample(at.timestamp(), behind, read)


def outlook(seen: Sequence[Sample], *, files: bool = False) -> Outlook:
    """Return what follows from how much was unread after each of the newest epochs.

    Spark's own input rate is what it read and not what arrived, so only the change counts.
    """
    unit = "files" if files else "rows"
    newest = [each for each in seen if each.at > seen[-1].at - _WINDOW]
    if len(newest) < _LEAST or newest[-1].at - newest[0].at < _LEAST_SECONDS:
        return Outlook(unit=unit)
    behind, slope = newest[-1].behind, _slope(newest)
    grown = abs(slope) * (newest[-1].at - newest[0].at)
    if not behind or grown < _NOISE * max(each.behind for each in newest):
        return Outlook(unit=unit)
    if slope > 0:
        return Outlook(falls_behind_by=round(slope, 1), unit=unit)
    seconds = behind / -slope
    return Outlook(caught_up_in_seconds=round(seconds, 1) if seconds < _LONGEST else None)


def waiting_seconds(seen: Sequence[Sample], now: str) -> float | None:
    """Return for how long, at least, the oldest unread row has waited; ``None`` if unknown.

    It was there when the rows read by then and those behind were more than have been read by now.

    :param now: when the newest sample still held, ISO 8601.
    """
    if not seen or not seen[-1].behind:
        return None
    read, total = 0.0, sum(each.read for each in seen)
    for each in seen:
        read += each.read
        if read + each.behind > total:
            try:
                return round(max(0.0, datetime.fromisoformat(now).timestamp() - each.at), 1)
            except ValueError:
                return None
    return None


def _slope(seen: Sequence[Sample]) -> float:
    """Return the change per second of the straight line with the least squares."""
    at = sum(each.at for each in seen) / len(seen)
    behind = sum(each.behind for each in seen) / len(seen)
    spread = sum((each.at - at) ** 2 for each in seen)
    return sum((each.at - at) * (each.behind - behind) for each in seen) / spread if spread else 0.0
