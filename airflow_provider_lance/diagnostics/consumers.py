"""The consumers of a dataset: how far each has read, and whether it can read on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_provider_lance.diagnostics.unread import UnreadVersions
from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.dataset_metrics import Version, list_versions
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.consumers import (
    REFRESH_SECONDS,
    Consumer,
    Consumers,
    read_consumers,
)
from airflow_provider_lance.protocol.dataset import (
    LOOK_CACHE_BYTES,
    LanceDatasetPort,
    open_dataset,
)
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["LAG_SECONDS", "ConsumerStatus", "collect_consumers"]

LAG_SECONDS = 3600.0
"""Seconds since the oldest unread version was committed from which a consumer lags behind."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus(JsonRecord):
    """One consumer of a dataset in numbers; an unknown value is ``None``.

    ``version``, ``index`` and ``snapshot`` are its position, written at ``at`` (ISO 8601), which is
    ``age_seconds`` ago. ``unread_version`` is the oldest version with rows that it has not read,
    committed ``seconds_behind`` ago; ``versions_behind`` counts the versions from there on.
    ``needs`` is the oldest version that it needs, ``missing_versions`` how many from there on are
    gone, ``oldest_version`` the oldest one that exists. ``uri`` is the dataset that it writes to;
    ``launched_by`` is read there if it seems not to run. ``error`` says why its record is
    unreadable.
    """

    consumer_id: str
    position: str = ""
    version: int | None = None
    index: int | None = None
    snapshot: bool = False
    change_feed: bool = False
    at: str | None = None
    age_seconds: float | None = None
    unread_version: int | None = None
    versions_behind: int | None = None
    seconds_behind: float | None = None
    needs: int | None = None
    missing_versions: int = 0
    oldest_version: int | None = None
    uri: str = ""
    checkpoint_location: str = ""
    launched_by: str = ""
    error: str = ""


def collect_consumers(
    port: LanceDatasetPort, storage_options: Mapping[str, str] | None = None
) -> tuple[ConsumerStatus, ...]:
    """Return the status of every consumer, sorted by id; without any, it costs no I/O.

    :param port: a handle at the newest version.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    seen = _collect(port, storage_options)
    if any(each.missing_versions for each in seen):
        # A cleanup may have removed what a consumer no longer needs, since the handle was opened.
        seen = _collect(port.latest(), storage_options)
    return tuple(_with_launch(each, storage_options) for each in seen)


def _with_launch(
    consumer: ConsumerStatus, storage_options: Mapping[str, str] | None
) -> ConsumerStatus:
    """Say what launched a consumer that may not run, as the dataset that it writes to records."""
    waits = (consumer.seconds_behind or 0.0) > LAG_SECONDS
    if not consumer.uri or not (waits or (consumer.age_seconds or 0.0) > REFRESH_SECONDS):
        return consumer
    try:
        port = open_dataset(consumer.uri, storage_options, cache_bytes=LOOK_CACHE_BYTES)
        owner = decode_query(port.config, consumer.consumer_id, port.version).owner
    except LanceStreamError:  # it is in another store, or gone
        return consumer
    return replace(consumer, launched_by=owner.driver.launched_by if owner else "")


def _collect(
    port: LanceDatasetPort, storage_options: Mapping[str, str] | None
) -> tuple[ConsumerStatus, ...]:
    found = read_consumers(port.config, port.version)
    if found == Consumers():
        return ()
    now, versions = datetime.now(UTC), list_versions(port, storage_options)
    statuses = [_status(port, each, versions, now) for each in found.readable]
    statuses += [ConsumerStatus(name, error=str(error)) for name, error in found.unreadable.items()]
    return tuple(sorted(statuses, key=lambda each: each.consumer_id))


def _status(
    port: LanceDatasetPort, consumer: Consumer, versions: list[Version], now: datetime
) -> ConsumerStatus:
    offset = consumer.offset
    unread = UnreadVersions().first(port, consumer, port.version)
    # A version that is gone counts as old as the next one that is there.
    since = next((each.written for each in versions if unread and each.number >= unread), now)
    there = sum(consumer.offset.oldest_needed <= each.number <= port.version for each in versions)
    return ConsumerStatus(
        consumer_id=consumer.consumer_id,
        position=str(offset),
        version=offset.version,
        index=offset.index,
        snapshot=offset.snapshot,
        change_feed=offset.change_feed,
        at=consumer.at.isoformat(timespec="seconds"),
        age_seconds=round(consumer.age(now), 1),
        unread_version=unread,
        versions_behind=port.version - unread + 1 if unread else 0,
        seconds_behind=round(max(0.0, (now - since).total_seconds()), 1),
        needs=consumer.offset.oldest_needed,
        missing_versions=port.version - consumer.offset.oldest_needed + 1 - there,
        oldest_version=versions[0].number if versions else None,
        uri=consumer.uri,
        checkpoint_location=consumer.checkpoint_location,
    )
