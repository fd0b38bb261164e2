"""What a task's log and metrics show of a driver: its progress, its warnings and errors."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.compat import stats
from airflow_provider_lance.supervision.heartbeat import Heartbeat

__all__ = ["EpochLines", "Warnings", "count_restart", "gauge_progress", "progress_line"]

_SECONDS = 60.0
"""The shortest time between two lines in the task's log: 1,440 a day, of about 350 bytes each."""

_SINK = {
    "version": "version",
    "rows": "rows",
    "totalRows": "totalRows",
    "commitMs": "commitMs",
}
_SPARK = {"processedRowsPerSecond": "rowsPerSecond", "batchDuration": "batchMs"}


def progress_line(heartbeat: Mapping[str, Any]) -> str:
    """Return one line about the newest epoch, without the values that the heartbeat lacks."""
    sink, spark = _part(heartbeat, "sink"), _part(heartbeat, "progress")
    pairs = [(label, sink.get(name)) for name, label in _SINK.items()]
    pairs += [(label, spark.get(name)) for name, label in _SPARK.items()]
    tail = " ".join(f"{label}={_number(value)}" for label, value in pairs if value is not None)
    return f"Epoch {sink.get('epoch')} committed. {tail}".rstrip()


class EpochLines:
    """Turns observed heartbeats into lines, one at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoch: int | None = None
        self._epochs = self._rows = 0
        self._spoke = 0.0

    def line(self, heartbeat: Mapping[str, Any], *, last: bool = False) -> str | None:
        """Return a line if a heartbeat has news that is due, ``None`` if not.

        :param last: no further heartbeat will come, so all news is due.
        """
        sink, now = _part(heartbeat, "sink"), self._clock()
        epoch, first = sink.get("epoch"), self._epoch is None
        if not isinstance(epoch, int) or epoch == self._epoch:
            return None
        if not (first or last or now - self._spoke >= _SECONDS):
            return None
        epochs, rows = _count(sink, "epochs"), _count(sink, "totalRows")
        new, added, lasted = epochs - self._epochs, rows - self._rows, now - self._spoke
        self._epoch, self._epochs, self._rows, self._spoke = epoch, epochs, rows, now
        line = progress_line(heartbeat)
        if first or new < 2:
            return line
        rate = added / lasted if lasted > 0 else 0.0
        return f"{new} epochs in {lasted:.0f} s: rows={added} rowsPerSecond={rate:.1f}. {line}"


def _count(sink: Mapping[str, Any], name: str) -> int:
    value = sink.get(name)
    return value if isinstance(value, int) else 0


def _part(heartbeat: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = heartbeat.get(name)
    return part if isinstance(part, Mapping) else {}


def _number(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value


def gauge_progress(
    query_id: str, heartbeat: Heartbeat, silent: float, tags: dict[str, Any]
) -> None:
    """Send ``lag`` and ``epoch_age`` in seconds; ``behind`` and others if the source reports them.

    ``lag`` is how long the epoch in flight has been waiting for its commit, 0 while there is none.
    ``behind`` counts records (Kafka, Lance) or files that exist and are not read;
    ``versions_behind`` a Lance dataset's versions, the oldest of them ``seconds_behind`` old.
    ``unmet`` (tagged with the ``expectation``), ``dropped`` and ``quarantined`` count rows of the
    driver's run.
    """
    _gauge("lag", query_id, 0.0 if heartbeat.idle else heartbeat.busy + silent, tags)
    if heartbeat.committed_at:
        age = datetime.now(UTC) - heartbeat.committed_at
        _gauge("epoch_age", query_id, max(0.0, age.total_seconds()), tags)
    for name in ("behind", "versions_behind", "seconds_behind"):
        if (value := getattr(heartbeat, name)) is not None:
            _gauge(name, query_id, value, tags)
    for name, met in heartbeat.checks.expectations.items():
        _gauge("unmet", query_id, met.unmet, {**tags, "expectation": name})
    if checks := heartbeat.checks:
        _gauge("dropped", query_id, checks.dropped, tags)
        _gauge("quarantined", query_id, checks.quarantined, tags)


def count_restart(query_id: str, state: str, tags: dict[str, Any]) -> None:
    """Count one restart in ``restarts``, tagged with the ``state`` that caused it."""
    stats.incr("lance_stream.restarts", tags={**tags, "query_id": query_id, "state": state})
    stats.incr(f"lance_stream.{query_id}.restarts")


def _gauge(word: str, query_id: str, value: float, tags: dict[str, Any]) -> None:
    stats.gauge(f"lance_stream.{word}", value, tags={**tags, "query_id": query_id})
    stats.gauge(f"lance_stream.{query_id}.{word}", value)


# --- Warnings and errors ---------------------------------------------------------------------

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
