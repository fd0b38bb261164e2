"""What a user says of epochs that nobody else can tell of; each answer names its epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.epoch import NO_EPOCH

__all__ = ["OnHistoryGap", "OnRestore"]


@dataclass(frozen=True, slots=True)
class OnHistoryGap:
    """What the user knows of the one epoch in doubt; by default nothing, and the query stops.

    Naming the epoch makes a forgotten option harmless: it answers for that epoch only.
    """

    epoch_id: int | None = None
    landed: bool = False

    @classmethod
    def parse(cls, text: object) -> OnHistoryGap:
        """Read ``fail``, ``committed:<epoch>`` or ``missing:<epoch>``.

        :raises SpecError: anything else.
        """
        if text == "fail":
            return cls()
        if found := re.fullmatch(r"(committed|missing):(\d+)", str(text)):
            return cls(int(found[2]), found[1] == "committed")
        raise SpecError(
            f"onHistoryGap={text!r}: use 'fail', 'committed:<epoch>' or 'missing:<epoch>'"
        )

    def names(self, epoch_id: int) -> bool:
        """Tell whether the user has answered for this epoch."""
        return self.epoch_id == epoch_id


@dataclass(frozen=True, slots=True)
class OnRestore:
    """The epochs whose loss the user has accepted; by default none, and the query stops.

    Naming them makes a forgotten option harmless: it answers for these epochs only.
    """

    first: int = 0
    last: int = NO_EPOCH

    @classmethod
    def parse(cls, text: object) -> OnRestore:
        """Read ``fail`` or ``accept:<first>-<last>``.

        :raises SpecError: anything else.
        """
        if text == "fail":
            return cls()
        found = re.fullmatch(r"accept:([0-9]{1,18})-([0-9]{1,18})", str(text))
        if found and int(found[1]) <= int(found[2]):
            return cls(int(found[1]), int(found[2]))
        raise SpecError(
            f"onRestore={str(text)[:100]!r}: use 'fail' or 'accept:<first>-<last>', with the "
            "epochs whose rows you know to be gone"
        )

    def covers(self, epochs: tuple[int, int]) -> bool:
        """Tell whether the user has accepted the loss of a span of epochs."""
        return self.first <= epochs[0] and epochs[1] <= self.last

    def __str__(self) -> str:
        return f"accept:{self.first}-{self.last}" if self.last > NO_EPOCH else "fail"
