"""One race: a driver waits in Spark's window while its successor plans the same epoch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.exceptions import CheckpointMismatchError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.repair.preconditions import Preconditions
from airflow_provider_lance.repair.set_aside import set_files_aside
from tests.log_races.driver import add_file, create, run, uri
from tests.support.processes import QUICK_JAVA, REPOSITORY, wait_for

_NEXT_ROWS = 1.1
"""Seconds after which the rate source has more rows."""

_MOST_STARTS = 4


@dataclass(frozen=True)
class Case:
    """What happens in a race.

    ``source`` is what is read, see :func:`.driver.read`; ``log`` is where the rival waits. The
    driver before both ended as ``before`` says, and the successor's newest run as ``end``, after
    ``further`` epochs beyond the contended one. ``kill`` ends the rival in the window instead of
    letting it go.
    """

    source: str
    log: str
    before: str
    end: str
    further: int
    kill: bool

    def __str__(self) -> str:
        fate = "killed" if self.kill else "paused"
        ends = f"before {self.before}, {self.end} {self.further} epochs later"
        return f"{self.source}, {self.log} {fate}, {ends}"


@dataclass(frozen=True)
class Outcome:
    """What was seen: ``wrong`` is empty if the race ended as it must."""

    replaced: bool
    refused: bool
    wrong: str = ""


class Rival:
    """The driver that waits: a process with the library that holds a rename back."""

    def __init__(self, library: str, writes: str) -> None:
        """Start it; it writes its checkpoints as :func:`.driver.run` says."""
        self.writes = writes
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "CHAOS_RENAMES": "1",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.log_races.driver", writes],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._until("ready")

    def order(self, root: Path, source: str) -> None:
        """Let it run a query over a race's folder."""
        assert self._process.stdin
        self._process.stdin.write(f"{root} {source}\n")
        self._process.stdin.flush()

    def ended(self) -> str:
        """Wait for the end of its query; return the error's name, or ``finished``."""
        return self._until("ended").split()[1]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _until(self, word: str) -> str:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(word):
                return line
        raise AssertionError(f"the rival ended before it said {word!r}")


def race(spark: SparkSession, rival: Rival, root: Path, case: Case) -> Outcome:
    """Run one race in an empty folder, then start again and compare."""

    def go(end: str = "released") -> None:
        _await_rows(root, case)
        run(spark, root, case.source, writes=rival.writes, end=end)

    create(root)
    go()
    go(case.before)
    epoch = _checkpoint(root).planned + 1
    entry = root / "checkpoint" / case.log / str(epoch)
    entry.with_name(f"{epoch}.hold").touch()
    _await_rows(root, case)
    rival.order(root, case.source)
    wait_for("the rival in the window", entry.with_name(f"{epoch}.held").exists)
    for number in range(case.further + 1):
        go(case.end if number == case.further else "released")
    before = entry.read_bytes() if entry.exists() else b""
    if case.kill:
        rival.kill()
    else:
        entry.with_name(f"{epoch}.go").touch()
        rival.ended()
    replaced = before != (entry.read_bytes() if entry.exists() else b"")
    refused, wrong = 0, ""
    for _ in range(_MOST_STARTS):
        try:
            go()
            break
        except CheckpointMismatchError:
            refused += 1
            # What the check says to type; the driver before is this process, or the rival.
            _repair(root)
    else:
        wrong = f"refused {refused} times"
    return Outcome(replaced, bool(refused), wrong or _inexact(root, case))


def _await_rows(root: Path, case: Case) -> None:
    if case.source == "files":
        add_file(root)
    else:
        time.sleep(_NEXT_ROWS)


def _repair(root: Path) -> None:
    """Do what the check says. The drivers have ended; one of them was a query of this process."""
    found = check(open_dataset(uri(root)), ["q"]).findings
    assert Code.CHECKPOINT_CHANGED in {each.code for each in found}, found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preconditions, "refuse_live_driver", lambda *_, **__: None)
        set_files_aside(open_dataset(uri(root)), "q", by="the laboratory", proven_dead=True)


def _inexact(root: Path, case: Case) -> str:
    """Return how the rows differ from the numbers up to the largest one, each once."""
    values = sorted(lance.dataset(uri(root)).to_table()["value"].to_pylist())
    numbers = range(values[-1] + 1)
    if case.source == "files":
        numbers = range(10 * len(list((root / "in").glob("*.parquet"))))
    expected = [each for each in numbers if case.source != "gaps" or each // 30 % 2 == 0]
    if values == expected:
        return ""
    lost = set(expected) - set(values)
    return f"{len(values) - len(set(values))} doubled, {len(lost)} lost"


def _checkpoint(root: Path) -> Checkpoint:
    location = str(root / "checkpoint")
    return read_checkpoint(location, open_files(location))
