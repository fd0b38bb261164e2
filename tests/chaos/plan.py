"""What is done to whom, drawn from the seed: plans are values, and the same seed gives the same.

A station is one stream with its dataset. It lives through `ROUNDS` rounds: in each a driver starts,
is attacked, and what it left is judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import cycle
from typing import Any

from airflow_provider_lance.streaming.steps import Step
from tests.support.proxy import Fault, Kind

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


POINTS: tuple[str, ...] = (*(point.value for point in SparkPoint), *(step.value for step in Step))
ONCE = {step.value for step in Step if not step.value.startswith("commit.")}
"""Points that a driver reaches once in its life."""


class Control(StrEnum):
    """What is taken out of the protocol, to see that the laboratory notices."""

    NONE = "none"
    BARRIER = "barrier"
    LOOKBACK = "lookback"


class Between(StrEnum):
    """What others do to the dataset while no driver lives."""

    NOTHING = "nothing"
    COMPACT = "compact"
    CLEANUP = "cleanup"
    COMMITS = "a burst of commits"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault for the ``nth`` request of a kind."""

    kind: Kind
    nth: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Faults:
    """What the store does in a round: ``strikes``, and faults for a share of all requests.

    ``latency`` is how long a late request is held back, in seconds.
    """

    seed: str
    share: float
    strikes: tuple[Strike, ...]
    latency: float


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round. ``files`` are added to the source before it, mostly read one an epoch.

    ``point`` and ``occurrence`` say where the driver dies or is paused, ``after`` (epochs) and
    ``delay`` (seconds) when it is killed from outside. ``rival`` is where a second job dies, empty
    if it does not. ``maintained`` tells whether compaction and cleanup run beside the driver.
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


KINDS = tuple((Mode(mode), Store(store)) for mode, store in (
    ("append", "disk"), ("upsert", "s3"), ("complete", "disk"),
    ("append", "s3"), ("upsert", "disk"), ("complete", "s3"),
))  # fmt: skip


