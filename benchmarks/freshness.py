"""How old rows are when a reader can see them: a reader in a process of its own, and what it saw.

Belongs to :mod:`benchmarks.rate`. The reader looks for the newest version every 10 ms and notes
when it saw each data file for the first time: in a Lance dataset, or in the log of Spark's parquet
sink. How old its rows were then is told afterwards, from the rows' own timestamps.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness.machine import ROOT

COLUMN = "at"
"""The column that holds each row's own timestamp."""
POLL_SECONDS = 0.01

Look = Callable[[], list[str]]
"""Returns the names of all data files, or of those that are new since the last look."""


class Reader:
    """A process that looks at one place until the block ends."""

    def __init__(self, contestant: str, path: str) -> None:
        """Start it, and wait until it looks.

        :param path: the Lance dataset, or the folder of the parquet sink; it may come later.
        """
        self._contestant, self._path = contestant, path
        code = f"from benchmarks.freshness import watch; watch({contestant!r}, {path!r})"
        words = [sys.executable, "-c", code]
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._seen: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told, _ = self._process.communicate()
        if kind is None:
            self._seen = json.loads(told)

    def ages(self, first: float, last: float) -> np.ndarray:
        """Return how many seconds old each row was, of those whose timestamps are in between.

        Call it after the block. ``first`` and ``last`` are seconds since 1970.
        """
        ages = [
            self._seen[name] - times[(times >= first) & (times < last)]
            for name, times in _FILES[self._contestant](self._path)
        ]
        return np.concatenate(ages) if ages else np.array([])


def watch(contestant: str, path: str) -> None:
    """Look until standard input ends, then print when each file was seen first, as JSON."""
    look = _LOOKS[contestant](path)
    seen: dict[str, float] = {}
    print("looking", flush=True)
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
        names = look()
        now = time.time()
        for name in names:
            seen.setdefault(name, now)
    print(json.dumps(seen))


def _look_at_lance(path: str) -> Look:
    held: lance.LanceDataset | None = None

    def look() -> list[str]:
        nonlocal held
        if held is None:
            try:
                held = lance.dataset(path)
            except ValueError:  # it is still to be made
                return []
        elif (newest := held.latest_version) != held.version:
            held = held.checkout_version(newest)
        else:
            return []
        return [fragment.data_files()[0].path for fragment in held.get_fragments()]

    return look


def _look_at_parquet(path: str) -> Look:
    log = Path(path, "_spark_metadata")
    known: set[str] = set()

    def look() -> list[str]:
        if not log.exists():
            return []
        entries = {name for name in os.listdir(log) if name.split(".")[0].isdigit()} - known
        known.update(entries)
        lines = [line for name in entries for line in (log / name).read_text().splitlines()[1:]]
        return [Path(json.loads(line)["path"]).name for line in lines]

    return look


_LOOKS = {"lance-stream": _look_at_lance, "parquet": _look_at_parquet}


def _lance_files(path: str) -> Iterator[tuple[str, np.ndarray]]:
    for fragment in lance.dataset(path).get_fragments():
        yield fragment.data_files()[0].path, _seconds(fragment.to_table(columns=[COLUMN]))


def _parquet_files(path: str) -> Iterator[tuple[str, np.ndarray]]:
    listed = _look_at_parquet(path)()
    for name in dict.fromkeys(listed):
        yield name, _seconds(pq.read_table(Path(path, name), columns=[COLUMN]))


_FILES = {"lance-stream": _lance_files, "parquet": _parquet_files}


def _seconds(table: pa.Table) -> np.ndarray:
    """Return a table's timestamps as seconds since 1970."""
    moments = pc.cast(table.column(COLUMN), pa.timestamp("ms"), safe=False)
    return pc.cast(moments, pa.int64()).to_numpy() / 1000
