"""What a wait on the epoch watermark waits for: one frozen value, shared by sensor and trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.epoch import NO_EPOCH, Watermark

__all__ = ["EpochCondition"]


@dataclass(frozen=True, slots=True)
class EpochCondition:
    """Exactly one of three: an epoch number, a moment that the newest epoch follows, an age.

    ``since`` is aware of its time zone; ``max_age`` is more than nothing.
    """

    epoch: int | None = None
    since: datetime | None = None
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.epoch, self.since, self.max_age)) != 1:
            raise SpecError("wait for exactly one of: an epoch, an advance, a greatest age")
        if self.epoch is not None and self.epoch < 0:
            raise SpecError(f"epoch must be 0 or more, got {self.epoch}: Spark's first epoch is 0")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise SpecError(f"max_age must be more than nothing, got {self.max_age}")

    def is_met(self, watermark: Watermark, now: datetime) -> bool:
        """Tell whether the wait is over; pure."""
        if watermark.epoch == NO_EPOCH:
            return False
        if self.epoch is not None:
            return watermark.epoch >= self.epoch
        if watermark.committed_at is None:
            return False
        committed = datetime.fromisoformat(watermark.committed_at)
        if self.since is not None:
            return committed > self.since
        return self.max_age is not None and now - committed <= self.max_age

    def __str__(self) -> str:
        if self.epoch is not None:
            return f"epoch {self.epoch}"
        if self.since is not None:
            return f"an epoch committed after {self.since.isoformat(timespec='milliseconds')}"
        return f"an epoch at most {self.max_age} old"

    def to_json(self) -> dict[str, Any]:
        """Return the condition as plain values, for a trigger's keyword arguments."""
        return {
            "epoch": self.epoch,
            "since": self.since.isoformat() if self.since else None,
            "max_age": self.max_age.total_seconds() if self.max_age else None,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` made."""
        since, seconds = given.get("since"), given.get("max_age")
        return cls(
            epoch=given.get("epoch"),
            since=datetime.fromisoformat(since) if since else None,
            max_age=timedelta(seconds=seconds) if seconds is not None else None,
        )
