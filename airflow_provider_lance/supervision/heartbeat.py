"""A driver's heartbeat, parsed for the processes that supervise it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self, TypeVar

from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.supervision.query_state import QueryState

__all__ = ["SECONDS_BEHIND", "Heartbeat", "Unread", "Upkeep", "unread_of"]

_T = TypeVar("_T")

SECONDS_BEHIND = "secondsBehind"
"""What the driver adds to Spark's progress of a source: the age of the oldest unread record."""

_FILES = "numFilesOutstanding"
"""Spark's name for the number of files that a file source has found and not read yet."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What the sources of a query have not read; an unknown number is ``None``.

    ``rows`` counts records, or files if ``files`` says so. ``versions`` are those of a Lance
    dataset. ``seconds`` is the age of the oldest record, version or file that is not read.
    """

    rows: float | None = None
    versions: float | None = None
    seconds: float | None = None
    files: bool = False


def unread_of(progress: Mapping[str, Any]) -> Unread:
    """Return what Spark's progress says about its sources."""
    sources = _sources(progress)
    return Unread(
        rows=_most(sum, map(_unread, sources)),
        versions=_most(sum, (_lance(each, "versionsBehind") for each in sources)),
        seconds=_most(max, map(_waiting, sources)),
        files=any(_is_number(_part(each, "metrics").get(_FILES)) for each in sources),
    )


@dataclass(frozen=True, slots=True)
class Upkeep(JsonRecord):
    """What a driver did in its run to look after its tables; times are ISO 8601, empty for never.

    ``why`` says why the newest turn did not do all, ``why_at`` when that was.
    """

    compacted_at: str = ""
    fragments_removed: int = 0
    fragments_added: int = 0
    cleaned_at: str = ""
    versions_removed: int = 0
    bytes_removed: int = 0
    why: str = ""
    why_at: str = ""

    def compacted(self, removed: int, added: int) -> Upkeep:
        """Return this with one more compaction."""
        return replace(
            self,
            compacted_at=utc_now(),
            fragments_removed=self.fragments_removed + removed,
            fragments_added=self.fragments_added + added,
        )

    def cleaned(self, versions: int, size: int) -> Upkeep:
        """Return this with one more removal of old versions, of ``size`` bytes."""
        return replace(
            self,
            cleaned_at=utc_now(),
            versions_removed=self.versions_removed + versions,
            bytes_removed=self.bytes_removed + size,
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat. A missing value is ``None``; ``busy`` is in seconds, 0 while idle.

    ``behind`` counts the records that the sources have not read, or with ``behind_files`` the
    files. Lance sources also say
    how many versions that are, and how many seconds ago the oldest of them was committed.
    ``position`` is how far those sources are read, as text. ``checks`` counts what the expectations
    found in the driver's run. ``query_state`` is what its stateful operators hold.
    """

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
    behind_files: bool = False
    versions_behind: float | None = None
    seconds_behind: float | None = None
    position: str = ""
    checks: RowChecks = RowChecks()
    query_state: QueryState | None = None
    upkeep: Upkeep = Upkeep()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Read a heartbeat; a part of an unexpected form counts as missing."""
        driver, sink = _part(document, "driver"), _part(document, "sink")
        time = _text(document.get("time")) or ""
        busy_since = document.get("busySince")
        progress = _part(document, "progress")
        sources, unread = _sources(progress), unread_of(progress)
        ends = [SourceOffset.found_in(each.get("endOffset")) for each in sources]
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
            behind=unread.rows,
            behind_files=unread.files,
            versions_behind=unread.versions,
            seconds_behind=unread.seconds,
            checks=_record(RowChecks.read_json, sink.get("checks"), RowChecks()),
            upkeep=_record(Upkeep.read_json, sink.get("upkeep"), Upkeep()),
            position="; ".join(str(each) for each in ends if each),
            query_state=QueryState.found_in(document.get("queryState")),
        )


def _sources(progress: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sources = progress.get("sources")
    given = sources if isinstance(sources, list) else []
    return [each for each in given if isinstance(each, Mapping)]


def _most(total: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """Return the total of what the sources say, ``None`` if no source says."""
    found = [value for value in values if value is not None]
    return total(found) if found else None


def _waiting(source: Mapping[str, Any]) -> float | None:
    """Return the age of the oldest that a source has not read, where it or the driver says so."""
    value: Any = source.get(SECONDS_BEHIND)
    return float(value) if _is_number(value) else _lance(source, "secondsBehind")


def _lance(source: Mapping[str, Any], name: str) -> float | None:
    """Return what a Lance source reports beside its newest version."""
    value: Any = _part(source, "latestOffset").get(name)
    return float(value) if _is_number(value) else None


def _unread(source: Mapping[str, Any]) -> float | None:
    files: Any = _part(source, "metrics").get(_FILES)
    if _is_number(files):
        return float(files)
    if SourceOffset.found_in(source.get("endOffset")):
        return _lance(source, "rowsBehind")
    # Kafka: {topic: {partition: offset}}. Its own metrics only have the worst partition.
    newest, read = source.get("latestOffset"), source.get("endOffset")
    ahead = [
        float(offset) - float(_part(read, topic).get(partition, 0))
        for topic in (newest if isinstance(newest, Mapping) else ())
        for partition, offset in _part(newest, topic).items()
        if _is_number(offset) and _is_number(_part(read, topic).get(partition, 0))
    ]
    return sum(ahead) if ahead else None


def _record(reader: Callable[[object], _T], given: object, missing: _T) -> _T:
    try:
        return reader(given)
    except ValueError:
        return missing


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
