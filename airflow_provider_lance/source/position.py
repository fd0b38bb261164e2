"""A query leaves its position in the dataset that it reads, so that cleanup keeps what it needs.

A position is protection and no proof: a query reads exactly once without it, and stops by name if
a version that it needs is gone. So a position that cannot be written is a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.consumers import (
    REFRESH_SECONDS,
    Consumer,
    leave_position,
    read_consumer,
)
from airflow_provider_lance.protocol.dataset import LOOK_CACHE_BYTES, open_dataset
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.source.options import SourceOptions

__all__ = ["PositionKeeper"]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_WRITES = 60
"""Each write is a version of the dataset that is read."""

_BACKOFF = Backoff(attempts=4)


@dataclass
class PositionKeeper:
    """Writes one query's position, at most once a minute; without ``consumerId`` it does nothing.

    ``uri`` and ``checkpoint_location`` say where the query writes, if that is known.
    """

    options: SourceOptions
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    uri: str = ""
    checkpoint_location: str = ""
    _written: SourceOffset | None = None
    _reached: SourceOffset | None = None
    _tried: float | None = None

    def reached(self, position: SourceOffset) -> None:
        """Note that everything before a position is committed; write it if it is time to."""
        self._reached = position
        if not self.options.consumer_id:
            return
        since = None if self._tried is None else time.monotonic() - self._tried
        due = _SECONDS_BETWEEN_WRITES if position != self._written else REFRESH_SECONDS
        if since is None or since >= due:
            self._write(position)

    def end(self) -> None:
        """Write the last position, when the query ends."""
        if self.options.consumer_id and self._reached and self._reached != self._written:
            self._write(self._reached)

    def _write(self, position: SourceOffset) -> None:
        options = self.options
        is_first, self._tried = self._tried is None, time.monotonic()
        try:
            port = open_dataset(options.path, self.storage_options, cache_bytes=LOOK_CACHE_BYTES)
            consumer = Consumer(
                str(options.consumer_id),
                position,
                datetime.now(UTC),
                self.uri,
                self.checkpoint_location,
                ignore_deletes=options.ignore_deletes,
                skip_change_commits=options.skip_change_commits,
            )
            recorded = read_consumer(port.config, consumer.consumer_id, port.version)
            if not (is_first and _is_kept(recorded, consumer)):
                leave_position(port, consumer, _BACKOFF)
            self._written = position
        except LanceStreamError as error:
            log.warning(
                "The position of consumer %s was not left in %s: cleanup may remove versions that "
                "it needs. error=%s",
                options.consumer_id,
                options.path,
                error,
            )


def _is_kept(recorded: Consumer | None, consumer: Consumer) -> bool:
    """Return whether a run that begins is protected by what an earlier one left."""
    if recorded is None or recorded.age(consumer.at) > REFRESH_SECONDS:
        return False
    return recorded == replace(consumer, at=recorded.at)
