"""How much one epoch reads; pure."""

from __future__ import annotations

from airflow_provider_lance.source.changes import VersionChange
from airflow_provider_lance.source.options import SourceOptions
from airflow_provider_lance.source.parts import Part

__all__ = ["Budget"]


class Budget:
    """What one epoch may still read."""

    def __init__(self, options: SourceOptions, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited
        self._rows = options.max_rows
        self._bytes = options.max_bytes if options.max_bytes is not None else 2**63
        self._versions = options.max_versions
        self._is_new = True

    def take(self, change: VersionChange, first: int) -> int:
        """Return how many units of a version are read once this epoch ends; ``first`` were."""
        self._versions -= change.units > first
        if self._unlimited:
            return change.units
        taken = before = 0
        for part in change.parts:
            begin = max(0, first - before)
            if begin < part.units:
                fitting = self._fit(part, part.units - begin)
                self._rows -= fitting * part.rows_per_unit
                self._bytes -= fitting * part.unit_size
                taken = before + begin + fitting
                if begin + fitting < part.units:
                    return max(first, taken)
            before += part.units
        return before

    def _fit(self, part: Part, units: int) -> int:
        most = min(
            units,
            max(0, self._rows) // part.rows_per_unit,
            max(0, self._bytes) // max(1, part.unit_size),
        )
        if self._is_new:  # an epoch that reads nothing would not end
            most = max(1, most)
        self._is_new = False
        return most

    def is_spent(self) -> bool:
        """Return whether the next version belongs to the next epoch."""
        return not self._unlimited and (self._versions <= 0 or self._rows <= 0 or self._bytes <= 0)
