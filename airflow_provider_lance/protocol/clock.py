"""A clock for ages that guard a commit: it counts the time in which a machine was suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Clock", "Moment", "now"]

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Moment(NamedTuple):
    """A moment by two clocks, in seconds.

    `CLOCK_BOOTTIME` counts suspension and cannot be set; the wall clock shows what a hypervisor
    hides from it, once it was set after a resume.
    """

    boot: float
    wall: float

    def since(self, earlier: Moment) -> float:
        """Return the seconds since an earlier moment, by the clock that saw more of them."""
        return max(self.boot - earlier.boot, abs(self.wall - earlier.wall))


Clock = Callable[[], Moment]


def now() -> Moment:
    """Return this moment; where the system has no `CLOCK_BOOTTIME`, the monotonic clock stands."""
    return Moment(time.clock_gettime(_BOOT), time.time())
