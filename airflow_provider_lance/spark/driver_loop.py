"""Watch one query to its end: heartbeats, orderly stops, and an end that is not in order."""

from __future__ import annotations

import logging
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.exceptions import LanceStreamError, TerminalError
from airflow_provider_lance.protocol.model import StopNote
from airflow_provider_lance.spark.heartbeat import HeartbeatWriter
from airflow_provider_lance.spark.sink import LanceSink

__all__ = ["DriverLoop"]

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1
_POLL_SECONDS = 10.0
"""How often an idle driver opens the dataset; a busy one sees a stop request at its commits."""


class DriverLoop:
    """Watches a query from the driver's main thread, which keeps running while an epoch hangs."""

    def __init__(
        self,
        session: SparkSession,
        query: StreamingQuery,
        sink: LanceSink,
        heartbeat: HeartbeatWriter,
        stop_grace: float,
    ) -> None:
        """Begin to watch.

        :param stop_grace: how long an epoch may continue after a stop request, in seconds.
        """
        self.request: StopNote | None = None
        """The stop request that was obeyed."""
        self.hangs: str | None = None
        """What did not end in time; the query then still runs, and ends only with its process."""
        self._session, self._query = session, query
        self._sink, self._heartbeat = sink, heartbeat
        self._grace = stop_grace
        self._looked = time.monotonic()
        self._stopping_since: float | None = None

    def wait(self) -> None:
        """Return when the query has ended, or hangs after a stop request.

        :raises FencedError: a newer owner holds the query.
        :raises DatasetNotFoundError, DatasetRestoredError: the dataset was dropped, or an older
            version of it restored.
        :raises StreamingQueryException: the query failed.
        """
        # Without a timeout, Spark's stop() waits forever for a thread that hangs.
        timeout = f"{int(self._grace * 1000)}ms"
        self._session.conf.set("spark.sql.streaming.stopTimeout", timeout)
        while not self.hangs and not self._query.awaitTermination(_LOOK_SECONDS):
            self._heartbeat.beat(self._query, "stopping" if self._sink.closed else "running")
            if self._sink.closed:
                self._end_in_order()
            else:
                self._listen()

    def end(self) -> None:
        """End a query that still runs after its supervision; an epoch in progress still counts."""
        self._sink.close()
        if self._query.isActive:
            self._stop()

    def _listen(self) -> None:
        now = time.monotonic()
        pause = min(_POLL_SECONDS, self._grace / 3)  # a request is seen well within its grace
        idle = now - max(self._sink.last_activity, self._looked) > pause
        self._looked = now if idle else self._looked
        self.request = self._stop_request(poll=idle)
        if self.request:
            log.info(
                "Asked to stop; the epoch in progress is finished first. by=%s grace_seconds=%s",
                self.request.by or "unknown",
                self._grace,
            )
            self._sink.close()

    def _stop_request(self, *, poll: bool) -> StopNote | None:
        if self._sink.session is None:
            return None
        try:
            return self._sink.session.stop_requested(poll=poll)
        except TerminalError:
            raise
        except LanceStreamError as error:
            log.warning("Cannot look for a stop request. error=%s", error)
            return None

    def _end_in_order(self) -> None:
        now = time.monotonic()
        self._stopping_since = self._stopping_since or now
        # Between two triggers nothing runs; during one, the sink refuses the next epoch.
        if not self._query.status["isTriggerActive"]:
            self._stop()
        elif now - self._stopping_since > self._grace:
            self._give_up()

    def _stop(self) -> None:
        try:
            self._query.stop()
        except Exception as error:
            log.warning("Spark could not stop the query. error=%s", str(error).splitlines()[0])
            self._give_up()

    def _give_up(self) -> None:
        epoch = self._sink.epoch_in_progress
        what = "the query" if epoch is None else f"epoch {epoch}"
        self.hangs = (
            f"{what} did not end within {self._grace:g} s of being asked to stop, so the driver "
            "ended without releasing the query. Nothing is lost: after a restart, the query "
            "continues with the epoch that did not end"
        )
        log.error("Gave up waiting. %s", self.hangs)
