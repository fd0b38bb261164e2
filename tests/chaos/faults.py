"""Faults of the store, planned: which request of a round meets which one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.proxy import Fault, Kind


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


TARGETS = (*[Kind.PUT_MANIFEST] * 4, Kind.PUT_TRANSACTION, Kind.PUT_DATA, Kind.LIST)
DOUBTFUL = (Fault.RESET_AFTER, Fault.RESET_LATE, Fault.ERROR_500_AFTER, Fault.RESET_BEFORE)
"""After these a writer cannot know whether its manifest is there."""


def plan_faults(seed: str, share: float, dice: random.Random) -> Faults:
    """Plan a round's faults: some at the writes that matter, and for a share of all requests."""
    strikes = tuple(_strike(dice) for _ in range(5))
    return Faults(seed, share, strikes, latency=dice.choice([0.05, 0.2, 0.6]))


def _strike(dice: random.Random) -> Strike:
    kind = dice.choice(TARGETS)
    doubtful = kind is Kind.PUT_MANIFEST and dice.random() < 0.7
    fault = dice.choice(DOUBTFUL if doubtful else tuple(Fault))
    return Strike(kind, dice.randint(1, 8), fault)
