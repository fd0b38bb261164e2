"""Bounded waiting between attempts; standard library only, since it runs on the cluster."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Attempt", "Backoff"]


@dataclass(slots=True)
class Attempt:
    """One attempt; the caller notes here what went wrong."""

    number: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """``attempts`` tries with waits that double from ``first`` to ``longest`` seconds, jittered."""

    attempts: int = 12
    first: float = 0.02
    longest: float = 2.0

    def __iter__(self) -> Iterator[Attempt]:
        """Yield the attempts; sleep before each one but the first.

        :raises Exception: the error noted by the last attempt, when no attempts are left.
        """
        attempt, wait = Attempt(), self.first
        for number in range(self.attempts):
            if number:
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, self.longest)
            attempt = Attempt(number)
            yield attempt
        if attempt.error:
            raise attempt.error
