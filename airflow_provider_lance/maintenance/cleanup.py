"""Remove old versions, and never the evidence that makes a restart exact.

A cleanup can take only one thing from a stream: the proof of which epochs have landed. So every
query's watermark is first folded into the config. Then the versions to remove are listed one by
one: none above a fold, none that a stale driver's conflict check may still need, and none that a
consumer of the dataset still needs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    HistoryGapError,
    PreconditionError,
)
from airflow_provider_lance.maintenance.dataset_metrics import list_versions
from airflow_provider_lance.maintenance.options import KEEP_SECONDS
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import (
    auto_cleanup,
    decode_query,
    fold_updates,
    key,
    query_ids,
)
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.consumers import CONSUMER_RETENTION, read_consumers
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error
from airflow_provider_lance.protocol.model import OwnerState, QueryState, Watermark
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.watermark import WatermarkReader, newest_done

__all__ = ["ORPHAN_SECONDS", "Cleaned", "Retention", "clean_up", "explain_cleanup", "fold_all"]

ORPHAN_SECONDS = 7 * 24 * 3600
"""The age from which Lance removes files that no version references (pylance 14.0.2)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep; ages in seconds, ``rate`` in deletions/s.

    ``consumers`` is the age up to which a consumer's position keeps what the consumer still needs.
    ``files``: remove old files that no version references also if no version is removed.
    ``most_versions``: of more versions than that, the oldest go before they are ``older_than``.
    """

    older_than: int
    retain_versions: int | None = None
    rate: int | None = None
    unverified: bool = False
    keep_active: int = KEEP_SECONDS
    consumers: int = CONSUMER_RETENTION
    files: bool = False
    most_versions: int | None = None


@dataclass(frozen=True, slots=True)
class Cleaned(JsonRecord):
    """What was removed, or would be; ``older_than`` is the age in seconds that was used.

    ``held`` says how many versions stay for each consumer that holds some back, ``warnings`` which
    consumers count for nothing, or for everything, and why.
    """

    versions: int = 0
    data_files: int = 0
    bytes: int = 0
    older_than: int = 0
    folded: tuple[str, ...] = ()
    failed_deletes: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def fold_all(
    port: LanceDatasetPort, backoff: Backoff | None = None
) -> tuple[LanceDatasetPort, tuple[str, ...]]:
    """Fold every query's watermark in one commit; return the newest version and the folded queries.

    :raises HistoryGapError: a query's history already has a gap, which a fold would hide.
    :raises CommitPreemptedError: drivers folded themselves in every one of the attempts.
    """
    for attempt in backoff or Backoff():
        port = port.latest()
        updates, folded = _folds(port)
        if not folded:
            return port, ()
        try:
            return port.commit(Configure(updates)), folded
        except CommitPreemptedError as error:
            attempt.error = error
    raise AssertionError("a backoff ends in its last error")


def _folds(port: LanceDatasetPort) -> tuple[dict[str, str | None], tuple[str, ...]]:
    updates: dict[str, str | None] = {}
    folded = []
    for state in _states(port):
        if state.owner is None:
            continue
        query_id, active = state.query_id, _is_active(state)
        watermark = _read(port, state)
        if watermark.may_lack_epochs:
            continue  # a fold would hide the restore, and the epochs can still be restored
        if watermark.missing and not active:
            continue  # the config has everything that is known
        if watermark.missing:
            raise HistoryGapError(
                f"query {query_id!r} of {port.uri}: {watermark.missing} of the versions since "
                f"its last fold (version {state.folded_version}) were cleaned up already, so "
                "nothing more is removed. Start its stream, which compares them with Spark's log "
                "and says what to do"
            )
        if port.version - state.folded_version > 1:  # the fold's own commit counts as one
            done = newest_done(state, watermark)
            folds = fold_updates(
                query_id, watermark.epoch, port.version, watermark.committed_at, done
            )
            # What a release folded stays; only how far history was read is new.
            read_to = key("lastEpochVersion", query_id)
            updates |= folds if active else {read_to: folds[read_to]}
            folded.append(query_id)
    return updates, tuple(folded)


def _states(port: LanceDatasetPort) -> list[QueryState]:
    config, version = port.config, port.version
    return [decode_query(config, query_id, version) for query_id in query_ids(config)]


def _is_active(state: QueryState) -> bool:
    return state.owner is not None and state.owner.state is OwnerState.ACTIVE


def _read(port: LanceDatasetPort, state: QueryState) -> Watermark:
    """Read a query's history, also of a released one: an older version may have been restored."""
    reader = WatermarkReader(port, state.query_id)
    if _is_active(state):
        return reader.at(port)
    return reader.at(port, spark_done=sys.maxsize, to_gap=True)


def clean_up(
    port: LanceDatasetPort,
    retention: Retention,
    storage_options: Mapping[str, str] | None = None,
) -> Cleaned:
    """Fold, then remove what is old enough.

    :raises HistoryGapError, CommitPreemptedError: as :func:`fold_all`.
    :raises PreconditionError: unverified files are to be removed while a query has an active owner.
    :raises StorageUnavailableError: the store did not answer; what was removed stays removed.
    """
    _refuse(port, retention)
    port, folded = fold_all(port)
    port = port.latest()  # the fold that all readers see decides what is removed
    old, held, warnings = _old_versions(port, retention, storage_options)
    remove = partial(port.dataset.cleanup_old_versions, delete_rate_limit=retention.rate)
    cleaned = _cleaned(port, retention, old, folded, remove)
    return replace(cleaned, held=held, warnings=warnings)


