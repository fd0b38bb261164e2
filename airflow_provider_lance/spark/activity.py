"""Since when a query has been at work without a sign of progress: what a hang looks like."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.protocol.model import utc_now

__all__ = ["Activity"]


class Activity:
    """Looks at one query again and again; ``since`` is as exact as the looks are frequent.

    Spark counts no triggers that find no data. But it makes a new status object at each step of a
    trigger (seen on 4.3), and Java compares two of them by identity. So a query that looks for data
    without a pause and finds none is never busy for long, and one that hangs is, at whichever step:
    listing the source, planning, the sink, Spark's own log.
    """

    def __init__(self) -> None:
        self.since: str | None = None
        """ISO 8601 in UTC; ``None`` while the query waits for data or for its next trigger."""
        self._seen: tuple[Any, ...] | None = None

    def look(self, query: StreamingQuery, *progress: object) -> None:
        """Look once.

        :param progress: whatever else changes when the query gets on.
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
