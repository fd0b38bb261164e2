"""The newest epochs of a run with their durations, small enough to go with every heartbeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.spark.run_metrics import EpochReport, RunMetrics

__all__ = ["EpochHistory", "WatchedTotals"]

_MOST = 60


class EpochHistory:
    """Keeps the last 60 committed epochs; Spark's part is joined by its batch id."""

    def __init__(self) -> None:
        # Replaced, never changed: the committing thread adds, the watching thread reads.
        self._epochs: tuple[dict[str, Any], ...] = ()
        self._batch_ms: dict[int, int] = {}
        self._joined = -1

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
            "at": utc_now(),
        }
        self._epochs = (*self._epochs, epoch)[-_MOST:]

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
                self._batch_ms[_batch(progress)] = took["triggerExecution"]
                done = done or progress is last
        self._joined = number if done else number - 1
        self._batch_ms = {key: self._batch_ms[key] for key in sorted(self._batch_ms)[-_MOST:]}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the epochs, oldest first; ``batchMs`` is ``None`` until Spark has reported it."""
        return [each | {"batchMs": self._batch_ms.get(each["epoch"])} for each in self._epochs]


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
