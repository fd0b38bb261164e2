"""What the stateful operators of a query hold, as Spark's progress says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from airflow_provider_lance.protocol.decoding import moment, whole
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["OperatorState", "QueryState", "query_state_of", "too_late_of"]

_UNKNOWN_TIME = "1970-01-01T00:00:00.000Z"
"""Spark's event-time watermark before the first row, and of a query that has none."""
_count = partial(whole, least=0)


@dataclass(frozen=True, slots=True)
class OperatorState(JsonRecord):
    """One stateful operator, such as ``stateStoreSave``: rows and bytes of memory that it holds.

    ``too_late`` counts the rows that reached it behind the event-time watermark and were dropped:
    those of one trigger in Spark's progress, those of the driver's run in a heartbeat.
    """

    name: str
    rows: int = 0
    bytes: int = 0
    too_late: int = 0

    json_name = "a stateful operator"
    json_readers = {"rows": _count, "bytes": _count, "too_late": _count}  # noqa: RUF012


def _operators(given: object) -> tuple[OperatorState, ...]:
    if not isinstance(given, list | tuple):
        raise ValueError("a list of stateful operators")
    return tuple(map(OperatorState.read_json, given))


@dataclass(frozen=True, slots=True)
class QueryState(JsonRecord):
    """A query's state: its operators in Spark's order, and the event-time watermark if it has one.

    The event-time watermark says up to which time the query expects no more rows. It is not the
    epoch watermark.
    """

    operators: tuple[OperatorState, ...]
    event_time_watermark: str | None = None

    json_name = "a query's state"
    json_readers = {"operators": _operators, "event_time_watermark": moment}  # noqa: RUF012

    @property
    def rows(self) -> int:
        """Return the rows of all operators."""
        return sum(each.rows for each in self.operators)

    @property
    def bytes(self) -> int:
        """Return the bytes of memory of all operators."""
        return sum(each.bytes for each in self.operators)

    @property
    def too_late(self) -> int:
        """Return how many rows were dropped behind the event-time watermark."""
        return sum(each.too_late for each in self.operators)

    @classmethod
    def found_in(cls, given: object) -> Self | None:
        """Read what :meth:`to_json` made; ``None`` where it is missing or has another form."""
        try:
            return cls.read_json(given)
        except ValueError:
            return None


def too_late_of(progress: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how many rows each operator dropped in one trigger."""
    return tuple(_whole(each, "numRowsDroppedByWatermark") for each in _parts(progress))


def query_state_of(progress: Mapping[str, Any], too_late: Sequence[int]) -> QueryState | None:
    """Return a query's state from its progress; ``None`` if it keeps none.

    :param too_late: the rows that each operator has dropped in the driver's run.
    """
    counted = [*too_late, *[0] * len(_parts(progress))]
    operators = tuple(
        OperatorState(
            str(each.get("operatorName") or "unknown"),
            _whole(each, "numRowsTotal"),
            _whole(each, "memoryUsedBytes"),
            counted[place],
        )
        for place, each in enumerate(_parts(progress))
    )
    times = progress.get("eventTime")
    at = times.get("watermark") if isinstance(times, Mapping) else None
    return QueryState(operators, at if at != _UNKNOWN_TIME else None) if operators else None


def _parts(progress: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = progress.get("stateOperators")
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []


def _whole(part: Mapping[str, Any], name: str) -> int:
    value = part.get(name)
    return max(0, value) if isinstance(value, int) else 0
