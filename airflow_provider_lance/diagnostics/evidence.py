"""The evidence about one stream: dataset, checkpoint and drivers. Values only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_lance.diagnostics.consumers import LAG_SECONDS, ConsumerStatus
from airflow_provider_lance.diagnostics.neighbours import Home
from airflow_provider_lance.diagnostics.side_tables import SideTableStatus
from airflow_provider_lance.diagnostics.traces import KeptConfig
from airflow_provider_lance.maintenance.dataset_metrics import DatasetMetrics
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import Corruption
from airflow_provider_lance.protocol.consumers import CONSUMER_RETENTION
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    EpochStamp,
    OwnerState,
    QueryState,
    Watermark,
)
from airflow_provider_lance.supervision.health import Health, Limits
from airflow_provider_lance.supervision.heartbeat import Unread
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = [
    "USUAL",
    "Contradiction",
    "DatasetEvidence",
    "Evidence",
    "Tolerance",
    "Undone",
]


@dataclass(frozen=True, slots=True)
class Tolerance(Limits):
    """The limits of a check: supervision's limits in seconds, and counts."""

    unfolded: int = 100
    """Epochs since the last fold while a driver runs; it folds every tenth by default."""
    small_fragments: int = 500
    versions: int = 5_000
    uncovered_rows: int = 1_000_000
    orphaned_bytes: int = 1 << 30
    unmet: float = 0.05
    """The share of the rows of the newest epochs that do not meet an expectation."""
    consumer_lag: float = LAG_SECONDS
    """Seconds since the oldest version that a consumer has not read was committed."""
    consumer_retention: float = CONSUMER_RETENTION
    """Seconds for which cleanup keeps versions after a consumer wrote its position."""


USUAL = Tolerance()
"""The limits of a check by default."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """An epoch that was reported as committed, and that the versions refute.

    ``said_by`` is a launch id, or empty for the dataset's own config, which says that ``epoch`` was
    committed in ``version`` or before. ``found_epoch`` is the newest that the versions show there,
    -1 if none, in ``found_version``; every version in between was read.
    """

    said_by: str
    epoch: int
    version: int
    found_epoch: int = NO_EPOCH
    found_version: int = 0


@dataclass(frozen=True, slots=True)
class Undone:
    """A version that restored ``restored``: ``stamps`` are the epochs of the versions between."""

    version: int
    restored: int
    stamps: tuple[EpochStamp, ...]


@dataclass(frozen=True, slots=True)
class DatasetEvidence:
    """The dataset as a whole. Orphaned files are not referenced by any remaining version.

    ``orphaned_old`` of them are so old that a cleanup removes them. ``younger`` counts the versions
    that a cleanup with this ``--older-than`` keeps by their age, the longest first.

    ``orphans_since`` is the version since which written files were checked, 1 for all of them;
    ``None`` if they were not counted. Files younger than ten minutes never count: their commit may
    be in flight.
    """

    numbers: DatasetMetrics
    uncovered: Mapping[str, int]
    """Rows that an index does not cover, by the index's name."""
    auto_cleanup: Mapping[str, str]
    younger: Mapping[str, int] = field(default_factory=dict)
    orphaned_files: int = 0
    orphaned_bytes: int = 0
    orphaned_old: int = 0
    orphans_since: int | None = None
    consumers: tuple[ConsumerStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One stream at one moment.

    ``checkpoint`` is ``None`` if it could not be read, and ``checkpoint_problem`` then says why.
    ``history`` holds the query's newest epochs that the versions still show, newest first.
    ``drivers`` holds the newest launches, newest first, and the owner's. ``connection_arguments``
    are the arguments besides the URI that a command needs to reach the store, such as
    ``--conn-id lance_default``. ``missing_versions`` are those since the last fold that were
    cleaned up. ``cleaned_up`` says that the first version was, where
    that decides about a repair: beside contradictions, and where the checkpoint is not right.
    """

    uri: str
    query_id: str
    seen_at: datetime
    version: int
    state: QueryState
    watermark: Watermark
    health: Health | None = None
    checkpoint_location: str = ""
    checkpoint: Checkpoint | None = None
    checkpoint_problem: str = ""
    history: tuple[EpochStamp, ...] = ()
    drivers: tuple[DriverObservation, ...] = field(default_factory=tuple)
    connection_arguments: str = ""
    airflow_url: str = ""
    """Airflow's address, for links to tasks; empty if it is not known."""
    missing_versions: tuple[int, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    cleaned_up: bool = False
    undone: tuple[Undone, ...] = ()
    broken_checkpoint: bool = False
    """Whether Spark could not read the checkpoint either."""
    denied_checkpoint: bool = False
    """Whether the store or the system refuses it to this user."""
    kept_config: KeptConfig | None = None
    """What an older version's config has of the query, if this one's was deleted."""
    intact: bool = True
    """Whether the oldest data file that the newest version references exists."""
    sides: tuple[SideTableStatus, ...] = ()
    """The further datasets that the query has registered, by name."""
    neighbours: tuple[Checkpoint, ...] = ()
    """The checkpoints beside the query's place, if it does not have its own there."""
    home: Home | None = None
    """The other query that has the checkpoint which is there instead."""
    corruption: Corruption | None = None
    """Checkpoint files on which a start would fail; checked only while no driver runs."""
    unread: Unread | None = None
    """What the sources have that is not read, found without a driver; only where asked for."""

    @property
    def active(self) -> bool:
        """Return whether the query has an owner that did not release it."""
        owner = self.state.owner
        return owner is not None and owner.state is OwnerState.ACTIVE

    @property
    def owner_seen(self) -> DriverObservation | None:
        """Return the recorded owner's driver, ``None`` without an owner."""
        owner = self.state.owner
        if owner is None:
            return None
        return next((each for each in self.drivers if each.is_of(owner.driver)), None)

    @property
    def newest_epoch(self) -> int:
        """Return the newest epoch that is in the table, or was by the report of its driver.

        The report counts where versions are missing that could show the epoch, as at a start.
        """
        known, owner = self.watermark.epoch, self.owner_seen
        reported = owner and self.watermark.missing_above and not self.repaired_by_hand
        return max(known, owner.watermark) if owner and reported else known

    @property
    def repaired_by_hand(self) -> bool:
        """Return whether a repair wrote the owner record."""
        owner = self.state.owner
        return owner is not None and owner.driver.by_hand is not None

    @property
    def own_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint if it was read and is the one that the owner recorded."""
        owner, seen = self.state.owner, self.checkpoint
        if seen is None or seen.id is None or owner is None:
            return None
        return seen if seen.id == owner.driver.checkpoint_id else None
