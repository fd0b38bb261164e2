"""The user's answers about epochs in doubt, which nothing else can prove; each names its epochs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import shown, whole_text
from airflow_provider_lance.protocol.model import NO_EPOCH

__all__ = ["OnHistoryGap", "OnRestore"]


@dataclass(frozen=True, slots=True)
class OnHistoryGap:
    """The user's answer about the one epoch in doubt; without one, the query stops.

    The answer names its epoch, so an option that stays set has no effect on later epochs.
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
        if isinstance(text, str):
            answer, _, epoch = text.partition(":")
            if answer in ("committed", "missing"):
                with suppress(ValueError):
                    return cls(whole_text(epoch), answer == "committed")
        raise SpecError(
            f"onHistoryGap={shown(text)}: use 'fail', 'committed:<epoch>' or 'missing:<epoch>'"
        )

    def names(self, epoch_id: int) -> bool:
        """Return whether the user has answered for this epoch."""
        return self.epoch_id == epoch_id


@dataclass(frozen=True, slots=True)
class OnRestore:
    """The epochs whose loss the user has accepted; without an answer, the query stops.

    The answer names its epochs, so an option that stays set has no effect on later ones.
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
        if isinstance(text, str) and text.startswith("accept:"):
            first, _, last = text.removeprefix("accept:").partition("-")
            with suppress(ValueError):
                return cls(whole_text(first), whole_text(last, least=whole_text(first)))
        raise SpecError(
            f"onRestore={shown(text)}: use 'fail' or 'accept:<first>-<last>', with the "
            "epochs whose rows you know to be gone"
        )

    def covers(self, epochs: tuple[int, int]) -> bool:
        """Return whether the user has accepted the loss of these epochs, first and last."""
        return self.first <= epochs[0] and epochs[1] <= self.last

    def __str__(self) -> str:
        return f"accept:{self.first}-{self.last}" if self.last > NO_EPOCH else "fail"
