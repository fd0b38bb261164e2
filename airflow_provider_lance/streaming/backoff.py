"""Bounded waiting between attempts; standard library only, since it runs on the cluster."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """``attempts`` tries with waits that double from ``first`` to ``longest`` seconds, jittered."""

    attempts: int = 12
    first: float = 0.02
    longest: float = 2.0

    def __iter__(self) -> Iterator[int]:
        """Yield 1, 2, … ``attempts``, sleeping before every one but the first."""
        wait = self.first
        for attempt in range(1, self.attempts + 1):
            if attempt > 1:
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, self.longest)
            yield attempt
