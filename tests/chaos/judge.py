"""Whether a dataset holds what was put into its source: pure, and it believes nobody.

The sink's watermark is a claim. What it claims must be there, whole and once; what Spark's log has
as done must be there whatever the sink claims; and nothing that Spark has not planned may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is seen of a query at one moment; epochs are -1 where there is none.

    ``watermark`` is what the sink claims, with ``missing`` a lower bound; ``planned`` and
    ``committed`` are the newest entries of Spark's logs. ``unreadable`` is why the newest version
    cannot be read, empty if it can.
    """

    rows: Counter[Any]
    watermark: int
    missing: int
    planned: int
    committed: int
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Rows that are not there, rows that are there too often, and the epoch compared with.

    ``unreadable`` is 1 if the newest version cannot be read: its rows cannot be counted.
    """

    epoch: int
    lost: int
    duplicated: int
    wrong: str = ""
    unreadable: int = 0

    @property
    def fine(self) -> bool:
        """Tell whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.wrong or self.unreadable)

    def deceives(self, healthy: bool) -> bool:
        """Tell whether a check that says healthy is wrong: rows are missing or unreadable."""
        return healthy and bool(self.lost or self.unreadable)


def compare(found: Counter[Hashable], wanted: Counter[Hashable]) -> tuple[int, int]:
    """Return how many rows are missing and how many are too many."""
    return (wanted - found).total(), (found - wanted).total()


def judge(seen: Evidence, expected: Callable[[int], Counter[Any]]) -> Verdict:
    """Compare a dataset with the input up to the epoch it claims to be at.

    :param expected: gives what must be there after an epoch; -1 is before the first.
    """
    least = max(seen.watermark, seen.committed)
    if seen.unreadable:
        return Verdict(least, 0, 0, f"unreadable: {seen.unreadable}", unreadable=1)
    if seen.watermark > seen.planned:
        return Verdict(least, 0, 0, f"epoch {seen.watermark} is claimed, {seen.planned} planned")
    # Where evidence was destroyed the claim is a lower bound, and one epoch is in doubt.
    most = max(least, seen.planned) if seen.missing else least
    verdicts = [
        Verdict(epoch, *compare(seen.rows, expected(epoch))) for epoch in range(least, most + 1)
    ]
    return min(verdicts, key=lambda outcome: outcome.lost + outcome.duplicated)
