"""A million epochs with scheduled maintenance, without Spark: `python -m benchmarks.million`.

    python -m benchmarks.million --epochs 1000000
    python -m benchmarks.million --epochs 20000 --row-ids          # and with --spill

One driver's epochs go through the protocol as fast as they go, with a checkpoint as Spark leaves
it, and maintenance by the product's own code after every `--every` epochs. The clock is simulated,
as in `benchmarks.day`. After the first `--window` epochs, and after every `--sample` from then on,
the last `--window` are summed up: commit p50 beside a control (a new dataset for every `--every`
epochs, epoch by epoch), then restarts after a kill, status and polls in turns with those of a
young dataset (its first `--window` epochs, maintained alike), and the newest manifest, always just
before a maintenance. Each sample is a line of JSON on stderr as soon as there is one; `--seconds`
or Ctrl-C ends the run early, with a last sample. The last line of stdout is one JSON object: all
samples, and the last one's figures by the first one's. The dataset is in TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.diagnostics.status import take_status
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.triggers.watermark_follower import DatasetFollower
from benchmarks.first_commit import WHOLE, first_commit
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.measure import median, timed
from benchmarks.harness.memory import held
from benchmarks.harness.sheet import Claim, study

QUERY, CHECKPOINT_ID = "million", "11111111-aaaa"
INTERVAL = 10.0
"""Seconds between two epochs of the simulated clock."""
REPEATS = 41
"""Restarts, looks and polls of a sample."""
_KEPT = 100
"""Entries of its logs that Spark keeps."""
TIMED = ("restart_p50_ms", "status_p50_ms", "poll_p50_ms", "open_p50_ms")
LIMIT = 1.2
_COMPARED = ("commit_p50_ms", "commit_by_control", *TIMED, "manifest_bytes", "rss_mib")

Sample = dict[str, float]


class Stream:
    """One query's epochs into one dataset, with the checkpoint that Spark would leave."""

    def __init__(self, folder: Path, rows: int, config: Mapping[str, str] | None = None) -> None:
        """Create both; with a config, the dataset has stable row ids and this config."""
        self.uri, self.checkpoint = str(folder / "t.lance"), folder / "checkpoint"
        self.epochs = 0
        self._rows = rows
        self._values = np.random.default_rng(7).random(rows)
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": CHECKPOINT_ID}))
        made = lance.write_dataset(
            self._table(0).slice(0, 0), self.uri, enable_stable_row_ids=config is not None
        )
        if config:
            made.update_config(dict(config))
        self.restart()

    def _table(self, epoch_id: int) -> pa.Table:
        first = epoch_id * self._rows
        return pa.table({"id": np.arange(first, first + self._rows), "value": self._values})

    def restart(self) -> None:
        """Start the query again, as after a kill; the next epoch claims or has claimed."""
        location = str(self.checkpoint)
        found = read_checkpoint(location, open_files(location))
        self.session = DriverSession(open_dataset(self.uri), QUERY, found)
        self.session.prepare()
        driver = Driver("run", CHECKPOINT_ID, location)
        self.session.take_over(driver)
        self.session.identify(driver)

    def epoch(self) -> float:
        """Write and commit one epoch; return the milliseconds of the commit, folds included."""
        rows, started = self._table(self.epochs), utc_now()
        self._plan()
        port: Any = self.session.port
        fragments = write_fragments(rows, port.dataset)
        epoch = Epoch(
            self.epochs, OutputMode.APPEND, fragments, rows.num_rows, rows.nbytes, started
        )
        took = timed(lambda: self.session.begin(epoch.epoch_id).commit(epoch))
        self._done()
        return took

    def first_commit(self) -> float:
        """Commit one epoch as a driver that is started after a kill; return the milliseconds."""
        self._plan()
        rows = self._table(self.epochs)
        taken = first_commit(self.uri, str(self.checkpoint), QUERY, self.epochs, rows)
        self._done()
        return taken[WHOLE]

    def _plan(self) -> None:
        meta = json.dumps({"batchTimestampMs": int(time.time() * 1000)})
        plan = f'v1\n{meta}\n{{"logOffset":{self.epochs}}}'
        (self.checkpoint / "offsets" / str(self.epochs)).write_text(plan)

    def _done(self) -> None:
        (self.checkpoint / "commits" / str(self.epochs)).write_text("v1\n{}")
        old = self.epochs - _KEPT
        for log in ("offsets", "commits"):
            (self.checkpoint / log / str(old)).unlink(missing_ok=True)
        self.epochs += 1

    def check(self) -> None:
        """Fail unless each row is there once."""
        expected = self.epochs * self._rows
        ids = lance.dataset(self.uri).to_table(columns=["id"]).column("id").to_numpy()
        if len(ids) != expected or not np.array_equal(np.sort(ids), np.arange(expected)):
            raise AssertionError(f"{self.uri}: {len(ids)} rows, expected {expected}")


