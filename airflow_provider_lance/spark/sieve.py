"""Rows in Arrow that land, and rows that do not: expectations, and rows that the sink refuses.

Spark evaluates each condition in the micro-batch's own pass, as one more boolean column. The rows
are counted where they become Arrow anyway: in the task that writes them, or on the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.protocol.row_json import encode_rows
from airflow_provider_lance.spark.aside import Aside, Origin, Refused
from airflow_provider_lance.spec.expectations import Action, Expectation

__all__ = ["DELETE_FLAG", "FLAG", "REFUSED", "Sieve", "Sifted"]

DELETE_FLAG = "__lance_delete"
"""The boolean column that holds the value of `deleteWhen`; it never reaches the dataset."""

FLAG = "__lance_expect_"
"""The beginning of the columns that hold the expectations' values; they never reach the dataset."""

REFUSED = "__lance_refused"
"""The text column in which an envelope says why it could not be taken off a row; null if it was."""

_SHOWN = 300


@dataclass(frozen=True)
class Sifted:
    """Rows that go on, the counts of all rows, and those for the quarantine."""

    rows: pa.Table
    checks: RowChecks = RowChecks()
    aside: Sequence[Aside] = ()


@dataclass(frozen=True)
class Sieve:
    """What the rows of a stream must be to land; travels to the executors with the write task.

    ``keeps_refused`` says that rows which the sink refuses go to the quarantine; without it they
    end the query. ``origin`` is the epoch's, where rows may go to the quarantine.
    """

    expectations: tuple[Expectation, ...] = ()
    keeps_refused: bool = False
    origin: Origin | None = None

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the name of each expectation's column, and its condition."""
        return tuple((_flag(n), each.condition) for n, each in enumerate(self.expectations))

    def sift(self, rows: pa.Table) -> Sifted:
        """Take out the rows that may not land, and count.

        :raises RowsRefusedError: a row does not meet an expectation whose action is `fail`, or has
            an envelope that could not be taken off, and such rows are not kept.
        """
        rows, aside = self._unopened(rows)
        counts: dict[str, Met] = {}
        unmet: dict[Action, list[pa.ChunkedArray]] = {}
        for number, each in enumerate(self.expectations):
            values = rows.column(_flag(number))
            met = pc.sum(values).as_py() or 0
            counts[each.name] = Met(met, rows.num_rows - met)
            if met < rows.num_rows:
                flags = pc.invert(pc.fill_null(values, False))
                if each.action is Action.FAIL:
                    raise _failed(each, rows.filter(flags))
                unmet.setdefault(each.action, []).append(flags)
        set_aside, dropped = unmet.get(Action.QUARANTINE, []), unmet.get(Action.DROP, [])
        before = rows.num_rows
        if set_aside:
            found = rows.filter(reduce(pc.or_, set_aside))
            before -= found.num_rows
            aside = [*aside, Aside(found, self._why(found), _deletes(found))]
        if set_aside or dropped:  # filtered once: it copies the rows
            rows = rows.filter(pc.invert(reduce(pc.or_, [*set_aside, *dropped])))
        taken = sum(each.rows.num_rows for each in aside)
        checks = RowChecks(counts, dropped=before - rows.num_rows, quarantined=taken)
        return Sifted(rows, checks, aside)

    def _unopened(self, rows: pa.Table) -> tuple[pa.Table, list[Aside]]:
        """Take out the rows whose envelope could not be taken off; they are not counted further."""
        if REFUSED not in rows.column_names:
            return rows, []
        why = rows.column(REFUSED)
        if why.null_count == rows.num_rows:
            return rows, []
        found = rows.filter(pc.is_valid(why))
        texts = found.column(REFUSED).to_pylist()
        if not self.keeps_refused:
            raise RowsRefusedError(
                f"{len(texts)} rows or more cannot be unpacked, for example: "
                f"{shown(texts[0], _SHOWN)}. Nothing of this epoch was committed. Correct them in "
                "the source, or set onRefusedRow=quarantine"
            )
        refused = [Refused("the envelope cannot be taken off", text) for text in texts]
        return rows.filter(pc.is_null(why)), [Aside(found, refused, _deletes(found))]

    def without(self, sifted: Sifted, refused: dict[int, RowsRefusedError]) -> Sifted:
        """Take out further rows, which the sink refuses, by their positions."""
        positions = sorted(refused)
        found = sifted.rows.take(pa.array(positions, pa.int64()))
        why = [
            Refused(refused[each].reason, refused[each].detail, names)
            for each, names in zip(positions, self._missed(found), strict=True)
        ]
        gone = pc.is_in(
            pa.array(range(sifted.rows.num_rows), pa.int64()), pa.array(positions, pa.int64())
        )
        return Sifted(
            sifted.rows.filter(pc.invert(gone)),
            sifted.checks + RowChecks(quarantined=len(positions)),
            [*sifted.aside, Aside(found, why, _deletes(found))],
        )

    def _why(self, rows: pa.Table) -> list[Refused]:
        """Return the reasons of rows that miss an expectation whose action is `quarantine`."""
        keeping = {e.name for e in self.expectations if e.action is Action.QUARANTINE}
        return [
            Refused(
                f"expectation {', '.join(name for name in names if name in keeping)}", "", names
            )
            for names in self._missed(rows)
        ]

    def _missed(self, rows: pa.Table) -> list[list[str]]:
        """Return the names of the expectations that each row does not meet."""
        met = [rows.column(_flag(n)).to_pylist() for n in range(len(self.expectations))]
        return [
            [each.name for each, of in zip(self.expectations, met, strict=True) if not of[row]]
            for row in range(rows.num_rows)
        ]


def _flag(number: int) -> str:
    return f"{FLAG}{number}"


def _deletes(rows: pa.Table) -> list[bool | None]:
    if DELETE_FLAG not in rows.column_names:
        return [False] * rows.num_rows
    return [bool(each) for each in rows.column(DELETE_FLAG).to_pylist()]


def _failed(each: Expectation, rows: pa.Table) -> RowsRefusedError:
    names = [name for name in rows.column_names if not name.startswith("__lance_")]
    example = encode_rows(rows.select(names).slice(0, 1))[0]
    return RowsRefusedError(
        f"expectation {each.name!r} ({each.condition}) is not met by {rows.num_rows} rows or more, "
        f"for example {example[:_SHOWN]}. Its action is fail: nothing of this epoch was committed. "
        "Correct the rows in the source or in sql, or set the action to quarantine, drop or warn"
    )
