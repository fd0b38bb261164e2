"""What a user can configure about one driver's commits, and the clock that measures them.

Among it are the user's answers about epochs in doubt, which nothing else can prove.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.decoding import shown, whole_text
from airflow_provider_lance.protocol.model import NO_EPOCH

__all__ = ["Clock", "CommitPolicy", "Moment", "OnHistoryGap", "OnRestore", "now"]


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
class OnHistoryGap:
    """The user's answer about the one epoch in doubt; without one, the query stops.

    The answer names the epoch and the fold after which versions are missing. An option that is left
    in place therefore never answers for a later gap: each claim folds, so a second gap about the
    same epoch, which a driver has written since, lies after another version. ``after_version`` is
    ``None`` only for an answer that is applied to the gap that was just read.
    """

    epoch_id: int | None = None
    landed: bool = False
    after_version: int | None = None

    @classmethod
    def parse(cls, text: object) -> OnHistoryGap:
        """Read ``fail``, ``committed:<epoch>@<version>`` or ``missing:<epoch>@<version>``.

        :raises SpecError: anything else.
        """
        if text == "fail":
            return cls()
        if isinstance(text, str):
            answer, _, named = text.partition(":")
            epoch, _, version = named.partition("@")
            if answer in ("committed", "missing"):
                with suppress(ValueError):
                    return cls(whole_text(epoch), answer == "committed", whole_text(version))
        raise SpecError(
            f"onHistoryGap={shown(text)}: use 'fail', 'committed:<epoch>@<version>' or "
            "'missing:<epoch>@<version>', as the HistoryGapError prints them"
        )

    def names(self, epoch_id: int, folded_version: int) -> bool:
        """Return whether the user has answered for this epoch, missing since this fold."""
        return self.epoch_id == epoch_id and self.after_version in (None, folded_version)

    def __str__(self) -> str:
        if self.epoch_id is None:
            return "fail"
        return f"{'committed' if self.landed else 'missing'}:{self.epoch_id}@{self.after_version}"


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


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """What a user can configure about commits; the defaults are the protocol's."""

    watermark_every: int = 10
    new_generation: bool = False
    on_history_gap: OnHistoryGap = OnHistoryGap()
    on_restore: OnRestore = OnRestore()
    backoff: Backoff = Backoff(preempted=5)
    fresh_seconds: float = 60.0
    """The longest time since the store was last read; cleanup must keep versions much longer."""
    slow_seconds: float = 2.0
    """A commit that took longer may have landed under a number that a cleanup freed."""
    clock: Clock = now
    barrier: bool = True
    """Off only in the experiment that shows why the barrier is needed."""
    chain_proof: bool = True
    """Off only in the experiment that shows why the proof of the chain is needed."""
