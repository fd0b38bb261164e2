"""Epochs without Spark: each contestant's times, and its table's size along the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.contestants.table import Facts, Table
from benchmarks.harness.measure import median, percentile, timed
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import rows


@dataclass(frozen=True)
class Window:
    """Epochs from ``first`` to ``last``, counted from 1; the facts are after the last."""

    first: int
    last: int
    p50: float
    p90: float
    facts: Facts

    @property
    def epochs(self) -> str:
        return f"{self.first}-{self.last}"


class Racer:
    """Gives a table epochs of so many rows, and stops for good when its time is over.

    :param window: how many epochs are summed up in a figure.
    :param budget: seconds; an epoch that began is ended.
    """

    def __init__(
        self, table: Table, epoch_rows: int, window: int, budget: float = math.inf
    ) -> None:
        self.table = table
        self.milliseconds: list[float] = []
        """From an Arrow table in memory to a landed commit, for each epoch."""
        self.facts: dict[int, Facts] = {}
        self._rows, self._window, self._left = epoch_rows, window, budget * 1000

    def epoch(self) -> None:
        """Time one epoch more, unless the time is over."""
        if self._left <= 0:
            return
        done = len(self.milliseconds)
        batch = rows(done * self._rows, self._rows)
        took = timed(lambda: self.table.epoch(batch))
        self.milliseconds.append(took)
        self._left -= took
        done += 1
        if done % self._window == 0:
            self.facts[done] = self.table.facts()

    def windows(self) -> list[Window]:
        """Return the windows that were completed."""
        return [self._window_to(last) for last in self.facts]

    def _window_to(self, last: int) -> Window:
        times = self.milliseconds[last - self._window : last]
        first = last - self._window + 1
        return Window(first, last, median(times), percentile(times, 0.9), self.facts[last])

    def end(self) -> int:
        """Give the table up; return how many epochs it took, after a count of its rows.

        :raises AssertionError: rows are missing, or there twice.
        """
        done = len(self.milliseconds)
        self.table.close()
        check(self.table, done * self._rows)
        return done


def check(table: Table, expected: int) -> None:
    """Fail unless a table has so many rows."""
    if (found := table.count_rows()) != expected:
        raise AssertionError(f"{type(table).__name__}: {found} rows, expected {expected}")


def note_windows(sheet: Sheet, racer: Racer, **labels: str) -> None:
    """Put a racer's windows on the sheet."""
    for window in racer.windows():
        where = {**labels, "epochs": window.epochs}
        sheet.add("commit_p50", window.p50, "ms", **where)
        sheet.add("commit_p90", window.p90, "ms", **where)
        sheet.add("fragments", window.facts.fragments, "fragments", **where)
        sheet.add("manifest_bytes", window.facts.manifest_bytes, "bytes", **where)
        sheet.add("stored_bytes", window.facts.stored_bytes, "bytes", **where)
