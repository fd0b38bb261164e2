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
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import CheckpointMismatchError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint, read_offsets
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from tests.log_races.driver import create, run, uri
from tests.support.processes import QUICK_JAVA, REPOSITORY, wait_for

_NEXT_ROWS = 1.1
"""Seconds after which the source has more rows."""


@dataclass(frozen=True)
class Case:
    """What happens in a race.

    ``log`` is where the rival waits; ``before`` how the driver before both ended, ``end`` how the
    successor's newest run does; ``further`` counts the epochs that it does after the contended one.
    ``kill`` ends the rival in the window instead of letting it go.
    """

    log: str
    before: str
    end: str
    further: int
    kill: bool

    def __str__(self) -> str:
        fate = "killed" if self.kill else "paused"
        return f"{self.log} {fate}, before {self.before}, {self.end} {self.further} epochs later"


@dataclass(frozen=True)
class Outcome:
    """What was seen: ``wrong`` is empty if the race ended as it must."""

    replaced: bool
    refused: bool
    wrong: str = ""


class Rival:
    """The driver that waits: a process with the library that holds a rename back."""

    def __init__(self, library: str, manager: str) -> None:
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "CHAOS_RENAMES": "1",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.log_races.driver", manager],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._until("ready")

    def order(self, root: Path) -> None:
        """Let it run a query over a race's folder."""
        assert self._process.stdin
        self._process.stdin.write(f"{root}\n")
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
    create(root)
    run(spark, root)
    time.sleep(_NEXT_ROWS)
    run(spark, root, end=case.before)
    time.sleep(_NEXT_ROWS)
    epoch = _checkpoint(root).planned + 1
    entry = root / "checkpoint" / case.log / str(epoch)
    entry.with_name(f"{epoch}.hold").touch()
    rival.order(root)
    wait_for("the rival in the window", entry.with_name(f"{epoch}.held").exists)
    for number in range(case.further + 1):
        time.sleep(_NEXT_ROWS)
        run(spark, root, end=case.end if number == case.further else "released")
    if case.kill:
        rival.kill()
    else:
        entry.with_name(f"{epoch}.go").touch()
        rival.ended()
    return _judge(spark, root)


def _judge(spark: SparkSession, root: Path) -> Outcome:
    checkpoint = _checkpoint(root)
    replaced = _replaced(root, checkpoint)
    must = bool(replaced & {checkpoint.planned, checkpoint.planned - 1})
    refused = False
    time.sleep(_NEXT_ROWS)
    try:
        run(spark, root)
    except CheckpointMismatchError:
        refused = True  # the repair has tests of its own: tests.integration.test_changed_offsets
    values = sorted(lance.dataset(uri(root)).to_table()["value"].to_pylist())
    wrong = []
    if refused != must:
        wrong.append(f"refused {refused}, replaced {sorted(replaced)} of {checkpoint.planned}")
    if values != list(range(len(values))):
        twice = len(values) - len(set(values))
        wrong.append(f"{twice} doubled, {max(values) + 1 - len(set(values))} lost")
    return Outcome(bool(replaced), refused, "; ".join(wrong))


def _replaced(root: Path, checkpoint: Checkpoint) -> set[int]:
    """Return the epochs whose `offsets` file says another end than their commit."""
    port, files = open_dataset(uri(root)), open_files(str(root / "checkpoint"))
    found = set()
    for version in range(1, port.version + 1):
        stamp = decode_stamp(port.properties(version) or {}, "q", version)
        if stamp and stamp.ends and stamp.ends.lines != read_offsets(files, stamp.epoch_id):
            found.add(stamp.epoch_id)
    return found


def _checkpoint(root: Path) -> Checkpoint:
    location = str(root / "checkpoint")
    return read_checkpoint(location, open_files(location))
