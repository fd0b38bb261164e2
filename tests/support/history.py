"""A history table in plain Python: what `scdType=2` must make of a stream of records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

__all__ = ["Record", "history"]

UPSERT, DELETE, TRUNCATE = 0, 1, 2


@dataclass(frozen=True)
class Record:
    """One change: of a key, or (a truncate) of all."""

    operation: int
    sequence: Any
    key: Any = None
    values: tuple[Any, ...] = ()


def _order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((each is not None, each if each is not None else 0) for each in values)


def history(
    epochs: Iterable[Sequence[Record]], tracked: Sequence[int] = ()
) -> dict[tuple[Any, Any], tuple[Any, tuple[Any, ...]]]:
    """Return the table: (key, start) to (end, values).

    :param tracked: the positions of the tracked values; none for all records.
    """
    known: dict[Any, dict[Any, Record]] = {}
    truncates = set()
    for epoch in epochs:
        truncates |= {each.sequence for each in epoch if each.operation == TRUNCATE}
        rows = [each for each in epoch if each.operation != TRUNCATE]
        rows.sort(key=lambda each: (each.key, each.sequence, each.operation, _order(each.values)))
        for (key, sequence), alike in groupby(rows, lambda each: (each.key, each.sequence)):
            last = list(alike)[-1]
            mine = known.setdefault(key, {})
            if sequence not in mine or last.operation == DELETE:
                mine[sequence] = last
    table = {}
    for key, mine in known.items():
        records = {**mine, **{each: Record(DELETE, each, key) for each in truncates}}
        open_, before = None, None
        for sequence in sorted(records):
            record = records[sequence]
            alike = (
                bool(tracked)
                and before is not None
                and record.operation == UPSERT
                and all(before.values[each] == record.values[each] for each in tracked)
            )
            if open_ is not None and not alike:
                table[key, open_] = (sequence, table[key, open_][1])
                open_ = None
            if record.operation == UPSERT:
                open_ = open_ if alike else sequence
                table[key, open_] = (None, record.values)
            before = record if record.operation == UPSERT else None
    return table
