"""Where and when drivers are killed: drawn from a seed, every point as often as the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.chain.links import Link
from tests.chaos.chain.source import SourcePoint
from tests.chaos.plan import ONCE, SparkPoint, Whom

ANY = "any moment"

FED_FOR = 3
"""The first stream's drivers do so many times the epochs: the others live on them."""


@dataclass(frozen=True, slots=True)
class Death:
    """One driver's end: at a point that is reached so many times, or at any moment.

    Then it comes ``delay`` seconds after the driver's birth, or if ``epochs`` is not 0, after so
    many of its epochs are done.
    """

    point: str = ""
    occurrence: int = 1
    whom: Whom = Whom.ALL
    epochs: int = 0
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
            epochs, delay = dice.choice([0, 1, 1, 2, 4]), dice.uniform(0, 3)
            epochs *= 1 if link.reads else FED_FOR
            often = dice.choice([1, 2, 4]) if _recurs(point) else 1
            yield Death(point, often, whom) if point else Death("", 1, whom, epochs, delay)


def _recurs(point: str) -> bool:
    return point in [*SparkPoint, *SourcePoint] or point not in ONCE
