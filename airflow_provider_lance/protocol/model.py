"""The protocol's values: owner, watermark, stamp, epoch. All are frozen, none does I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, ClassVar, Self

from airflow_provider_lance.protocol.row_checks import RowChecks

__all__ = [
    "NO_EPOCH",
    "ByHand",
    "DoneEpoch",
    "Driver",
    "EndOffsets",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What follows from an output mode."""

    of_spark: str
    """The output mode in which Spark runs the query."""
    strict: bool = True
    """Whether an epoch must see what others committed before it."""
    takes_keys: bool = False
    """Whether it needs merge keys."""
    replaces_rows: bool = False
    """Whether rows with its keys are replaced."""
    replaces_all: bool = False
    """Whether all rows are replaced."""
    always_adds: bool = False
    """Whether its fragments are in the version that it makes."""


class OutputMode(StrEnum):
    """How an epoch changes the dataset; the names are Spark's."""

    APPEND = "append"
    COMPLETE = "complete"
    UPDATE = "update"

    @property
    def effect(self) -> Effect:
        """Return what follows from it."""
        match self:
            case OutputMode.APPEND:
                return Effect(of_spark="append", strict=False, always_adds=True)
            case OutputMode.COMPLETE:
                return Effect(of_spark="complete", replaces_all=True)
            case OutputMode.UPDATE:
                return Effect(
                    of_spark="update", takes_keys=True, replaces_rows=True, always_adds=True
                )


class OwnerState(StrEnum):
    """Whether the last owner of a query ended in order; decides whether a claim needs a barrier."""

    ACTIVE = "active"
    RELEASED = "released"


def utc_now() -> str:
    """Return this moment as ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class EndOffsets:
    """Where an epoch ends in each source, as recorded in Spark's `offsets/N`.

    ``lines`` are the file's lines from the third on; ``None`` where only their digest was kept.
    """

    digest: str
    lines: tuple[str, ...] | None = None

    @classmethod
    def of(cls, lines: Sequence[str]) -> Self:
        """Return the offsets of the lines; of long lines only the digest is kept."""
        digest = sha256("\n".join(lines).encode()).hexdigest()
        kept = sum(map(len, lines)) <= _MOST_OFFSET_CHARACTERS
        return cls(digest, tuple(lines) if kept else None)


_MOST_OFFSET_CHARACTERS = 4096
"""The limit above which only a digest is kept: offsets of hundreds of partitions would make each
manifest longer.
"""


@dataclass(frozen=True, slots=True)
class DoneEpoch:
    """The newest epoch that a driver had done when it folded, with or without rows."""

    epoch_id: int
    ends: EndOffsets | None = None
    digest: str = ""
    """In a side table, the digest of the epoch's commit; see :class:`Epoch`."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One Spark driver process: its identity and the checkpoint that it uses.

    ``start`` distinguishes the process from a later one with the same ``pid``. ``launch_id`` names
    the launch, ``launched_by`` who launched it. Each is empty where it is unknown.
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

    @property
    def by_hand(self) -> ByHand | None:
        """Return the repair that wrote this record in a dead driver's name, ``None`` if none."""
        found = _BY_HAND.fullmatch(self.run_id)
        return ByHand(found["what"], found["who"]) if found else None


@dataclass(frozen=True, slots=True)
class ByHand:
    """A release by a repair, not by the driver: what was done, and who did it."""

    what: str
    who: str

    FOR_GOOD: ClassVar[str] = "stopped for good"
    """What a release does if the stream is not to run again."""
    RELEASED: ClassVar[str] = "released"

    @property
    def for_good(self) -> bool:
        """Return whether somebody said that the stream is not to run."""
        return self.what == self.FOR_GOOD

    def run_id(self, unique: str) -> str:
        """Return the run id of the record that says so; Spark's are UUIDs."""
        return f"{self.what} by {self.who} {unique}"


_BY_HAND = re.compile(r"(?P<what>[a-z].*?) by (?P<who>.+) [0-9a-f]{8}", re.DOTALL)


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
    """The details of a stop request beside its token: the launch meant, who asked, and when.

    An empty ``launch_id`` means the driver that holds the token. ``time`` is ISO 8601 in UTC.
    """

    token: int
    launch_id: str = ""
    by: str = ""
    time: str = ""

    def means(self, launch_id: str, token: int | None) -> bool:
        """Return whether the request is for a launch.

        :param token: the owner token that the launch holds; ``None`` if it holds none.
        """
        return self.launch_id == launch_id if self.launch_id else self.token == token


@dataclass(frozen=True, slots=True)
class QueryState:
    """One query's state in the manifest config of one dataset version.

    ``watermark`` is only as exact as the last fold. Epochs stamped in versions after
    ``folded_version`` add to it, see
    :func:`~airflow_provider_lance.protocol.watermark.exact_watermark`.
    """

    query_id: str
    version: int
    owner: Owner | None = None
    watermark: int = NO_EPOCH
    folded_version: int = 0
    committed_at: str | None = None
    done: DoneEpoch | None = None
    stop_token: int | None = None
    stop_note: StopNote | None = None

    @property
    def generation(self) -> int:
        """Return the numbering that this query's epochs belong to now."""
        return self.owner.generation if self.owner else 0

    @property
    def known(self) -> bool:
        """Return whether the dataset carries any trace of the query."""
        return self.owner is not None or self.watermark > NO_EPOCH


@dataclass(frozen=True, slots=True)
class EpochStamp:
    """An epoch's description in the transaction properties of its commit.

    ``bytes`` are those of the rows as Arrow data in memory; the files are usually smaller.
    ``rows`` are those that landed; ``checks`` has those that did not.
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
    ends: EndOffsets | None = None
    checks: RowChecks = RowChecks()
    digest: str = ""

    @property
    def committed_at(self) -> str:
        """Return when the commit was sent, ISO 8601 in UTC."""
        sent = datetime.fromisoformat(self.started_at) + timedelta(milliseconds=self.duration_ms)
        return sent.isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The exact watermark of one query at one dataset version, and how far it is proven.

    ``stamps`` are the epochs since the last fold. ``missing`` counts the versions since then whose
    transactions were cleaned up, ``missing_above`` those of them above the newest stamp. If
    ``missing_above`` is not 0, ``epoch`` is a lower bound. ``undone`` are epochs that a restored
    version removed. ``undone_by`` is the newest version that did so, with the version it restored.
    ``undone_missing`` says that versions between the two were cleaned up: they may have held more
    epochs.
    """

    epoch: int
    version: int
    committed_at: str | None
    stamps: tuple[EpochStamp, ...] = ()
    missing: int = 0
    missing_above: int = 0
    undone: tuple[EpochStamp, ...] = ()
    undone_by: tuple[int, int] | None = None
    undone_missing: bool = False

    @property
    def may_lack_epochs(self) -> bool:
        """Return whether a restore removed epochs, or may have: nothing may be folded then."""
        return bool(self.undone) or self.undone_missing


@dataclass(frozen=True, slots=True)
class Epoch:
    """One micro-batch, written and ready to commit.

    ``fragments`` are what the port's writer returned. ``keys`` is the upsert's table of key
    columns, ``None`` in the other modes and if nothing is added or deleted; ``lookup`` is what the
    writer found of them, if it looked. ``compared_at`` is the version whose rows decided what
    lands, if any did: it holds only while nobody changes rows.
    ``digest`` identifies the options that decide which rows go into a side table: 64 hexadecimal
    digits, empty for the query's own table.
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
    ends: EndOffsets | None = None
    lookup: Any = None
    compared_at: int | None = None
    checks: RowChecks = RowChecks()
    digest: str = ""
