"""Bounded waiting between attempts; standard library only, since it runs on the cluster."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from airflow_provider_lance.exceptions import CommitPreemptedError

__all__ = ["Attempt", "Backoff"]


@dataclass(slots=True)
class Attempt:
    """One attempt; the caller notes here what went wrong."""

    number: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """``attempts`` tries with waits that double from ``first`` to ``longest`` seconds, jittered.

    ``preempted`` tries that end in :class:`CommitPreemptedError` count as one: the store answers,
    and another writer's commit has landed.
    """

    attempts: int = 12
    first: float = 0.02
    longest: float = 2.0
    preempted: int = 1

    def __iter__(self) -> Iterator[Attempt]:
        """Yield the attempts; sleep before each one but the first.

        :raises Exception: the error noted by the last attempt, when no attempts are left.
        """
        wait, left = self.first, self.attempts * self.preempted
        for number in count():
            if number:
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, self.longest)
            attempt = Attempt(number)
            yield attempt
            left -= 1 if isinstance(attempt.error, CommitPreemptedError) else self.preempted
            if left <= 0:
                break
        if attempt.error:
            raise attempt.error
