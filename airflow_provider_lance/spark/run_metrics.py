"""What a sink did: in one epoch, in the newest epochs with their durations, in the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.supervision.heartbeat import unread_of
from airflow_provider_lance.supervision.query_state import too_late_of

__all__ = ["EpochHistory", "EpochReport", "RunMetrics", "WatchedTotals"]

_KEPT = 60
"""Epochs that go with every heartbeat."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one call of the sink did; times in milliseconds."""

    epoch_id: int
    decision: Decision | None
    rows: int = 0
    deletes: int = 0
    fragments: int = 0
    bytes: int = 0
    write_ms: float = 0.0
    commit_ms: float = 0.0
    version: int = 0
    checks: RowChecks = RowChecks()


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What a sink has committed since it was made."""

    epochs: int = 0
    rows: int = 0
    deletes: int = 0
    skipped: int = 0
    checks: RowChecks = RowChecks()
    first_epoch: int | None = None
    last_epoch: int | None = None

    def plus(self, report: EpochReport) -> RunMetrics:
        """Return the totals with one more epoch added."""
        if report.decision in (Decision.SKIP_REPLAY, Decision.RECOVERY_TXN2_ONLY):
            return replace(self, skipped=self.skipped + 1)
        if report.decision is not Decision.FULL_COMMIT:
            return self
        first = report.epoch_id if self.first_epoch is None else self.first_epoch
        return replace(
            self,
            epochs=self.epochs + 1,
            rows=self.rows + report.rows,
            deletes=self.deletes + report.deletes,
            checks=self.checks + report.checks,
            first_epoch=first,
            last_epoch=report.epoch_id,
        )


class EpochHistory:
    """Keeps the newest committed epochs; Spark's part is joined by its batch id."""

    def __init__(self) -> None:
        # Replaced, never changed: the committing thread adds, the watching thread reads.
        self._epochs: tuple[dict[str, Any], ...] = ()
        self._batches: dict[int, dict[str, Any]] = {}
        self._joined = -1
        self.read = 0
        """The rows that were read from the sources since this object was made."""
        self.too_late: tuple[int, ...] = ()
        """The rows that each stateful operator has dropped since, in Spark's order."""

    def add(self, report: EpochReport) -> None:
        """Add an epoch that the sink has just done."""
        if report.decision is not Decision.FULL_COMMIT:
            return
        epoch = {
            "epoch": report.epoch_id,
            "version": report.version,
            "rows": report.rows,
            "fragments": report.fragments,
            "writeMs": round(report.write_ms, 1),
            "commitMs": round(report.commit_ms, 1),
            **({"checks": report.checks.to_json()} if report.checks else {}),
            "at": utc_now(),
        }
        self._epochs = (*self._epochs, epoch)[-_KEPT:]

    def join(self, query: StreamingQuery | None, last: Mapping[str, Any] | None) -> None:
        """Add how long Spark's newest triggers took.

        Reads only ``last``, unless triggers ended since that it does not show.

        :param last: the query's last progress.
        """
        number = _batch(last or {})
        if query is None or last is None or number <= self._joined:
            return
        done = False
        for progress in (last, *_older(query, number, self._joined)):
            # While idle, Spark reports the batch to come; only a batch that ran has written
            # anything.
            took = progress.get("durationMs") or {}
            if "addBatch" in took and "triggerExecution" in took:
                self._note(_batch(progress), progress)
                done = done or progress is last
        self._joined = number if done else number - 1
        self._batches = {key: self._batches[key] for key in sorted(self._batches)[-_KEPT:]}

    def _note(self, number: int, progress: Mapping[str, Any]) -> None:
        read, unread = int(progress.get("numInputRows") or 0), unread_of(progress)
        if number not in self._batches:
            self.read += read
            pairs = zip_longest(self.too_late, too_late_of(progress), fillvalue=0)
            self.too_late = tuple(map(sum, pairs))
        self._batches[number] = {
            "batchMs": progress["durationMs"]["triggerExecution"],
            "read": read,
            "behind": unread.rows,
            "secondsBehind": unread.seconds,
        }

    def to_json(self) -> list[dict[str, Any]]:
        """Return the epochs, oldest first; ``batchMs`` is ``None`` until Spark has reported it.

        With it come ``read``, the rows that the epoch read, and how far its sources were behind.
        """
        unknown = {"batchMs": None}
        return [each | self._batches.get(each["epoch"], unknown) for each in self._epochs]


@dataclass(frozen=True, slots=True)
class WatchedTotals(RunMetrics):
    """Totals that pass each epoch to a watcher, so none is missed between heartbeats."""

    watcher: Callable[[EpochReport], None] = lambda report: None

    def plus(self, report: EpochReport) -> RunMetrics:
        """Return the totals with one more epoch in them."""
        self.watcher(report)
        return RunMetrics.plus(self, report)  # `super()` does not work in a class with slots


def _older(query: StreamingQuery, newest: int, joined: int) -> Iterator[Mapping[str, Any]]:
    """Read the progress of the batches between two, newest first.

    ``query.recentProgress`` would read all 100 that Spark keeps, which takes a tenth of a second.
    """
    if newest <= joined + 1:
        return
    kept: Any = query._jsq.recentProgress() if hasattr(query, "_jsq") else []
    for place in range(len(kept) - 1, -1, -1):
        progress = json.loads(kept[place].json())
        if _batch(progress) <= joined:
            return
        yield progress


def _batch(progress: Mapping[str, Any]) -> int:
    return int(progress.get("batchId", -1))
