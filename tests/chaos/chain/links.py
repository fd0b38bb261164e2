"""The three streams of a chain, and what each must make of the rows before it.

`landing` appends what is put into a folder. `cleaned` reads that and upserts one row for each id,
with how often it came and the sum of its amounts: a row read twice, or not at all, shows. `totals`
reads the changes of those rows and adds them up: what comes in is added, what goes is subtracted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.chaos.chain.source import SourcePoint
from tests.chaos.input import SCHEMA, Row, newest
from tests.chaos.plan import POINTS

LandedRow = dict[str, Any]


@dataclass(frozen=True)
class Link:
    """One stream: its query id, the dataset that it writes, and how it reads the one before."""

    name: str
    schema: pa.Schema
    sink: dict[str, Any] = field(default_factory=dict)
    sql: str | None = None
    source: dict[str, str] = field(default_factory=dict)
    reads: str = ""
    """The name of the stream whose dataset it reads; empty for the first."""

    @property
    def points(self) -> tuple[str, ...]:
        """Return the points at which its driver can be killed."""
        return (*POINTS, *([each.value for each in SourcePoint] if self.reads else []))


LANDING = Link("landing", SCHEMA)
CLEANED = Link(
    "cleaned",
    pa.schema([*SCHEMA, ("n", pa.int64()), ("total", pa.int64())]),
    {"outputMode": "update", "mergeKeys": ["id"], "deleteWhen": "op = 'd'"},
    "SELECT newest.*, n, total FROM (SELECT max_by(struct(*), seq) AS newest, count(*) AS n,"
    " sum(amount) AS total FROM source GROUP BY id)",
    reads=LANDING.name,
)
TOTALS = Link(
    "totals",
    pa.schema([("grp", pa.string()), ("n", pa.int64()), ("total", pa.int64())]),
    {"outputMode": "update", "mergeKeys": ["grp"], "deleteWhen": "n = 0"},
    "SELECT grp, sum(sign) AS n, sum(sign * total) AS total FROM (SELECT *, CASE WHEN _change_type"
    " IN ('insert', 'update_postimage') THEN 1 ELSE -1 END AS sign FROM source) GROUP BY grp",
    {"readChangeFeed": "true"},
    reads=CLEANED.name,
)
LINKS = (LANDING, CLEANED, TOTALS)

RELEASES = (Failpoint.RELEASE_CHECKED.value, Failpoint.RELEASE_DONE.value)
"""Points that only a driver reaches that is asked to stop."""


def expected_landing(files: Iterable[list[LandedRow]]) -> Counter[Row]:
    """Return what the first dataset must hold after these files."""
    return Counter(tuple(row.values()) for file in files for row in file)


def expected_cleaned(landed: Iterable[Row]) -> Counter[Row]:
    """Return what the second dataset must hold, by the rows of the first."""
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in landed]
    counts = Counter(row["id"] for row in rows)
    totals: Counter[int] = Counter()
    for row in rows:
        totals[row["id"]] += row["amount"]
    return Counter(
        (*row.values(), counts[row["id"]], totals[row["id"]])
        for row in newest(sorted(rows, key=lambda row: row["seq"]))
        if row["op"] != "d"
    )


def expected_totals(cleaned: Iterable[Row]) -> Counter[Row]:
    """Return what the third dataset must hold, by the rows of the second."""
    names = CLEANED.schema.names
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for each in cleaned:
        row = dict(zip(names, each, strict=True))
        counts[row["grp"]] += 1
        totals[row["grp"]] += row["total"]
    return Counter((grp, counts[grp], totals[grp]) for grp in counts)
