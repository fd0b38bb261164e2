"""What can be configured about one driver's commits, and the clock that measures them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_lance.protocol.answers import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.backoff import Backoff

__all__ = ["Clock", "CommitPolicy", "Moment", "now"]


_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Moment(NamedTuple):
    """A moment by two clocks, in seconds.

    `CLOCK_BOOTTIME` counts suspension and cannot be set. The wall clock shows a pause that a
    hypervisor hides from it, once the wall clock was set after a resume.
    """

    boot: float
    wall: float

    def since(self, earlier: Moment) -> float:
        """Return the seconds since an earlier moment, by the clock that counted more."""
        return max(self.boot - earlier.boot, abs(self.wall - earlier.wall))


Clock = Callable[[], Moment]


def now() -> Moment:
    """Return this moment; a system without `CLOCK_BOOTTIME` uses the monotonic clock."""
    return Moment(time.clock_gettime(_BOOT), time.time())


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """What a user can configure about commits; the defaults are the protocol's."""

    watermark_every: int = 10
    new_generation: bool = False
    on_history_gap: OnHistoryGap = OnHistoryGap()
    on_restore: OnRestore = OnRestore()
    backoff: Backoff = Backoff()
    fresh_seconds: float = 60.0
    """The longest time since the store was last read; cleanup must keep versions much longer."""
    slow_seconds: float = 2.0
    """A commit that took longer may have landed under a number that a cleanup freed."""
    clock: Clock = now
    barrier: bool = True
    """Off only in the experiment that shows why the barrier is needed."""
    chain_proof: bool = True
    """Off only in the experiment that shows why the proof of the chain is needed."""
