"""How large will an epoch be? Told by the ones before it, before any of it is read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EpochSizeEstimate", "Size"]


@dataclass(frozen=True, slots=True)
class Size:
    """How much an epoch is: rows, and bytes in memory."""

    rows: int
    bytes: int


class EpochSizeEstimate:
    """Expects of an epoch what came per second before it, for the seconds since.

    A stream that stood still finds a backlog when it goes on, so the size of the last epoch alone
    says too little. Nothing is expected of a run's first two epochs.
    """

    def __init__(self) -> None:
        self.last: Size | None = None
        """How much the epoch before was; ``None`` before a run's first."""
        self._began = 0.0
        self._seconds: float | None = None

    def note(self, began: float, size: Size) -> None:
        """Take note of an epoch's size, and when it began in seconds of a monotonic clock."""
        self._seconds = began - self._began if self.last else None
        self._began, self.last = began, size

    def at(self, now: float) -> Size | None:
        """Return the size to expect of an epoch that begins now; ``None`` if that is unknown."""
        if self.last is None or not self._seconds:
            return None
        growth = max(1.0, (now - self._began) / self._seconds)
        return Size(round(self.last.rows * growth), round(self.last.bytes * growth))
