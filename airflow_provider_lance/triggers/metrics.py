"""How a supervised stream does, as Airflow metrics.

Each is sent with the tags ``query_id``, ``dag_id`` and ``task_id``, and once more with the query id
in its name, for StatsD without tags: ``lance_stream.lag`` and ``lance_stream.<query id>.lag``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.compat import stats
from airflow_provider_lance.supervision.heartbeat import Heartbeat

__all__ = ["count_restart", "gauge_progress"]


def gauge_progress(
    query_id: str, heartbeat: Heartbeat, silent: float, tags: dict[str, Any]
) -> None:
    """Send ``lag`` and ``epoch_age`` in seconds, and ``behind`` where the source tells it.

    ``lag`` is how long the epoch in flight has been waiting for its commit, 0 while there is none;
    ``behind`` counts records (Kafka) or files that are there and not read.
    """
    _gauge("lag", query_id, 0.0 if heartbeat.idle else heartbeat.busy + silent, tags)
    if heartbeat.committed_at:
        age = datetime.now(UTC) - heartbeat.committed_at
        _gauge("epoch_age", query_id, max(0.0, age.total_seconds()), tags)
    if heartbeat.behind is not None:
        _gauge("behind", query_id, heartbeat.behind, tags)


def count_restart(query_id: str, state: str, tags: dict[str, Any]) -> None:
    """Count one restart in ``restarts``, tagged with the ``state`` that called for it."""
    stats.incr("lance_stream.restarts", tags={**tags, "query_id": query_id, "state": state})
    stats.incr(f"lance_stream.{query_id}.restarts")


def _gauge(word: str, query_id: str, value: float, tags: dict[str, Any]) -> None:
    stats.gauge(f"lance_stream.{word}", value, tags={**tags, "query_id": query_id})
    stats.gauge(f"lance_stream.{query_id}.{word}", value)
