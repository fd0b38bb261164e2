"""A driver's heartbeat, parsed for the processes that supervise it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

__all__ = ["Heartbeat"]

_FILES = "numFilesOutstanding"
"""Spark's name for the number of files that a file source has found and not read yet."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat. A missing value is ``None``; ``busy`` is in seconds, 0 while idle."""

    time: str
    state: str
    token: int | None = None
    epoch: int | None = None
    version: int | None = None
    watermark: int | None = None
    total_rows: int | None = None
    committed_at: datetime | None = None
    ui_address: str = ""
    busy: float = 0.0
    idle: bool = False
    behind: float | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Read a heartbeat; a part of an unexpected form counts as missing."""
        driver, sink = _part(document, "driver"), _part(document, "sink")
        time = _text(document.get("time")) or ""
        busy_since = document.get("busySince")
        return cls(
            time=time,
            state=_text(document.get("state")) or "",
            token=_whole(driver.get("token")),
            epoch=_whole(sink.get("epoch")),
            version=_whole(sink.get("version")),
            watermark=_whole(sink.get("watermark")),
            total_rows=_whole(sink.get("totalRows")),
            committed_at=_moment(sink.get("committedAt")),
            ui_address=_text(driver.get("uiAddress")) or "",
            busy=_seconds_between(busy_since, time),
            idle="busySince" in document and busy_since is None,
            behind=_behind(_part(document, "progress")),
        )


def _behind(progress: Mapping[str, Any]) -> float | None:
    """Return how many records or files the sources have not read, ``None`` if no source says."""
    sources = progress.get("sources")
    found = [
        unread
        for source in (sources if isinstance(sources, list) else [])
        if isinstance(source, Mapping) and (unread := _unread(source)) is not None
    ]
    return sum(found) if found else None


def _unread(source: Mapping[str, Any]) -> float | None:
    files: Any = _part(source, "metrics").get(_FILES)
    if _is_number(files):
        return float(files)
    # Kafka: {topic: {partition: offset}}. Its own metrics only have the worst partition.
    newest, read = source.get("latestOffset"), source.get("endOffset")
    ahead = [
        float(offset) - float(_part(read, topic).get(partition, 0))
        for topic in (newest if isinstance(newest, Mapping) else ())
        for partition, offset in _part(newest, topic).items()
        if _is_number(offset) and _is_number(_part(read, topic).get(partition, 0))
    ]
    return sum(ahead) if ahead else None


def _moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _seconds_between(start: object, end: str) -> float:
    try:
        began, now = datetime.fromisoformat(str(start)), datetime.fromisoformat(end)
        return max(0.0, (now - began).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _part(document: object, name: str) -> Mapping[str, Any]:
    part = document.get(name) if isinstance(document, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: object) -> bool:
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
