"""The protocol's values: owner, watermark, stamp, epoch. All frozen, none does I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

__all__ = [
    "NO_EPOCH",
    "Driver",
    "Epoch",
    "EpochStamp",
    "OutputMode",
    "Owner",
    "OwnerState",
    "QueryState",
    "StopNote",
    "Watermark",
    "utc_now",
]

NO_EPOCH = -1
"""The watermark of a query that has committed nothing; Spark's first epoch is 0."""


class OutputMode(StrEnum):
    """How an epoch changes the dataset; the names are Spark's."""

    APPEND = "append"
    COMPLETE = "complete"
    UPDATE = "update"


class OwnerState(StrEnum):
    """Whether the last owner of a query ended in order; decides if a claim needs a barrier."""

    ACTIVE = "active"
    RELEASED = "released"


def utc_now() -> str:
    """Return this moment as ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Driver:
    """One Spark driver process: who it is and which checkpoint it works from.

    ``start`` tells the process from another that gets the same ``pid`` later; ``launch_id`` names
    the launch and ``launched_by`` who launched it. Each is empty where nobody said it.
    """

    run_id: str
    checkpoint_id: str
    checkpoint_location: str
    application_id: str = ""
    ui_address: str = ""
    host: str = ""
    pid: int = 0
    start: str = ""
    launch_id: str = ""
    launched_by: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """The driver that may commit for a query; ``token`` grows by one with each new owner."""

    token: int
    state: OwnerState
    generation: int
    driver: Driver
    time: str


@dataclass(frozen=True, slots=True)
class StopNote:
    """What a stop request says beside its token: which launch is meant, who asked, and when.

    An empty ``launch_id`` means whichever driver the token means. ``time`` is ISO 8601 in UTC.
    """

    token: int
    launch_id: str = ""
    by: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True)
class QueryState:
    """What the manifest config of one dataset version says of one query.

    ``watermark`` is only as exact as the last fold: epochs stamped in versions after
    ``folded_version`` come on top, see
    :func:`~airflow_provider_lance.streaming.history.exact_watermark`.
    """

    query_id: str
    version: int
    owner: Owner | None = None
    watermark: int = NO_EPOCH
    folded_version: int = 0
    committed_at: str | None = None
    stop_token: int | None = None
    stop_note: StopNote | None = None

    @property
    def generation(self) -> int:
        """Return the numbering that epochs of this query belong to now."""
        return self.owner.generation if self.owner else 0

    @property
    def known(self) -> bool:
        """Tell whether the dataset carries any trace of the query."""
        return self.owner is not None or self.watermark > NO_EPOCH


@dataclass(frozen=True, slots=True)
class EpochStamp:
    """What the commit of an epoch says about itself in its transaction properties.

    ``bytes`` are those of the rows as Arrow data in memory; the files are usually smaller.
    ``duration_ms`` runs from the epoch's start to the moment its commit was sent.
    """

    query_id: str
    epoch_id: int
    generation: int
    token: int
    run_id: str
    protocol: int
    mode: str
    rows: int
    deletes: int
    fragments: int
    bytes: int
    started_at: str
    duration_ms: int
    version: int = 0

    @property
    def committed_at(self) -> str:
        """Return when the commit was sent, ISO 8601 in UTC."""
        sent = datetime.fromisoformat(self.started_at) + timedelta(milliseconds=self.duration_ms)
        return sent.isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The exact watermark of one query at one dataset version, and how far it is proven.

    ``missing`` counts the versions between the last fold and ``version`` whose transactions were
    cleaned up; with any missing, ``epoch`` is a lower bound until a checkpoint proves more.
    """

    epoch: int
    version: int
    committed_at: str | None
    stamps: tuple[EpochStamp, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One micro-batch, written and ready to commit.

    ``fragments`` are what the port's writer returned; ``keys`` the upsert's merge keys (a table
    of key columns), ``None`` in the other modes.
    """

    epoch_id: int
    mode: OutputMode
    fragments: Sequence[Any]
    rows: int
    bytes: int
    started_at: str
    keys: Any = None
    merge_keys: tuple[str, ...] = ()
    deletes: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)
