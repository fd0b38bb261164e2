"""What is done to whom: plans are values, drawn from a seed in `draw`.

A station is one stream with its dataset. It lives through `ROUNDS` rounds: in each a driver starts,
is attacked, and what it left is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.chaos.faults import Faults

ROUNDS = 12
"""Rounds of a station. Every deck of attacks below has so many cards."""


class Mode(StrEnum):
    """What the stream does to its dataset."""

    APPEND = "append"
    UPSERT = "upsert"
    COMPLETE = "complete"


class Store(StrEnum):
    """Where the dataset is. The checkpoint is on local disk."""

    DISK = "disk"
    S3 = "s3"


class Attack(StrEnum):
    """What a round is about."""

    KILL_AT = "kill at a point"
    """The driver kills itself the moment it reaches a named point."""
    KILL_ANY = "kill at any moment"
    """The driver is killed from outside, whatever it does."""
    PAUSE = "pause and take over"
    """The driver is stopped at a point, another takes the query and commits, it goes on."""
    STEAL = "second job"
    """A second job of the same query starts beside a busy one."""
    GAP = "destroy evidence"
    """The driver is killed, and the versions that prove its last epoch are deleted."""
    STOP = "ask to stop"
    """The driver is asked to stop, and ends in order."""
    DRAIN = "drain"
    """Nothing is done to the driver but faults of the store: it reads all that there is."""
    HOLD = "hold a manifest"
    """A manifest waits to be published while others take its number, and all that is old goes."""
    RESTORE = "restore"
    """An older version is brought back, under a driver or between two."""
    RECREATE = "drop and recreate"
    """The dataset is dropped under a busy driver, and another one made in its place."""
    CLEAN = "foreign cleanup"
    """Beside the driver, all old versions are removed in a loop."""
    REPLACE = "replace offsets"
    """Spark's plan for the newest epoch is replaced by one that ends later."""


class Whom(StrEnum):
    """Which of a driver's two processes is killed."""

    ALL = "all"
    PYTHON = "python"
    JVM = "jvm"


class SparkPoint(StrEnum):
    """Spark's own points around an epoch, in the order they are reached."""

    PLANNING = "spark.planning"
    """`offsets/N` is being written."""
    PLANNED = "spark.planned"
    """`offsets/N` is there, the sink is called."""
    SUNK = "spark.sunk"
    """The sink has returned, nothing of `commits/N` is there."""
    LOGGING = "spark.logging"
    """`commits/N` is being written."""
    LOGGED = "spark.logged"
    """`commits/N` is there."""


POINTS: tuple[str, ...] = (
    *(point.value for point in SparkPoint),
    *(step.value for step in Failpoint),
)
ONCE = {step.value for step in Failpoint if not step.value.startswith("commit.")}
"""Points that a driver reaches once in its life."""


class Control(StrEnum):
    """What is taken out of the protocol, to see that the laboratory notices."""

    NONE = "none"
    BARRIER = "barrier"
    LOOKBACK = "lookback"
    CHAIN = "chain"


def without(control: Control) -> dict[str, Any]:
    """Return the arguments of the protocol's policy that switch off what a control lacks."""
    switches = {Control.BARRIER: "barrier", Control.CHAIN: "chain_proof"}
    return {switches[control]: False} if control in switches else {}


RIMS = (Attack.HOLD, Attack.RESTORE, Attack.RECREATE, Attack.CLEAN, Attack.REPLACE)
"""What the sink trusts is taken away under it. Every station meets two of these."""


class Between(StrEnum):
    """What others do to the dataset while no driver lives."""

    NOTHING = "nothing"
    COMPACT = "compact"
    CLEANUP = "cleanup"
    COMMITS = "a burst of commits"


class Meanwhile(StrEnum):
    """Who takes the number of a manifest that is held back."""

    OTHERS = "others"
    """Commits that have nothing to do with the stream."""
    RIVAL = "rival"
    """Another driver of the query, which commits the epoch in doubt."""


class Cleaned(StrEnum):
    """What is removed after a restore, before a driver starts."""

    NOTHING = "nothing"
    OURS = "by our cleanup"
    """All that our cleanup lets go."""
    ALL = "everything old"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round. ``files`` are added to the source before it, mostly read one an epoch.

    ``point`` and ``occurrence`` say where the driver dies or is paused, ``after`` (epochs) and
    ``delay`` (seconds) when it is killed from outside. ``rival`` is where a second job dies, empty
    if it does not. ``maintained`` tells whether compaction and cleanup run beside the driver.

    While a manifest is held, ``meanwhile`` takes its number, and the driver is ``suspended`` or
    runs. ``busy`` tells whether a restore meets a driver, ``cleaned`` what is removed after it, and
    ``accepted`` which way out is taken: the lost epochs are accepted, or brought back.
    """

    number: int
    attack: Attack
    files: int
    point: str = ""
    occurrence: int = 1
    whom: Whom = Whom.ALL
    after: int = 0
    delay: float = 0.0
    rival: str = ""
    maintained: bool = False
    between: Between = Between.NOTHING
    faults: Faults | None = None
    meanwhile: Meanwhile = Meanwhile.OTHERS
    suspended: bool = False
    busy: bool = False
    cleaned: Cleaned = Cleaned.NOTHING
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class StationPlan:
    """One stream: what it does, where, with which options of the sink."""

    seed: str
    number: int
    mode: Mode
    store: Store
    options: dict[str, Any]
    impatient: bool
    """Whether Lance's S3 client gives up soon, so that the sink meets more errors."""
    rounds: tuple[RoundPlan, ...]

    @property
    def name(self) -> str:
        """Return a name for folders and messages."""
        return f"station-{self.number:02}-{self.mode}-{self.store}"
