"""The condition of a wait on the epoch watermark, and the progress towards it: pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import (
    Reader,
    finite,
    moment,
    shown,
    whole,
)
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH, Watermark

__all__ = ["Advance", "AdvanceCondition", "EpochCondition", "Position"]


def _span(value: object) -> timedelta:
    try:
        return timedelta(seconds=finite(value))
    except OverflowError:
        raise ValueError("a number of seconds") from None


@dataclass(frozen=True, slots=True)
class EpochCondition(JsonRecord):
    """Exactly one of three: an epoch number, a time that the newest epoch must follow, an age.

    ``since`` has a time zone; ``max_age`` is above 0.
    """

    epoch: int | None = None
    since: datetime | None = None
    max_age: timedelta | None = None

    json_name = "a condition"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "epoch": whole,
        "since": lambda value: datetime.fromisoformat(moment(value)),
        "max_age": _span,
    }

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.epoch, self.since, self.max_age)) != 1:
            raise SpecError("wait for exactly one of: an epoch, an advance, a greatest age")
        if self.epoch is not None and self.epoch < 0:
            raise SpecError(f"epoch must be 0 or more, got {self.epoch}: Spark's first epoch is 0")
        if self.max_age is not None and self.max_age <= timedelta(0):
            raise SpecError(f"max_age must be more than 0, got {self.max_age}")

    def is_met(self, watermark: Watermark, now: datetime) -> bool:
        """Return whether the wait is over; pure."""
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


@dataclass(frozen=True, slots=True)
class Position(JsonRecord):
    """A point in a query's history: everything in the dataset's versions up to ``version``.

    ``epoch`` and ``generation`` are the watermark there. ``token`` and ``run_id`` are those of the
    query's owner, and distinguish the dataset from one created in its place.
    """

    version: int = 0
    epoch: int = NO_EPOCH
    generation: int = 0
    token: int = 0
    run_id: str = ""

    json_name = "a position"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        **dict.fromkeys(("version", "generation", "token"), whole),
        "epoch": partial(whole, least=NO_EPOCH),
    }

    @classmethod
    def read_whole(cls, given: object) -> Self:
        """Read what ``to_json`` made; without a part, the trigger would start at the beginning.

        :raises ValueError: a part is missing or has another form.
        """
        try:
            if not isinstance(given, Mapping) or not cls().to_json().keys() <= given.keys():
                raise ValueError("a part is missing")
            return cls.read_json(given)
        except ValueError as error:
            raise ValueError(f"{shown(given)} cannot be read as a position: {error}") from None


@dataclass(frozen=True, slots=True)
class Advance:
    """What was committed between two positions, as far as the versions between them show.

    ``missing`` counts the versions that were cleaned up; they may have held epochs.
    """

    since: Position
    to: Position
    epochs: int = 0
    rows: int = 0
    missing: int = 0

    @property
    def exact(self) -> bool:
        """Return whether no epoch can be missing; otherwise epochs and rows are lower bounds."""
        if not self.missing:
            return True
        return self._same_numbers and self.to.epoch - self.since.epoch == self.epochs

    @property
    def most_epochs(self) -> int:
        """Return the number of epochs; if not exact, the highest possible number."""
        if self.exact:
            return self.epochs
        before = self.since.epoch if self._same_numbers else NO_EPOCH
        return max(self.epochs, self.to.epoch - before)

    @property
    def _same_numbers(self) -> bool:
        return self.since.generation == self.to.generation


@dataclass(frozen=True, slots=True)
class AdvanceCondition:
    """At most one of two: a number of epochs or a number of rows; without either, one epoch."""

    epochs: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.rows is not None:
            raise SpecError(
                "give every_epochs or every_rows, not both: got "
                f"{shown(self.epochs)} epochs and {shown(self.rows)} rows"
            )
        for name, number in (("every_epochs", self.epochs), ("every_rows", self.rows)):
            if number is not None and (type(number) is not int or number < 1):
                raise SpecError(f"{name} must be a whole number of 1 or more, got {shown(number)}")

    def is_met(self, advance: Advance) -> bool:
        """Return whether to fire; pure.

        If rows or epochs are not exact, this fires too early rather than never.
        """
        if self.rows is None:
            return advance.most_epochs >= (self.epochs or 1)
        return advance.rows >= self.rows or (not advance.exact and advance.most_epochs > 0)

    def __str__(self) -> str:
        if self.rows is None:
            return f"every_epochs={self.epochs or 1}"
        return f"every_rows={self.rows}"
