"""Write the query's last progress beside the checkpoint, for the processes that supervise it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.spark.compat import OTHER_INTERNALS
from airflow_provider_lance.spark.run_metrics import EpochHistory, WatchedTotals
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.supervision.driver_reports import write_heartbeat, write_trend
from airflow_provider_lance.supervision.heartbeat import SECONDS_BEHIND, unread_of
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.supervision.query_state import query_state_of

__all__ = ["Activity", "HeartbeatWriter"]

log = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0
"""The age at which an unchanged heartbeat is written again, as a sign of life."""

_LAG_SECONDS = 10.0
"""How often Kafka is asked for the oldest record that is not read."""

_POINT_SECONDS = 300.0
_POINTS = 288
"""A day of them."""


class HeartbeatWriter:
    """Writes one small JSON document when it changed, and at intervals when it did not."""

    def __init__(
        self,
        files: Files,
        launch_id: str,
        session: SparkSession,
        sink: LanceSink,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Write to ``files``.

        :param source: the Lance source's options, for those who ask how far a query is behind
            while it does not run.
        """
        self._source = source
        self._points: tuple[dict[str, Any], ...] = ()
        self._next_point = self._next_lag = 0.0
        self._waits_since: float | None = None
        self._files, self._launch_id, self._sink = files, launch_id, sink
        context, process = session.sparkContext, ProcessIdentity.of(os.getpid())
        self._driver = {
            "applicationId": context.applicationId,
            "uiAddress": context.uiWebUrl or "",
            "host": process.host,
            "pid": process.pid,
            "start": process.start,
            "launchedBy": sink.launched_by,
        }
        self._activity, self._recent = Activity(), EpochHistory()
        sink.totals = WatchedTotals(watcher=self._recent.add)
        self._written: tuple[Any, ...] | None = None
        self._written_at = 0.0

    def beat(self, query: StreamingQuery | None, state: str) -> None:
        """Write the heartbeat if it changed. A store that fails never ends the query."""
        progress = self._with_lag(_progress(query))
        signs = (progress and progress.get("timestamp"), self._sink.last)
        if query:
            self._activity.look(query, *signs)
        self._recent.join(query, progress)
        if progress and time.monotonic() >= self._next_point:
            self._add_point(progress)
        news = (state, *signs)
        if news == self._written and time.monotonic() - self._written_at < _QUIET_SECONDS:
            return
        try:
            write_heartbeat(self._files, self._launch_id, self._document(query, state, progress))
        except LanceStreamError as error:
            log.warning("Heartbeat not written. error=%s", error)
        self._written, self._written_at = news, time.monotonic()

    def _with_lag(self, progress: dict[str, Any] | None) -> dict[str, Any] | None:
        """Add to what Spark says of Kafka's sources how old the oldest unread record is."""
        topics = self._sink.topics
        if progress is None or topics is None:
            return progress
        for source in progress["sources"]:
            read, newest = (json.dumps(source[name]) for name in ("endOffset", "latestOffset"))
            if not str(source["description"]).startswith("KafkaV2["):
                continue
            now = time.monotonic()
            if now >= self._next_lag and read != newest:
                self._next_lag = now + _LAG_SECONDS
                try:
                    self._waits_since = topics.waiting_since(read, newest)
                except OTHER_INTERNALS as error:
                    log.warning("The age of unread records is not known. error=%s", error)
            if read == newest:
                source[SECONDS_BEHIND] = 0.0
            elif self._waits_since is not None:
                source[SECONDS_BEHIND] = round(max(0.0, time.time() - self._waits_since), 1)
        return progress

    def _add_point(self, progress: dict[str, Any]) -> None:
        """Write the trend: rows read so far, and how far the sources are behind."""
        self._next_point = time.monotonic() + _POINT_SECONDS
        unread = unread_of(progress)
        point = {
            "at": utc_now(),
            "read": self._recent.read,
            "behind": unread.rows,
            "secondsBehind": unread.seconds,
        }
        self._points = (*self._points, point)[-_POINTS:]
        trend = {"queryId": self._sink.options.query_id, "files": unread.files}
        try:
            write_trend(self._files, self._launch_id, trend | {"points": self._points})
        except LanceStreamError as error:
            log.warning("Trend not written. error=%s", error)

    def _document(
        self, query: StreamingQuery | None, state: str, progress: dict[str, Any] | None
    ) -> dict[str, Any]:
        sink, last, session = self._sink, self._sink.last, self._sink.session
        owner = session.owner if session else None
        state_kept = query_state_of(progress or {}, self._recent.too_late)
        return {
            "launchId": self._launch_id,
            "queryId": sink.options.query_id,
            "time": utc_now(),
            "state": state,
            "busySince": self._activity.since,
            "driver": {
                **self._driver,
                "runId": str(query.runId) if query else None,
                "token": owner.token if owner else None,
            },
            "sink": {
                "uri": sink.options.uri,
                "epoch": last.epoch_id if last else None,
                "version": last.version if last else None,
                "rows": last.rows if last else None,
                "fragments": last.fragments if last else None,
                "bytes": last.bytes if last else None,
                "writeMs": round(last.write_ms, 1) if last else None,
                "commitMs": round(last.commit_ms, 1) if last else None,
                "epochs": sink.totals.epochs,
                "totalRows": sink.totals.rows,
                "checks": sink.totals.checks.to_json(),
                "upkeep": sink.upkeep.to_json(),
                "watermark": session.watermark if session else None,
                "committedAt": session.committed_at if session else None,
            },
            "progress": progress,
            **({"queryState": state_kept.to_json()} if state_kept else {}),
            **({"source": self._source} if self._source else {}),
            "recent": self._recent.to_json(),
        }


def _progress(query: StreamingQuery | None) -> dict[str, Any] | None:
    """Return Spark's last progress as JSON; an object with `json` since 4.0, a dict before."""
    progress: Any = query.lastProgress if query else None
    if progress is None or (isinstance(progress, dict) and not hasattr(progress, "json")):
        return progress
    document: dict[str, Any] = json.loads(progress.json)
    return document


class Activity:
    """Observes one query repeatedly; ``since`` is as exact as the observations are frequent.

    Spark does not count triggers that find no data. But it makes a new status object at each step
    of a trigger (seen on 4.3), and Java compares two of them by identity. So a query that looks for
    data without a pause and finds none is never busy for long. A query that hangs is, at any step:
    listing the source, planning, the sink, Spark's own log.
    """

    def __init__(self) -> None:
        self.since: str | None = None
        """ISO 8601 in UTC; ``None`` while the query waits for data or for its next trigger."""
        self._seen: tuple[Any, ...] | None = None

    def look(self, query: StreamingQuery, *progress: object) -> None:
        """Observe once.

        :param progress: any other values that change when the query makes progress.
        """
        status: Any = query._jsq.status()
        if not _at_work(json.loads(status.json())):
            self._seen = self.since = None
            return
        seen = (status, *progress)
        if seen != self._seen:
            self._seen, self.since = seen, utc_now()


def _at_work(status: dict[str, Any]) -> bool:
    # Before its first trigger a query connects to its sources, which can hang as well.
    return bool(status["isTriggerActive"]) or str(status["message"]).startswith("Initializing")
