"""When a lost driver is replaced, and when no longer: pure arithmetic over frozen values."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH

__all__ = ["RestartHistory", "RestartPolicy"]


@dataclass(frozen=True, slots=True)
class RestartPolicy(JsonRecord):
    """Waits double from ``first`` to ``longest`` seconds, with jitter down to half.

    ``most`` bounds the restarts without progress between them. A driver that lived for ``healthy``
    seconds counts as progress, and the waits start at ``first`` again.
    """

    most: int = 5
    first: float = 10.0
    longest: float = 300.0
    healthy: float = 600.0

    json_name = "a restart policy"

    def __post_init__(self) -> None:
        if self.most < 0:
            raise SpecError(f"max_restarts must be 0 or more, got {self.most}")
        if not 0 < self.first <= self.longest:
            raise SpecError(
                "restart_delay must be more than 0 s and at most max_restart_delay, got "
                f"{self.first} s and {self.longest} s"
            )
        if not self.healthy > 0:
            raise SpecError(f"healthy_after must be more than 0 s, got {self.healthy} s")


@dataclass(frozen=True, slots=True)
class RestartHistory(JsonRecord):
    """The restarts of one task try so far.

    ``fruitless`` counts those since an epoch was committed or a driver stayed healthy, ``step``
    those since a driver stayed healthy. ``watermark`` is the highest seen.
    """

    total: int = 0
    fruitless: int = 0
    step: int = 0
    watermark: int = NO_EPOCH

    json_name = "restarts"

    def lost(self, policy: RestartPolicy, *, watermark: int | None, lived: float) -> Self:
        """Return the history after the loss of a driver that lived ``lived`` seconds."""
        healthy = lived >= policy.healthy
        reached = self.watermark if watermark is None else max(watermark, self.watermark)
        progress = healthy or reached > self.watermark
        return replace(
            self,
            fruitless=0 if progress else self.fruitless,
            step=0 if healthy else self.step,
            watermark=reached,
        )

    def next(self) -> Self:
        """Return the history with one more restart."""
        return replace(self, total=self.total + 1, fruitless=self.fruitless + 1, step=self.step + 1)

    def may_restart(self, policy: RestartPolicy) -> bool:
        """Return whether the bounds allow one more restart."""
        return self.fruitless < policy.most

    def delay(self, policy: RestartPolicy) -> float:
        """Return the seconds to wait before the next restart."""
        longest = min(policy.longest, policy.first * 2.0 ** min(self.step, 32))
        return longest * random.uniform(0.5, 1.0)
