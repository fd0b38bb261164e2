"""How far a query was behind over the last day, and how fast it read: its drivers' reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.supervision.driver_reports import (
    launched_at,
    read_trend,
    report_location,
)

__all__ = ["TrendPoint", "points_of", "query_trend"]

_LAUNCHES = 10
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrendPoint(JsonRecord):
    """One moment, and the minutes before it. An unknown value is ``None``.

    ``behind`` counts the records that were not read, or the files if ``files``, and
    ``seconds_behind`` is the age of the oldest. Rates are rows per second since the point before:
    ``arriving_per_second`` is what was read and what ``behind`` grew by.
    """

    at: str
    launch_id: str
    behind: float | None = None
    seconds_behind: float | None = None
    files: bool = False
    read_per_second: float | None = None
    arriving_per_second: float | None = None


def query_trend(
    checkpoint_location: str,
    query_id: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    now: datetime | None = None,
) -> tuple[TrendPoint, ...]:
    """Return the points of the last day, oldest first, of the newest launches together.

    :raises SpecError: the location cannot be opened from here.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    files = open_files(report_location(checkpoint_location), storage_options)
    since = (now or datetime.now(UTC)) - _DAY
    launches = sorted(files.names(""))[-_LAUNCHES:]
    found: list[TrendPoint] = []
    for launch_id in launches:
        if launched_at(launch_id):
            document = read_trend(files, launch_id) or {}
            if document.get("queryId") == query_id:
                found += points_of(document, launch_id)
    return tuple(each for each in found if datetime.fromisoformat(each.at) >= since)


def points_of(document: Mapping[str, Any], launch_id: str) -> list[TrendPoint]:
    """Return the points of one launch's trend; what has another form is left out."""
    files = document.get("files") is True
    given = document.get("points")
    whole = [each for each in given if _is_point(each)] if isinstance(given, list) else []
    first = [TrendPoint(**_seen(each, launch_id, files)) for each in whole[:1]]
    return [*first, *_later(whole, launch_id, files)]


def _later(points: list[Mapping[str, Any]], launch_id: str, files: bool) -> Iterator[TrendPoint]:
    for before, point in pairwise(points):
        seen = _seen(point, launch_id, files)
        seconds = (_moment(point) - _moment(before)).total_seconds()
        if seconds > 0:
            read = point["read"] - before["read"]
            seen["read_per_second"] = round(read / seconds, 1)
            grown = _growth(before.get("behind"), point.get("behind"))
            if grown is not None and not files:
                seen["arriving_per_second"] = round(max(0.0, read + grown) / seconds, 1)
        yield TrendPoint(**seen)


def _seen(point: Mapping[str, Any], launch_id: str, files: bool) -> dict[str, Any]:
    return {
        "at": point["at"],
        "launch_id": launch_id,
        "behind": _number(point.get("behind")),
        "seconds_behind": _number(point.get("secondsBehind")),
        "files": files,
    }


def _growth(before: object, now: object) -> float | None:
    first, last = _number(before), _number(now)
    return None if first is None or last is None else last - first


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _moment(point: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(point["at"])


def _is_point(point: object) -> bool:
    if not isinstance(point, Mapping) or _number(point.get("read")) is None:
        return False
    try:
        return _moment(point).tzinfo is not None
    except (KeyError, TypeError, ValueError):
        return False
