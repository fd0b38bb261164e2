"""Consumers of a dataset: positions that a test leaves, as the source of a reading query does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.consumers import Consumer, leave_position
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.source_offset import SourceOffset

READER = "hourly"


def position(
    version: int, *, ago: float = 0, consumer_id: str = READER, uri: str = "", **offset: Any
) -> Consumer:
    """Return a position that was written so many seconds ago."""
    at = datetime.now(UTC) - timedelta(seconds=ago)
    found = SourceOffset(version=version, timestamp=1_764_000_000_000_000 + version, **offset)
    return Consumer(consumer_id, found, at, uri, "")


def leave(dataset: str, version: int, **arguments: Any) -> Consumer:
    """Leave a position in a dataset."""
    made = position(version, **arguments)
    leave_position(open_dataset(dataset), made)
    return made


def spoil(dataset: str, text: str, consumer_id: str = READER) -> None:
    """Write something else where a consumer's position belongs."""
    open_dataset(dataset).commit(Configure({key("consumer", consumer_id): text}))
