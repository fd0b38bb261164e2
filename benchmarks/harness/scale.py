"""How large a run is."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice")


class Scale(StrEnum):
    """``quick`` shows that everything runs and which way it points; ``full`` gives the figures."""

    QUICK = "quick"
    FULL = "full"

    def pick(self, *, quick: Choice, full: Choice) -> Choice:
        """Return the setting of this scale."""
        return full if self is Scale.FULL else quick
