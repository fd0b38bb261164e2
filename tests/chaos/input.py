"""What is put into a source, and what a dataset must hold after it: counted here, asked nobody.

Files are read in their order, mostly one an epoch; which epoch read how many, Spark's own log says.
Amounts are whole numbers, so that a sum does not depend on its order.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.plan import Mode

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("seq", pa.int64()),
        ("grp", pa.string()),
        ("amount", pa.int64()),
        ("op", pa.string()),
    ]
)
DDL = "id BIGINT, seq BIGINT, grp STRING, amount BIGINT, op STRING"
SQL = {
    Mode.APPEND: None,
    Mode.UPSERT: "SELECT newest.* FROM"
    " (SELECT max_by(struct(*), seq) AS newest FROM source GROUP BY id)",
    Mode.COMPLETE: "SELECT grp, count(*) AS n, sum(amount) AS total FROM source GROUP BY grp",
}
"""What a stream makes of it. An upsert's epoch that reads two files may not have a key twice."""

KEYS = 60
"""So many different ids does an upsert's input have: most rows replace another."""

Row = tuple[Any, ...]


def rows_of(mode: Mode, seed: str, number: int) -> list[dict[str, Any]]:
    """Return the rows of one file: ids never come again in append, and once a file in upsert."""
    dice = random.Random(f"{seed}/file/{number}")
    count = dice.choice([1, 7, 20, 20, 60])
    if mode is Mode.UPSERT:
        ids = dice.sample(range(KEYS), min(count, KEYS))
    else:
        ids = [number * 1000 + place for place in range(count)]
    return [
        {
            "id": id_,
            "seq": number,
            "grp": f"g{dice.randint(0, 6)}",
            "amount": dice.randint(1, 1000),
            "op": "d" if dice.random() < 0.15 else "u",
        }
        for id_ in ids
    ]


def expected(mode: Mode, files: Iterable[list[dict[str, Any]]]) -> Counter[Row]:
    """Return what a dataset holds that has taken in these files, each once, in this order."""
    rows = [row for file in files for row in file]
    if mode is Mode.APPEND:
        return Counter(tuple(row.values()) for row in rows)
    if mode is Mode.UPSERT:
        return Counter(tuple(row.values()) for row in newest(rows) if row["op"] != "d")
    counts: Counter[str] = Counter(row["grp"] for row in rows)
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["grp"]] += row["amount"]
    return Counter((grp, counts[grp], totals[grp]) for grp in counts)


def newest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last row of each id."""
    return list({row["id"]: row for row in rows}.values())


class Source:
    """A folder that a stream reads, and all that was ever put into it."""

    def __init__(self, folder: Path, mode: Mode, seed: str) -> None:
        self.folder, self.mode = folder, mode
        self.files: list[list[dict[str, Any]]] = []
        self._seed, self._born = seed, int(time.time()) - 3600
        folder.mkdir(parents=True)

    def add(self, files: int = 1) -> None:
        """Put files in; Spark reads them in this order."""
        for _ in range(files):
            number = len(self.files)
            rows = rows_of(self.mode, self._seed, number)
            hidden = self.folder / f"_{number:06}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), hidden)
            # Spark takes files in the order of their times, which may fall into one millisecond.
            os.utime(hidden, (self._born + number, self._born + number))
            self.files.append(rows)
            hidden.rename(self.folder / f"{number:06}.parquet")

    def expected(self, files: int, lost: Container[int] = ()) -> Counter[Row]:
        """Return what the dataset must hold after so many files, of which some are lost."""
        return expected(self.mode, [self.files[each] for each in range(files) if each not in lost])
