"""How old rows are when a reader can see them: a reader in a process of its own, and what it saw.

Belongs to :mod:`benchmarks.rate` and :mod:`benchmarks.arrival`. The reader looks for the newest
version every 10 ms: of a Lance dataset, of a Delta table, or of the log of Spark's parquet sink. It
reads the timestamps of the rows in each file that has been appended since its last look; tables are
made without rows. Files that a compaction rewrote do not count.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from lance.file import LanceFileReader

from benchmarks.harness.machine import ROOT

COLUMN = "at"
"""The column that holds each row's own timestamp."""
POLL_SECONDS = 0.01

Look = Callable[[], list[Path]]
"""Returns the data files that were appended since the last look."""


class Reader:
    """A process that looks at one table until the block ends."""

    def __init__(self, contestant: str, path: str) -> None:
        """Start it, and wait until it looks.

        :param path: the Lance dataset, the Delta table, or the folder of the parquet sink; it may
            come later.
        """
        code = "import sys; from benchmarks.freshness import watch; watch(*sys.argv[1:])"
        self._folder = tempfile.TemporaryDirectory(prefix="reader-")
        self._seen = Path(self._folder.name, "seen.npz")
        words = [sys.executable, "-c", code, contestant, path, str(self._seen)]
        self._process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._times, self._ages = np.array([]), np.array([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()
        if kind is None:
            with np.load(self._seen) as seen:
                self._times, self._ages = seen["times"], seen["ages"]
        self._folder.cleanup()

    def ages(self, first: float, last: float) -> np.ndarray:
        """Return how many seconds old each row was, of those whose timestamps are in between.

        Call it after the block. ``first`` and ``last`` are seconds since 1970.
        """
        ages: np.ndarray = self._ages[(self._times >= first) & (self._times < last)]
        return ages


def watch(contestant: str, path: str, target: str) -> None:
    """Look until standard input ends; then save the rows' times, and their ages when first seen."""
    look, read = _LOOKS[contestant](path), _READS[contestant]
    times, ages = [np.array([])], [np.array([], np.float32)]
    print("looking", flush=True)
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0])
        files = look()
        now = time.time()
        for file in files:
            times.append(_seconds(read(file)))
            ages.append((now - times[-1]).astype(np.float32))
    np.savez(target, times=np.concatenate(times), ages=np.concatenate(ages))


def _look_at_lance(path: str) -> Look:
    held: lance.LanceDataset | None = None
    data = Path(path, "data")

    def look() -> list[Path]:
        nonlocal held
        if held is None:
            try:
                held = lance.dataset(path, version=1)
            except ValueError:  # it is still to be made
                return []
        files = []
        newest = held.latest_version
        for version in range(held.version + 1, newest + 1):
            done = held.read_transaction(version)
            if done is not None and isinstance(done.operation, lance.LanceOperation.Append):
                files += [data / each.files[0].path for each in done.operation.fragments]
        if newest != held.version:
            held = held.checkout_version(newest)
        return files

    return look


def _look_at_delta(path: str) -> Look:
    log = Path(path, "_delta_log")
    version = 0

    def look() -> list[Path]:
        nonlocal version
        files = []
        while (entry := log / f"{version:020}.json").exists():
            for line in entry.read_text().splitlines():
                added = json.loads(line).get("add")
                if added and added["dataChange"]:
                    files.append(Path(path, unquote(added["path"])))
            version += 1
        return files

    return look


def _look_at_parquet(path: str) -> Look:
    log = Path(path, "_spark_metadata")
    entries: set[str] = set()
    files: set[Path] = set()

    def look() -> list[Path]:
        if not log.exists():
            return []
        new = {name for name in os.listdir(log) if name.split(".")[0].isdigit()} - entries
        entries.update(new)
        lines = [line for name in new for line in (log / name).read_text().splitlines()[1:]]
        # An entry that compacts the log names the files before it, too.
        found = {Path(path, Path(json.loads(line)["path"]).name) for line in lines} - files
        files.update(found)
        return list(found)

    return look


_LOOKS = {"lance-stream": _look_at_lance, "delta": _look_at_delta, "parquet": _look_at_parquet}


def _read_parquet(file: Path) -> pa.Table:
    return pq.read_table(file, columns=[COLUMN], partitioning=None)


_READS: dict[str, Callable[[Path], pa.Table]] = {
    "lance-stream": lambda file: LanceFileReader(str(file), columns=[COLUMN]).read_all().to_table(),
    "delta": _read_parquet,
    "parquet": _read_parquet,
}


def _seconds(table: pa.Table) -> np.ndarray:
    """Return a table's timestamps as seconds since 1970."""
    moments = pc.cast(table.column(COLUMN), pa.timestamp("ms"), safe=False)
    seconds: np.ndarray = pc.cast(moments, pa.int64()).to_numpy() / 1000
    return seconds