class Kept:
    """A stream with its scheduled maintenance."""

    def __init__(self, folder: Path, given: Any) -> None:
        config = None
        if given.row_ids:
            spill = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "8"}
            config = spill if given.spill else {}
        self.stream = Stream(folder, given.rows, config)
        self.seconds: list[float] = []
        """What each maintenance took."""
        self.every: int = given.every
        self._ageing = Ageing(self.stream.uri, INTERVAL)
        self._options = MaintenanceOptions(older_than=given.older_than)

    def drive(self, mark: int, is_over: Callable[[], bool]) -> None:
        """Go on until so many epochs are done, or time is over; maintain where it is due."""
        while self.stream.epochs < mark and not is_over():
            self.stream.epoch()
            if self.stream.epochs % self.every == 0:
                self.maintain()

    def maintain(self) -> None:
        self._ageing.age(self.stream.epochs)
        self.seconds.append(maintain(open_dataset(self.stream.uri), self._options).seconds)


def measured(streams: Mapping[str, Stream]) -> dict[str, dict[str, float]]:
    """Measure streams by turns: p50 in milliseconds, by stream and figure.

    The restarts are epochs of their own.
    """
    followers = {
        name: DatasetFollower(partial(open_dataset, each.uri)) for name, each in streams.items()
    }
    for follower in followers.values():
        follower.look((QUERY,))
    taken: dict[str, dict[str, list[float]]] = {
        name: {figure: [] for figure in TIMED} for name in streams
    }
    for _ in range(REPEATS):
        for name, each in streams.items():
            each.epoch()
            mine = taken[name]
            mine["poll_p50_ms"].append(timed(partial(followers[name].look, (QUERY,))))
            mine["status_p50_ms"].append(timed(partial(take_status, open_dataset(each.uri), QUERY)))
            mine["open_p50_ms"].append(timed(partial(open_dataset, each.uri)))
    for _ in range(REPEATS):
        for name, each in streams.items():
            taken[name]["restart_p50_ms"].append(each.first_commit())
    for each in streams.values():
        each.restart()
    return {
        name: {figure: median(values) for figure, values in mine.items()}
        for name, mine in taken.items()
    }


def sample(stream: Stream, young: Stream, commits: list[float], by_control: list[float]) -> Sample:
    """Measure the dataset as it is, in turns with a young one."""
    both = measured({"this": stream, "young": young})
    by_young = {
        f"{figure.removesuffix('_p50_ms')}_by_young": ms / both["young"][figure]
        for figure, ms in both["this"].items()
    }
    newest = open_dataset(stream.uri)
    manifests = [path.stat().st_size for path in Path(stream.uri, "_versions").glob("*.manifest")]
    files = [path.stat().st_size for path in Path(stream.uri).rglob("*") if path.is_file()]
    return {
        "epochs": stream.epochs,
        "commit_p50_ms": round(median(commits), 3),
        "commit_p99_ms": round(float(np.quantile(commits, 0.99)), 2),
        "commit_by_control": round(median(by_control), 3),
        **{figure: round(ms, 2) for figure, ms in both["this"].items()},
        **{figure: round(ratio, 3) for figure, ratio in by_young.items()},
        "manifest_bytes": min(Path(stream.uri, "_versions").glob("*.manifest")).stat().st_size,
        "fragments": len(newest.dataset.get_fragments()),
        "versions": len(manifests),
        "version": newest.version,
        "history_bytes": sum(manifests),
        "stored_bytes": sum(files),
        "files": len(files),
        "rss_mib": held().mib,
    }


