"""The consumers of a dataset: streaming queries that read it, each with its position in its config.

A position keeps versions from cleanup: the consumer still needs them. Each consumer writes one
config key of its own, so that it conflicts with no other writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    ProtocolVersionError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import (
    PROTOCOL_VERSION,
    consumer_ids,
    in_config,
    key,
)
from airflow_provider_lance.protocol.decoding import Reader, json_object, moment, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.protocol.source_offset import SourceOffset

__all__ = [
    "CONSUMER_RETENTION",
    "REFRESH_SECONDS",
    "Consumer",
    "Consumers",
    "forget_updates",
    "leave_position",
    "position_updates",
    "read_consumer",
    "read_consumers",
]

REFRESH_SECONDS = 6 * 3600
"""A consumer that runs writes its position again after this time, also if it has not moved."""

CONSUMER_RETENTION = 7 * 24 * 3600
"""Seconds for which a position keeps versions from cleanup, unless the options say otherwise."""


@dataclass(frozen=True, slots=True)
class Consumer(JsonRecord):
    """One consumer's position in the dataset that it reads, and when it was written (UTC).

    ``uri`` is the dataset that the query writes to, ``checkpoint_location`` its checkpoint; each is
    empty if it is unknown. The last two are the options of its source: which versions have nothing
    that it would read.
    """

    consumer_id: str
    offset: SourceOffset
    at: datetime
    uri: str = ""
    checkpoint_location: str = ""
    ignore_deletes: bool = False
    skip_change_commits: bool = False

    json_name: ClassVar[str] = "the position of a consumer"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "at": lambda value: datetime.fromisoformat(moment(value)).astimezone(UTC),
    }

    @property
    def read_to(self) -> int:
        """Return the newest version of which it has read everything, 0 within a snapshot."""
        if self.offset.index is None:
            return self.offset.version
        return 0 if self.offset.snapshot else self.offset.version - 1

    def age(self, now: datetime) -> float:
        """Return the seconds since the position was written, never below 0."""
        return max(0.0, (now - self.at).total_seconds())


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of one dataset version, sorted; and the errors of records, by consumer id."""

    readable: tuple[Consumer, ...] = ()
    unreadable: Mapping[str, ProtocolVersionError] = field(default_factory=dict)


def read_consumer(config: Mapping[str, str], consumer_id: str, version: int) -> Consumer | None:
    """Read one consumer's record from the config of one dataset version; ``None`` without one.

    :raises ProtocolVersionError: the record is newer than this package, or no version of it writes
        such a record; the message names the key and what to do.
    """
    config_key = key("consumer", consumer_id)
    if config_key not in config:
        return None
    mend = (
        "If the consumer does not run, remove it: lance-stream forget-consumer --proven-dead, with "
        f"the dataset's URI and {consumer_id}. A consumer that runs writes it again"
    )
    origin = in_config(config_key, mend)
    record = origin.read(config[config_key], json_object)
    origin.refuse_newer(origin.field(record, "protocol", partial(whole, least=1)))
    found: Consumer = origin.read(record | {"consumerId": consumer_id}, Consumer.read_json)
    origin.field(record["offset"], "version", partial(whole, least=1, most=version))
    return found


def read_consumers(config: Mapping[str, str], version: int) -> Consumers:
    """Read every consumer's record from the config of one dataset version; costs no I/O."""
    readable, unreadable = [], {}
    for consumer_id in consumer_ids(config):
        try:
            found = read_consumer(config, consumer_id, version)
        except ProtocolVersionError as error:
            unreadable[consumer_id] = error
        else:
            readable += [found] if found else []
    return Consumers(tuple(readable), unreadable)


def position_updates(consumer: Consumer) -> dict[str, str | None]:
    """Return the config update that records a consumer's position."""
    record = {"protocol": PROTOCOL_VERSION, **consumer.to_json()}
    del record["consumerId"]  # the key has it
    text = json.dumps(record, separators=(",", ":"))
    return {key("consumer", consumer.consumer_id): text}


def forget_updates(consumer_id: str) -> dict[str, str | None]:
    """Return the config update that removes a consumer's record."""
    return {key("consumer", consumer_id): None}


def leave_position(
    port: DatasetPort, consumer: Consumer, backoff: Backoff | None = None
) -> DatasetPort:
    """Write a consumer's position in one commit; return a handle at the version that it made.

    An older position than the recorded one is written too: a new checkpoint may start at an older
    version, which must then be kept.

    :raises DatasetNotFoundError: the dataset is gone.
    :raises TransientError: the store did not answer, or another driver of the same consumer wrote
        at each attempt.
    """
    for attempt in backoff or Backoff():
        port = port.latest()
        try:
            return port.commit(Configure(position_updates(consumer)))
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            attempt.error = error  # to write the same position again changes nothing
    raise AssertionError("a backoff ends in its last error")
