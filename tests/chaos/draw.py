"""Plans drawn from a seed: the same seed gives the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.chaos.faults import Faults, plan_faults
from tests.chaos.plan import (
    ONCE,
    POINTS,
    RIMS,
    ROUNDS,
    Attack,
    Between,
    Cleaned,
    Control,
    Meanwhile,
    Mode,
    RoundPlan,
    SparkPoint,
    StationPlan,
    Store,
    Whom,
)

KINDS = tuple((Mode(mode), Store(store)) for mode, store in (
    ("append", "disk"), ("upsert", "s3"), ("complete", "disk"),
    ("append", "s3"), ("upsert", "disk"), ("complete", "s3"),
))  # fmt: skip


def stations(
    seed: str,
    rounds: int,
    control: Control = Control.NONE,
    *,
    least: int = 1,
    attack: Attack | None = None,
) -> list[StationPlan]:
    """Return the stations of a run, the rounds dealt out to them evenly.

    A station that has not all of its rounds has the first of them, with the same numbers.

    :param least: so many stations at least, if there are as many rounds.
    :param attack: the attack of all rounds, if it shall be only one.
    """
    count = min(rounds, max(least, -(-rounds // ROUNDS)))
    shares = [rounds // count + (number < rounds % count) for number in range(count)]
    plans = [station(seed, number, control, attack) for number in range(count)]
    return [
        replace(plan, rounds=plan.rounds[:share]) for plan, share in zip(plans, shares, strict=True)
    ]


def station(
    seed: str, number: int, control: Control = Control.NONE, attack: Attack | None = None
) -> StationPlan:
    """Plan one station with all its rounds; it does not depend on how many others there are."""
    dice = random.Random(f"{seed}/{number}")
    mode, store = KINDS[number % len(KINDS)]
    if control is not Control.NONE:
        mode, store = Mode.APPEND, Store.DISK  # where all controls are known to fail
    options: dict[str, Any] = {
        "watermarkEvery": dice.choice([1, 2, 3, 10]),
        "smallEpochRows": dice.choice([0, 20_000]),
        "autoCompactEvery": dice.choice([0, 0, 3]),
    }
    if mode is Mode.UPSERT:
        options |= {"outputMode": "update", "mergeKeys": ["id"], "deleteWhen": "op = 'd'"}
    if mode is Mode.COMPLETE:
        options |= {"outputMode": "complete"}
    deck = _deck(number, store, control, dice)
    if attack:
        deck = [attack] * ROUNDS
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
        return replace(plan, point=Failpoint.COMMIT_CHECKED.value, maintained=False)
    if control is Control.LOOKBACK:
        point = SparkPoint.SUNK.value
        return replace(plan, point=point, whom=Whom.ALL, between=Between.COMMITS)
    if control is Control.CHAIN:
        point = Failpoint.COMMIT_CHECKED.value
        return replace(plan, point=point, occurrence=1, meanwhile=Meanwhile.OTHERS)
    return plan


def _deck(number: int, store: Store, control: Control, dice: random.Random) -> list[Attack]:
    """Return the station's attacks in the order of its rounds."""
    last = Attack.DRAIN if store is Store.S3 else Attack.STOP
    deck = [Attack.KILL_AT] * 5 + [Attack.KILL_ANY]
    deck += [Attack.PAUSE, Attack.STEAL, Attack.GAP, last]
    deck += [RIMS[(2 * number + place) % len(RIMS)] for place in range(2)]
    dice.shuffle(deck)
    if control is Control.BARRIER:  # what it is about comes first, to be caught at once
        deck.sort(key=lambda attack: attack is not Attack.PAUSE)
    if control is Control.LOOKBACK:  # it knows no owner, no stop and no refusal
        deck = [Attack.KILL_AT] * ROUNDS
    if control is Control.CHAIN:
        deck = [Attack.HOLD] * ROUNDS
    return deck


def _points(number: int, dice: random.Random) -> Iterator[str]:
    """Yield where the station's drivers die; three stations in a row see every point."""
    count = len(POINTS)
    first = [POINTS[(number * 5 + place) % count] for place in range(5)]
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
            places = [Failpoint.COMMIT_CHECKED] * 4
            places += [
                Failpoint.CLAIM_OPENED,
                Failpoint.CLAIM_OWNED,
                Failpoint.CLAIM_BARRED,
                Failpoint.COMMIT_LANDED,
            ]
            return _at(plan, dice.choice(places), dice)
        case Attack.STEAL:
            places = [Failpoint.CLAIM_OWNED, Failpoint.CLAIM_BARRED, Failpoint.CLAIM_REPAIRED]
            places += [Failpoint.COMMIT_CHECKED, Failpoint.COMMIT_LANDED]
            return replace(plan, rival=dice.choice(["", "", *(str(place) for place in places)]))
        case Attack.GAP:
            # Before the epoch is folded: after that the config has its evidence.
            point = dice.choice([Failpoint.COMMIT_LANDED, Failpoint.COMMIT_CHECKED])
            return _at(replace(plan, whom=Whom.ALL, maintained=False), point, dice)
        case Attack.HOLD | Attack.RESTORE | Attack.RECREATE | Attack.CLEAN | Attack.REPLACE:
            return _rim(replace(plan, whom=Whom.ALL, maintained=False), dice)
        case _:
            return replace(plan, after=dice.randint(1, 3))


def _rim(plan: RoundPlan, dice: random.Random) -> RoundPlan:
    """Plan a round in which what the sink trusts is taken away."""
    landed = ["", Failpoint.COMMIT_LANDED, SparkPoint.SUNK, SparkPoint.LOGGED]
    match plan.attack:
        case Attack.HOLD:
            places = [Failpoint.COMMIT_CHECKED] * 4
            places += [Failpoint.CLAIM_OPENED, Failpoint.CLAIM_OWNED, Failpoint.COMMIT_LANDED]
            meanwhile, suspended = dice.choice(list(Meanwhile)), dice.random() < 0.3
            plan = replace(plan, meanwhile=meanwhile, suspended=suspended)
            return _at(plan, dice.choice(places), dice)
        case Attack.RESTORE:
            # Four epochs or more are there, and at most two of them are taken back.
            return replace(
                plan,
                point=str(dice.choice(landed)),
                occurrence=3,
                after=dice.randint(1, 2),
                busy=dice.random() < 0.4,
                cleaned=dice.choice(list(Cleaned)),
                accepted=dice.random() < 0.5,
            )
        case Attack.CLEAN:
            plan = _at(plan, str(dice.choice(["", *POINTS])), dice)
            return replace(plan, files=6)
        case _:
            plan = _at(plan, str(dice.choice(landed)), dice)
            return replace(plan, files=4, after=dice.randint(1, 2))


def _faults(seed: str, attack: Attack, dice: random.Random) -> Faults | None:
    if attack is Attack.GAP or attack in RIMS:
        return None  # what they may refuse shall have one cause
    share = 0.08 if attack is Attack.DRAIN else dice.choice([0.0, 0.02, 0.04])
    return plan_faults(seed, share, dice)


def _at(plan: RoundPlan, point: str, dice: random.Random) -> RoundPlan:
    """Let something happen at a point, with enough to read until it is reached."""
    occurrence = 1 if point in ONCE else dice.randint(1, 3)
    return replace(plan, point=str(point), occurrence=occurrence, files=occurrence + 2)