class Run:
    """The epochs, their maintenance and their samples."""

    def __init__(self, folder: Path, given: Any) -> None:
        self._folder, self._given = folder, given
        self.kept = Kept(folder / "stream", given)
        self.samples: list[Sample] = []
        self._began = time.monotonic()
        self._ended = False

    def go(self, say: Callable[[Sample], None]) -> None:
        stream = self.kept.stream
        for mark in self._marks():
            self.kept.drive(mark - self._given.window, self._is_over)
            over, every = stream.epochs + self._given.window, self._given.every
            self._sample(min(mark, over - over % every))  # always just before a maintenance
            say(self.samples[-1])
            if self._is_over():
                break
        stream.check()

    def end(self, *_: object) -> None:
        """Take the last sample next; a handler of signals."""
        self._ended = True

    def _is_over(self) -> bool:
        return self._ended or time.monotonic() > self._began + self._given.seconds

    def _marks(self) -> list[int]:
        step, last = self._given.sample, self._given.epochs
        return sorted({self._given.window, *range(step, last, step), last})

    def _sample(self, mark: int) -> None:
        """Drive the window up to a mark, a control beside it, and measure beside a young table."""
        commits, ratios = [], []
        stream: Stream = self.kept.stream
        control: Stream | None = None
        beside = self._folder / "beside"
        while stream.epochs < mark:
            if control is None:
                control = Stream(beside / f"control-{stream.epochs}", self._given.rows)
            commits.append(stream.epoch())
            ratios.append(commits[-1] / control.epoch())
            if stream.epochs % self._given.every == 0 and stream.epochs < mark:
                self.kept.maintain()
                control = None
        young = Kept(beside / "young", self._given)
        young.drive(self._given.window - 1, lambda: False)
        young.stream.epoch()  # so that its maintenance is due, too
        found = sample(stream, young.stream, commits, ratios)
        shutil.rmtree(beside)
        found["maintenance_p50_s"] = round(median(self.kept.seconds[-50:] or [0.0]), 3)
        found["seconds"] = round(time.monotonic() - self._began)
        self.samples.append(found)
        self.kept.maintain()


def ratios(samples: list[Sample]) -> Sample:
    """Return the last sample's figures by the first one's."""
    first, last = samples[0], samples[-1]
    return {name: round(last[name] / first[name], 3) for name in _COMPARED if first[name]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--every", type=int, default=250, help="epochs between two maintenances")
    parser.add_argument("--window", type=int, default=1000, help="epochs that a sample sums up")
    parser.add_argument("--sample", type=int, default=50_000, help="epochs between two samples")
    parser.add_argument("--older-than", type=int, default=600, help="seconds of simulated time")
    parser.add_argument("--row-ids", action="store_true", help="a dataset with stable row ids")
    parser.add_argument("--spill", action="store_true", help="with their lineage in its own files")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="take the last sample after this time"
    )
    given = parser.parse_args()
    logging.disable(logging.INFO)

    def say(found: Sample) -> None:
        print(json.dumps(found), file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="million-") as folder:
        run = Run(Path(folder), given)
        signal.signal(signal.SIGINT, run.end)
        run.go(say)
    over, last = ratios(run.samples), run.samples[-1]
    beside = {"commit p50 by the control's": over["commit_by_control"]}
    beside |= {f"{name}, p50": last[f"{name}_by_young"] for name in ("restart", "status", "poll")}
    beside["newest manifest, bytes"] = over["manifest_bytes"]
    claims = [
        Claim(f"million: {name}, last thousand epochs beside the first", value, LIMIT)
        for name, value in beside.items()
    ]
    settings = {name: value for name, value in vars(given).items() if value != math.inf}
    told = {
        "last_over_first": over,
        "maintenance_runs": len(run.kept.seconds),
        "maintenance_p50_seconds": round(statistics.median(run.kept.seconds), 3),
        "samples": run.samples,
    }
    print(json.dumps(study("million", settings, claims, told)))


if __name__ == "__main__":
    main()
