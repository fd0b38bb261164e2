"""Two streams into one dataset, killed and restarted, beside maintenance that never rests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.maintenance import run as maintenance
from airflow_provider_lance.maintenance.cleanup import Retention
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OutputMode
from tests.support.drivers import lance_world
from tests.support.maintenance import checkpoint_of, rows_beside, run
from tests.support.processes import end, finish, python, wait_for

# Its timing needs a machine of its own, like that of the system tests.
pytestmark = pytest.mark.system


SECONDS = 20
MODES = (OutputMode.APPEND, OutputMode.UPDATE)
FLOOR = 4
"""Seconds that versions are kept: enough for a driver that is at work, and short for a test."""


class Stream:
    """A driver and those before it; ``failed`` has what any of them said when it gave up."""

    def __init__(self, folder: Path, mode: OutputMode) -> None:
        self.folder, self.mode, self.kills = folder, mode, 0
        self.failed: list[str] = []
        self.checkpoint = checkpoint_of(str(folder), mode)
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": f"id-{mode}"}))
        self.start()

    def start(self) -> None:
        self.began = self.done
        self.process: subprocess.Popen[str] = python(
            "-m", "tests.support.maintenance", str(self.folder), str(self.mode), str(self.kills)
        )

    @property
    def done(self) -> int:
        """Return the newest epoch in the log of those that Spark would call done."""
        return max((int(path.name) for path in (self.checkpoint / "commits").iterdir()), default=-1)

    def kill(self) -> None:
        """Kill the driver wherever it is, and start the next."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.kills += 1
        self.wait()
        self.start()

    def wait(self) -> None:
        status, output = finish(self.process)
        if status not in (0, -signal.SIGKILL):
            self.failed.append(output)


class Loop(threading.Thread):
    """Does one thing again and again; ``outcomes`` counts what became of it, by name."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.over = work, threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.unexpected: list[BaseException] = []

    def run(self) -> None:
        while not self.over.is_set() and not self.unexpected:
            try:
                done = self.work()
            except CommitPreemptedError:
                self.outcomes["preempted"] += 1
            except BaseException as error:
                self.unexpected.append(error)
            else:
                self.outcomes["ran"] += 1
                self.outcomes.update(list(done))
            self.over.wait(0.05)

    def end(self) -> None:
        self.over.set()
        self.join()


def race(
    folder: Path, works: list[Callable[[], Any]], seconds: float
) -> tuple[list[Stream], list[Loop]]:
    """Run both streams beside the loops, kill drivers throughout, and end all in order."""
    lance_world(str(folder / "t.lance"))
    lance.dataset(str(folder / "t.lance")).create_scalar_index("id", "BTREE")
    dice = random.Random(5)
    loops = [Loop(work) for work in works]
    streams = [Stream(folder, mode) for mode in MODES]
    try:
        for loop in loops:
            loop.start()
        deadline = time.monotonic() + seconds
        turns = cycle(streams)
        while time.monotonic() < deadline:
            stream, epochs = next(turns), dice.randint(1, 12)
            wait_for(
                "progress, or an end of its own",
                lambda stream=stream, epochs=epochs: (
                    stream.done >= stream.began + epochs
                    or stream.process.poll() is not None
                    or time.monotonic() > deadline
                ),
            )
            time.sleep(dice.random() * 0.05)
            stream.kill()
            if stream.failed:
                break
        (folder / "stop").touch()
        for stream in streams:
            stream.wait()
    finally:
        for stream in streams:
            end(stream.process)
        for loop in loops:
            loop.end()
    return streams, loops


def expected(streams: list[Stream]) -> Counter[tuple[int, int]]:
    rows: dict[int, int] = {}
    for stream in streams:
        for epoch_id in range(stream.done + 1):
            rows.update({row["id"]: row["epoch"] for row in rows_beside(epoch_id, stream.mode)})
    return Counter(rows.items())


def found(folder: Path) -> Counter[tuple[int, int]]:
    rows = lance.dataset(str(folder / "t.lance")).to_table().to_pylist()
    return Counter((row["id"], row["epoch"]) for row in rows)


def test_streams_killed_beside_maintenance_write_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "Retention", partial(Retention, keep_active=FLOOR))
    uri = str(tmp_path / "t.lance")
    compaction = {"target_rows_per_fragment": 200}

    def compact_and_index() -> Any:
        return run(uri, steps=["compact", "index"], compaction=compaction).done

    def clean_up() -> Any:
        return run(uri, steps=["cleanup"], olderThan=0).done

    streams, loops = race(tmp_path, [compact_and_index, clean_up], SECONDS)
    assert [error for loop in loops for error in loop.unexpected] == []
    assert [stream.failed for stream in streams] == [[], []]
    assert found(tmp_path) == expected(streams)
    for stream in streams:
        assert stream.kills > 0, "drivers were killed"
        assert stream.done > 20, "and came far all the same"
    busy, tidy = (loop.outcomes for loop in loops)
    assert busy["compact"] > 5
    assert busy["index"] > 5
    assert tidy["cleanup"] > 2
    assert sum(outcomes["preempted"] for outcomes in (busy, tidy)) <= busy["ran"] + tidy["ran"]
    dataset = lance.dataset(uri)
    for wanted in (100, 4000, -1, -140):
        by_index = dataset.count_rows(f"id = {wanted}")
        assert by_index == sum(n for (key, _), n in found(tmp_path).items() if key == wanted)
    run(uri, compaction=compaction)
    assert len(open_dataset(uri).dataset.get_fragments()) < 50


def test_control_a_cleanup_that_does_not_fold_stops_or_doubles(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")

    def clean_up() -> Any:
        dataset = lance.dataset(uri)
        old = [version["version"] for version in dataset.versions()][:-1]
        if old:
            dataset.cleanup_old_versions(versions=old)
        # Whoever else commits takes the newest version from the streams.
        dataset.update_config({"user.key": str(time.monotonic())})
        return {}

    streams, _ = race(tmp_path, [clean_up], SECONDS)
    told = "".join(output for stream in streams for output in stream.failed)
    assert "HistoryGapError" in told or "cleaned up" in told or found(tmp_path) != expected(streams)
