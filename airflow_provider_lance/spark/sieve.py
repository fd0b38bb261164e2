"""Expectations on rows in Arrow: counted, and taken out of those that land.

Spark evaluates each condition in the micro-batch's own pass, as one more boolean column. The rows
are counted where they become Arrow anyway: in the task that writes them, or on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.spec.expectations import Action, Expectation

__all__ = ["FLAG", "Sieve"]

FLAG = "__lance_expect_"
"""The beginning of the columns that hold the expectations' values; they never reach the dataset."""

_SHOWN = 300


@dataclass(frozen=True)
class Sieve:
    """The expectations of a stream; travels to the executors with the write task."""

    expectations: tuple[Expectation, ...] = ()

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the name of each expectation's column, and its condition."""
        return tuple((_flag(n), each.condition) for n, each in enumerate(self.expectations))

    def sift(self, rows: pa.Table) -> tuple[pa.Table, RowChecks]:
        """Return the rows that go on, and the counts of all.

        :raises RowsRefusedError: a row does not meet an expectation whose action is `fail`.
        """
        counts: dict[str, Met] = {}
        dropped: pa.ChunkedArray | None = None
        for each, flags in self._unmet(rows, counts):
            if each.action is Action.FAIL:
                raise _failed(each, counts[each.name].unmet, rows, flags)
            if each.action is Action.DROP:
                dropped = flags if dropped is None else pc.or_(dropped, flags)
        if dropped is None:
            return rows, RowChecks(counts)
        kept = rows.filter(pc.invert(dropped))
        return kept, RowChecks(counts, dropped=rows.num_rows - kept.num_rows)

    def _unmet(
        self, rows: pa.Table, counts: dict[str, Met]
    ) -> Iterator[tuple[Expectation, pa.ChunkedArray]]:
        """Count all expectations; yield those that rows do not meet, and which rows they are."""
        found = []
        for number, each in enumerate(self.expectations):
            values = rows.column(_flag(number))
            met = pc.sum(values).as_py() or 0
            counts[each.name] = Met(met, rows.num_rows - met)
            if met < rows.num_rows:
                found.append((each, pc.invert(pc.fill_null(values, False))))
        yield from found


def _flag(number: int) -> str:
    return f"{FLAG}{number}"


def _failed(
    each: Expectation, unmet: int, rows: pa.Table, flags: pa.ChunkedArray
) -> RowsRefusedError:
    names = [name for name in rows.column_names if not name.startswith("__lance_")]
    try:
        example = shown(rows.select(names).filter(flags).slice(0, 1).to_pylist()[0], _SHOWN)
    except (UnicodeDecodeError, pa.lib.ArrowException):
        example = "a row with text that is not UTF-8"
    return RowsRefusedError(
        f"expectation {each.name!r} ({each.condition}) is not met by {unmet} rows or more, for "
        f"example {example}. Its action is fail: nothing of this epoch was committed. Correct the "
        "rows in the source or in sql, or set the action to quarantine, drop or warn"
    )
