"""Where and when drivers are killed: drawn from a seed, every point as often as the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.chain.links import Link
from tests.chaos.chain.source import SourcePoint
from tests.chaos.plan import ONCE, SparkPoint, Whom

ANY = "any moment"


@dataclass(frozen=True, slots=True)
class Death:
    """One driver's end: at a point when it is reached so many times, or after a time.

    ``delay`` counts in seconds from the moment Spark is there, or ``early``, from the birth.
    """

    point: str = ""
    occurrence: int = 1
    whom: Whom = Whom.ALL
    early: bool = False
    delay: float = 0.0

    @property
    def name(self) -> str:
        """Return where it dies, for a table."""
        return self.point or ANY


def deaths(seed: str, link: Link) -> Iterator[Death]:
    """Yield the ends of one stream's drivers, for ever: as many at points as at any moment."""
    dice = random.Random(f"{seed}/{link.name}")
    while True:
        deck = [*link.points, *[""] * len(link.points)]
        dice.shuffle(deck)
        for point in deck:
            whom = dice.choice([Whom.ALL, Whom.ALL, Whom.PYTHON, Whom.JVM])
            early, delay = dice.random() < 0.2, dice.uniform(0.2, 6)
            often = dice.choice([1, 2, 4]) if _recurs(point) else 1
            # Spark 4.2 refuses a checkpoint whose first `offsets/0` was only half written.
            often += point == SparkPoint.PLANNING
            yield Death(point, often, whom) if point else Death("", 1, whom, early, delay)


def _recurs(point: str) -> bool:
    return point in [*SparkPoint, *SourcePoint] or point not in ONCE