def explain_cleanup(
    port: LanceDatasetPort,
    retention: Retention,
    storage_options: Mapping[str, str] | None = None,
) -> Cleaned:
    """Return what :func:`clean_up` would remove now; changes nothing.

    :raises HistoryGapError, PreconditionError, StorageUnavailableError: as :func:`clean_up`.
    """
    _refuse(port, retention)
    folded = _folds(port)[1]
    old, held, warnings = _old_versions(port, retention, storage_options, folded=folded)

    def explain(**arguments: Any) -> Any:
        return port.dataset.explain_cleanup_old_versions(**arguments).stats

    cleaned = _cleaned(port, retention, old, folded, explain)
    # Lance spares the newest version; after a fold, it would no longer be the newest.
    versions = cleaned.versions + (port.version in old)
    return replace(cleaned, versions=versions, held=held, warnings=warnings)


def _old_versions(
    port: LanceDatasetPort,
    retention: Retention,
    storage_options: Mapping[str, str] | None,
    folded: Collection[str] = (),
) -> tuple[list[int], dict[str, int], tuple[str, ...]]:
    """Return the versions to remove, listed one by one, so that no other version is removed.

    Beside them: how many versions consumers hold back, and warnings about consumers.

    :param folded: queries that would be folded first.
    """
    limit = min(
        (
            state.folded_version
            for state in _states(port)
            if state.owner
            and state.query_id not in folded
            and (_is_active(state) or _read(port, state).may_lack_epochs)
        ),
        default=port.version,
    )
    now = datetime.now(UTC)
    before, floor = (
        now - timedelta(seconds=age) for age in (_age(port, retention), _floor(port, retention))
    )
    versions = list_versions(port, storage_options)
    surplus = len(versions) - (retention.most_versions or len(versions))
    # A fold to come makes one version more: the newest.
    newest = max(1, retention.retain_versions or 1) - (1 if folded else 0)
    kept = {each.number for each in versions[max(0, len(versions) - newest) :]}
    old = [
        each.number
        for place, each in enumerate(versions)
        if each.number <= limit
        and each.number not in kept
        and each.written <= (floor if place < surplus else before)
    ]
    needed, warnings = _needed(port, retention.consumers, now)
    held = {name: sum(each >= needs for each in old) for name, needs in needed.items()}
    needs = min(needed.values(), default=port.version + 1)
    free = [each for each in old if each < needs]
    return free, {name: count for name, count in held.items() if count}, warnings


def _needed(
    port: LanceDatasetPort, retention: int, now: datetime
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the oldest version that each consumer keeps; and warnings.

    A record that cannot be read keeps all versions: the consumer may need any of them.
    """
    found = read_consumers(port.config, port.version)
    needed = {
        each.consumer_id: each.offset.oldest_needed
        for each in found.readable
        if each.age(now) <= retention
    }
    warnings = [
        f"Nothing is removed, because what consumer {name!r} needs is unknown: {error}"
        for name, error in found.unreadable.items()
    ]
    warnings += [
        f"Versions are no longer kept for consumer {each.consumer_id!r}: its position, "
        f"{each.offset}, was written at {each.at.isoformat(timespec='seconds')}, more than "
        f"{retention} s ago. Start its stream again, or type "
        f"{command_line('forget-consumer', port.uri, '--consumer', each.consumer_id)}"
        for each in found.readable
        if each.consumer_id not in needed
    ]
    return needed | dict.fromkeys(found.unreadable, 0), tuple(warnings)


def _refuse(port: LanceDatasetPort, retention: Retention) -> None:
    active = [state.query_id for state in _states(port) if _is_active(state)]
    if retention.unverified and active:
        raise PreconditionError(
            f"deleteUnverified removes files of commits in progress, and queries {active} of "
            f"{port.uri} may have one: their owners did not release. Stop these streams first, or "
            "leave deleteUnverified out"
        )
    if settings := auto_cleanup(port.config):
        log.warning(
            "The dataset's auto-cleanup runs inside every commit and ignores streams. Remove these "
            "keys from the dataset's config. settings=%s",
            settings,
        )


def _age(port: LanceDatasetPort, retention: Retention) -> int:
    return max(retention.older_than, _floor(port, retention))


def _floor(port: LanceDatasetPort, retention: Retention) -> int:
    # After a release too: a driver that hung since before it may still wake up.
    return retention.keep_active if query_ids(port.config) else 0


def _cleaned(
    port: LanceDatasetPort,
    retention: Retention,
    versions: list[int],
    folded: tuple[str, ...],
    act: Callable[..., Any],
) -> Cleaned:
    """Call one of Lance's two functions for these versions; return what it counts.

    :raises StorageUnavailableError: the store did not answer.
    """
    older_than = _age(port, retention)
    if not versions and not retention.unverified and not retention.files:
        return Cleaned(older_than=older_than, folded=folded)
    # Lance refuses an empty list; no version is this old, so only unreferenced files are removed.
    chosen = {"versions": versions} if versions else {"older_than": timedelta(days=36_500)}
    try:
        stats = act(
            **chosen,
            delete_unverified=retention.unverified,
            error_if_tagged_old_versions=False,
        )
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    return Cleaned(
        versions=stats.old_versions,
        data_files=stats.data_files_removed,
        bytes=stats.bytes_removed,
        older_than=older_than,
        folded=folded,
        failed_deletes=stats.failed_deletes,
    )