def stations(
    seed: str, rounds: int, control: Control = Control.NONE, *, least: int = 1
) -> list[StationPlan]:
    """Return the stations of a run, the rounds dealt out to them evenly.

    A station that has not all of its rounds has the first of them, with the same numbers.

    :param least: so many stations at least, if there are as many rounds.
    """
    count = min(rounds, max(least, -(-rounds // ROUNDS)))
    shares = [rounds // count + (number < rounds % count) for number in range(count)]
    plans = [station(seed, number, control) for number in range(count)]
    return [
        replace(plan, rounds=plan.rounds[:share]) for plan, share in zip(plans, shares, strict=True)
    ]


def station(seed: str, number: int, control: Control = Control.NONE) -> StationPlan:
    """Plan one station with all its rounds; it does not depend on how many others there are."""
    dice = random.Random(f"{seed}/{number}")
    mode, store = KINDS[number % len(KINDS)]
    if control is not Control.NONE:
        mode, store = Mode.APPEND, Store.DISK  # where both controls are known to fail
    options: dict[str, Any] = {
        "watermarkEvery": dice.choice([1, 2, 3, 10]),
        "smallEpochRows": dice.choice([0, 20_000]),
        "autoCompactEvery": dice.choice([0, 0, 3]),
    }
    if mode is Mode.UPSERT:
        options |= {"outputMode": "update", "mergeKeys": ["id"], "deleteWhen": "op = 'd'"}
    if mode is Mode.COMPLETE:
        options |= {"outputMode": "complete"}
    deck = _deck(store, control, dice)
    points = _points(number, dice)
    return StationPlan(
        seed,
        number,
        mode,
        store,
        options,
        impatient=dice.random() < 0.7,
        rounds=tuple(
            _bent(
                _round(f"{seed}/{number}/{place}", number * ROUNDS + place, attack, store, points),
                control,
            )
            for place, attack in enumerate(deck)
        ),
    )


def _bent(plan: RoundPlan, control: Control) -> RoundPlan:
    """Turn a round towards what a control lacks, so that it is met for certain."""
    if control is Control.BARRIER and plan.attack is Attack.PAUSE:
        # Somebody else's commit at the same moment would make the driver look again.
        return replace(plan, point=Step.COMMIT_CHECKED.value, maintained=False)
    if control is Control.LOOKBACK:
        point = SparkPoint.SUNK.value
        return replace(plan, point=point, whom=Whom.ALL, between=Between.COMMITS)
    return plan


def _deck(store: Store, control: Control, dice: random.Random) -> list[Attack]:
    """Return the station's attacks in the order of its rounds."""
    last = Attack.DRAIN if store is Store.S3 else Attack.STOP
    deck = [Attack.KILL_AT] * 6 + [Attack.KILL_ANY] * 2
    deck += [Attack.PAUSE, Attack.STEAL, Attack.GAP, last]
    dice.shuffle(deck)
    if control is Control.BARRIER:  # what it is about comes first, to be caught at once
        deck.sort(key=lambda attack: attack is not Attack.PAUSE)
    if control is Control.LOOKBACK:  # it knows no owner, no stop and no refusal
        deck = [Attack.KILL_AT] * ROUNDS
    return deck


def _points(number: int, dice: random.Random) -> Iterator[str]:
    """Yield where the station's drivers die; three stations in a row see every point."""
    count = len(POINTS)
    first = [POINTS[(number * 6 + place) % count] for place in range(6)]
    dice.shuffle(first)
    yield from cycle(first)


def _round(
    seed: str, number: int, attack: Attack, store: Store, points: Iterator[str]
) -> RoundPlan:
    dice = random.Random(seed)
    plan = RoundPlan(
        number,
        attack,
        whom=dice.choice([Whom.ALL, Whom.ALL, Whom.PYTHON, Whom.JVM]),
        files=4,
        maintained=dice.random() < 0.6,
        between=dice.choice(list(Between)),
        faults=_faults(seed, attack, dice) if store is Store.S3 else None,
    )
    match attack:
        case Attack.KILL_AT:
            return _at(plan, next(points), dice)
        case Attack.KILL_ANY:
            return replace(plan, after=dice.randint(0, 3), delay=round(dice.uniform(0, 0.8), 3))
        case Attack.PAUSE:
            places = [Step.COMMIT_CHECKED] * 4
            places += [Step.CLAIM_OPENED, Step.CLAIM_OWNED, Step.CLAIM_BARRED, Step.COMMIT_LANDED]
            return _at(plan, dice.choice(places), dice)
        case Attack.STEAL:
            places = [Step.CLAIM_OWNED, Step.CLAIM_BARRED, Step.CLAIM_HEALED]
            places += [Step.COMMIT_CHECKED, Step.COMMIT_LANDED]
            return replace(plan, rival=dice.choice(["", "", *(str(place) for place in places)]))
        case Attack.GAP:
            # Before the epoch is folded: after that the config has its evidence.
            point = dice.choice([Step.COMMIT_LANDED, Step.COMMIT_CHECKED])
            return _at(replace(plan, whom=Whom.ALL, maintained=False), point, dice)
        case _:
            return replace(plan, after=dice.randint(1, 3))


def _at(plan: RoundPlan, point: str, dice: random.Random) -> RoundPlan:
    """Let something happen at a point, with enough to read until it is reached."""
    occurrence = 1 if point in ONCE else dice.randint(1, 3)
    return replace(plan, point=str(point), occurrence=occurrence, files=occurrence + 2)


TARGETS = (*[Kind.PUT_MANIFEST] * 4, Kind.PUT_TRANSACTION, Kind.PUT_DATA, Kind.LIST)
DOUBTFUL = (Fault.RESET_AFTER, Fault.RESET_LATE, Fault.ERROR_500_AFTER, Fault.RESET_BEFORE)
"""After these a writer cannot know whether its manifest is there."""


def _faults(seed: str, attack: Attack, dice: random.Random) -> Faults | None:
    """Plan a round's faults: some at the writes that matter, and some anywhere."""
    if attack is Attack.GAP:
        return None  # what it may refuse shall have one cause
    share = 0.08 if attack is Attack.DRAIN else dice.choice([0.0, 0.02, 0.04])
    strikes = tuple(_strike(dice) for _ in range(5))
    return Faults(seed, share, strikes, latency=dice.choice([0.05, 0.2, 0.6]))


def _strike(dice: random.Random) -> Strike:
    kind = dice.choice(TARGETS)
    doubtful = kind is Kind.PUT_MANIFEST and dice.random() < 0.7
    fault = dice.choice(DOUBTFUL if doubtful else tuple(Fault))
    return Strike(kind, dice.randint(1, 8), fault)
