"""How a driver looks after its own dataset: whose turn it is, and which versions are removed.

The compaction is :mod:`.compaction`'s, the removal :mod:`.cleanup`'s. This module bounds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.maintenance.cleanup import Cleaned, Retention, clean_up
from airflow_provider_lance.maintenance.dataset_metrics import list_versions
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.upkeep import (
    CleanupPolicy,
    Turn,
    policy_updates,
    read_policy,
    read_turn,
)

__all__ = [
    "LEAST_KEPT_SECONDS",
    "MOST_VERSIONS",
    "Standing",
    "begin_turn",
    "note_policy",
    "remove_old_versions",
]

LEAST_KEPT_SECONDS = 3600
"""A driver never removes a younger version: a reader or a driver that hangs may need it."""

MOST_VERSIONS = 4000
"""What a driver keeps where nobody says for how long; a check warns of more than 5,000."""

_KEPT_SECONDS = 7 * 24 * 3600
_FRAGMENTS, _VERSIONS = 50, 400
"""So many new ones make a turn due; a removal reads every manifest that is left."""

_CLEANED_AGAIN = timedelta(hours=6)
_TAKEN = timedelta(minutes=2)
"""Longer than a driver's turn. The clocks of two hosts may differ by as much."""

_POLICY_COUNTS = timedelta(days=8)
_POLICY_AGAIN = timedelta(hours=12)
_MANIFEST_BYTES = 1 << 30
"""The most manifests, in bytes, that a driver reads for a removal: seconds of one core."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a driver knew of one dataset at its last look: when a turn becomes due."""

    version: int = 0
    fragments: int = 0

    @classmethod
    def recorded(cls, port: LanceDatasetPort) -> Standing:
        """Return what the newest turn of any driver found; no I/O.

        :raises ProtocolVersionError: see :func:`.protocol.upkeep.read_turn`.
        """
        turn = read_turn(port.config)
        return cls(turn.version, turn.fragments) if turn else cls()

    @classmethod
    def of(cls, port: LanceDatasetPort) -> Standing:
        """Return what a handle shows; no I/O."""
        return cls(port.version, len(port.dataset.fragment_ids()))

    def due(self, port: LanceDatasetPort) -> bool:
        """Return whether the dataset has grown enough since for another turn; no I/O."""
        now = Standing.of(port)
        more = now.fragments - self.fragments
        return more >= _FRAGMENTS or now.version - self.version >= _VERSIONS


def begin_turn(
    port: LanceDatasetPort, query_id: str, removed: int = 0
) -> tuple[LanceDatasetPort, bool] | None:
    """Take the turn for this query's driver; ``None`` if another query's driver has it.

    :param removed: how many versions this driver's run has removed so far.
    :returns: the version that the turn's record made, and whether a removal is due.
    :raises TransientError, ProtocolVersionError: the store refused, or the record is unreadable.
    """
    last, now = read_turn(port.config), datetime.now(UTC)
    if last and last.query_id != query_id and abs(now - last.at) < _TAKEN:
        return None
    cleaned, cleaned_at = (last.cleaned, last.cleaned_at) if last else (0, now)
    cleans = port.version - cleaned >= _VERSIONS or abs(now - cleaned_at) >= _CLEANED_AGAIN
    if cleans:
        cleaned, cleaned_at = port.version, now
    fragments = len(port.dataset.fragment_ids())
    turn = Turn(query_id, now, port.version, fragments, cleaned, cleaned_at, removed)
    try:
        return port.commit(Configure(turn.updates())), cleans
    except CommitPreemptedError:
        return None


def remove_old_versions(
    port: LanceDatasetPort, keep: int | None, storage_options: Mapping[str, str] | None = None
) -> Cleaned:
    """Remove the versions that a driver need not keep; ``warnings`` say what keeps others.

    Where nobody says for how long: those older than a week, and all but the newest 4,000 if they
    are older than an hour. A cleanup by an operator or by hand counts for eight days: what it keeps
    is kept here, too.

    :param keep: the seconds for which the user wants versions, ``None`` if they do not say.
    :raises HistoryGapError, CommitPreemptedError, StorageUnavailableError: as :func:`.clean_up`.
    """
    held = sum(each.size for each in list_versions(port, storage_options))
    if held > _MANIFEST_BYTES:
        return Cleaned(
            warnings=(
                f"Old versions are not removed: the manifests have {held / 2**30:.1f} GiB, more "
                "than a driver reads beside its epochs. Type lance-stream cleanup once",
            )
        )
    return clean_up(port, _retention(port, keep, datetime.now(UTC)), storage_options)


def _retention(port: LanceDatasetPort, keep: int | None, now: datetime) -> Retention:
    """Return what a driver keeps.

    :raises ProtocolVersionError: see :func:`.protocol.upkeep.read_policy`.
    """
    chosen = Retention(
        older_than=_KEPT_SECONDS if keep is None else keep,
        keep_active=LEAST_KEPT_SECONDS,
        most_versions=MOST_VERSIONS if keep is None else None,
    )
    policy = read_policy(port.config)
    if policy is None or abs(now - policy.at) > _POLICY_COUNTS:
        return chosen
    return replace(
        chosen,
        older_than=max(chosen.older_than, policy.older_than),
        keep_active=max(chosen.keep_active, policy.older_than),
        retain_versions=policy.retain_versions,
    )


def note_policy(port: LanceDatasetPort, options: MaintenanceOptions) -> None:
    """Record what a cleanup keeps, if a stream writes the dataset: its driver then keeps that, too.

    The record is written again when it is 12 hours old, or differs.

    :raises TransientError: the store refused too often.
    """
    if not query_ids(port.config):
        return
    now = datetime.now(UTC)
    mine = CleanupPolicy(now, options.older_than, options.retain_versions)
    for attempt in Backoff(attempts=5, first=0.1):
        port = port.latest()
        last = read_policy(port.config)
        if last and now - last.at < _POLICY_AGAIN and replace(last, at=now) == mine:
            return
        try:
            port.commit(Configure(policy_updates(mine)))
        except CommitPreemptedError as error:
            attempt.error = error
        else:
            return
