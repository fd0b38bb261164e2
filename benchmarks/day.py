"""A day at a 10-second trigger, with scheduled maintenance and without: `python -m benchmarks.day`.

One day after the other goes through the protocol, as fast as it goes. One is maintained after every
`--every` epochs as LanceOptimizeOperator does it: compaction and cleanup. The clock is simulated:
before each maintenance the manifests get the age they would have if epochs were 10 seconds apart,
so that cleanup keeps and removes what it would on such a day; no limit of the product is changed
for it. Beside each day, epoch by epoch, goes a control, a dataset that is made anew every `--every`
epochs: it shows how the machine's own speed changed meanwhile. The datasets are in TMPDIR. Writes
day.csv, day.svg and day.png, prints one JSON object.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.plots import Lines, draw

INTERVAL = 10.0
"""Seconds between two epochs of the simulated day."""
EDGE = 500
"""Epochs at either end whose medians are compared."""
PLAIN, MAINTAINED = "no maintenance", "compaction and cleanup"


@dataclass(frozen=True)
class Sample:
    """One dataset after so many epochs; the median is of the epochs since the sample before.

    ``stored_bytes`` are of all files in its folder, ``history_bytes`` of all manifests.
    """

    epochs: int
    dataset: str
    commit_p50_ms: float
    fragments: int
    stored_bytes: int
    files: int
    manifest_bytes: int
    history_bytes: int


class Stream:
    """One query's epochs into one dataset, which :meth:`renew` puts another in the place of."""

    def __init__(self, uri: str, rows: int) -> None:
        self.milliseconds: list[float] = []
        """How long each commit took, folds of the watermark included."""
        self._random = np.random.default_rng(7)
        self._rows = rows
        self.renew(uri)

    def renew(self, uri: str) -> None:
        self.uri = uri
        lance.write_dataset(self._table(0).slice(0, 0), uri)
        # Opened as the sink opens it, with caches that are bounded.
        self.committer = DriverSession(open_dataset(uri), "bench", Checkpoint("/checkpoint"))
        self.committer.prepare()
        self.committer.identify(Driver("run", "checkpoint", "/checkpoint"))
        self.committer.claim(0)

    def _table(self, epoch_id: int) -> pa.Table:
        first = epoch_id * self._rows
        ids = np.arange(first, first + self._rows)
        return pa.table({"id": ids, "value": self._random.random(self._rows)})

    def epoch(self, epoch_id: int) -> None:
        table, started = self._table(epoch_id), utc_now()
        fragments = write_fragments(table, self.committer.port.dataset)  # type: ignore[attr-defined]
        epoch = Epoch(
            epoch_id=epoch_id,
            mode=OutputMode.APPEND,
            fragments=fragments,
            rows=table.num_rows,
            bytes=table.nbytes,
            started_at=started,
        )
        began = time.perf_counter()
        self.committer.begin(epoch.epoch_id).commit(epoch)
        self.milliseconds.append((time.perf_counter() - began) * 1000)

    def sample(self, name: str, window: int) -> Sample:
        sizes = {"data": 0, "_versions": 0}
        stored = files = 0
        for folder, _, names in os.walk(self.uri):
            size = sum(Path(folder, file).stat().st_size for file in names)
            top = Path(folder).relative_to(self.uri).parts[:1]
            if top and top[0] in sizes:
                sizes[top[0]] += size
            stored, files = stored + size, files + len(names)
        newest = min(Path(self.uri, "_versions").glob("*.manifest"))
        return Sample(
            epochs=len(self.milliseconds),
            dataset=name,
            commit_p50_ms=round(statistics.median(self.milliseconds[-window:]), 3),
            fragments=len(open_dataset(self.uri).dataset.get_fragments()),
            stored_bytes=stored,
            files=files,
            manifest_bytes=newest.stat().st_size,
            history_bytes=sizes["_versions"],
        )

    def check(self) -> None:
        """Fail unless each row is there once."""
        ids = lance.dataset(self.uri).to_table(columns=["id"]).column("id").to_numpy()
        expected = np.arange(len(self.milliseconds) * self._rows)
        if not np.array_equal(np.sort(ids), expected):
            raise AssertionError(f"{self.uri}: {len(ids)} rows, expected {len(expected)}")


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the first and of the last epochs' values."""
    edge = min(EDGE, len(values) // 2)
    return statistics.median(values[:edge]), statistics.median(values[-edge:])


@dataclass(frozen=True)
class Day:
    """What one day gave."""

    stream: Stream
    control: Stream
    samples: Sequence[Sample]
    runs: Sequence[float]
    """The seconds of each maintenance run."""

    def figures(self) -> dict[str, object]:
        first, last = ends(self.stream.milliseconds)
        control = ends(self.control.milliseconds)
        # Pairs are milliseconds apart, so that a load on the machine drops out.
        pairs = zip(self.stream.milliseconds, self.control.milliseconds, strict=True)
        by_control = ends([mine / other for mine, other in pairs])
        mine = self.samples
        told: dict[str, object] = {
            "commit_p50_ms_first": round(first, 3),
            "commit_p50_ms_last": round(last, 3),
            "last_over_first": round(last / first, 3),
            "control_last_over_first": round(control[1] / control[0], 3),
            "last_over_first_by_control": round(by_control[1] / by_control[0], 3),
            "commit_p99_ms": round(statistics.quantiles(self.stream.milliseconds, n=100)[-1], 2),
            "fragments_end": mine[-1].fragments,
            "fragments_most": max(each.fragments for each in mine),
            "stored_bytes_end": mine[-1].stored_bytes,
            "stored_bytes_most": max(each.stored_bytes for each in mine),
            "files_end": mine[-1].files,
            "manifest_bytes_end": mine[-1].manifest_bytes,
            "history_bytes_end": mine[-1].history_bytes,
        }
        if self.runs:
            told["maintenance_runs"] = len(self.runs)
            told["maintenance_p50_seconds"] = round(statistics.median(self.runs), 3)
            told["maintenance_max_seconds"] = round(max(self.runs), 3)
        return told


def spend(folder: Path, name: str, options: MaintenanceOptions | None, given: Any) -> Day:
    """Drive one day into a dataset in a folder; with options it is maintained."""
    stream = Stream(str(folder / "day.lance"), given.rows)
    control = Stream(str(folder / "control.lance"), given.rows)
    ageing = Ageing(stream.uri, INTERVAL)
    samples: list[Sample] = []
    runs: list[float] = []
    for epoch_id in range(given.epochs):
        stream.epoch(epoch_id)
        control.epoch(epoch_id)
        done = epoch_id + 1
        if done % (2 * given.every) == 0 or done == given.epochs:
            samples.append(stream.sample(name, 2 * given.every))  # before maintenance: at its worst
            print(samples[-1], file=sys.stderr)
        if done % given.every == 0:
            control.renew(str(folder / f"control-{done}.lance"))
            if options:
                ageing.age(done)
                runs.append(maintain(open_dataset(stream.uri), options).seconds)
    stream.check()
    return Day(stream, control, samples, runs)


def write(folder: Path, samples: Sequence[Sample]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "day.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows(asdict(each) for each in samples)

    def chart(title: str, field: str, y: str, unit: float = 1.0) -> Lines:
        series = {
            name: [(s.epochs, getattr(s, field) / unit) for s in samples if s.dataset == name]
            for name in (PLAIN, MAINTAINED)
        }
        return Lines(series, title, "epochs", y)

    draw(
        folder,
        "day",
        chart("commit, p50", "commit_p50_ms", "ms"),
        chart("fragments", "fragments", ""),
        chart("stored", "stored_bytes", "MB", 1e6),
        chart("newest manifest", "manifest_bytes", "kB", 1e3),
        title="A day at a 10-second trigger",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8640)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--every", type=int, default=60, help="epochs between two maintenances")
    parser.add_argument("--older-than", type=int, default=600, help="seconds of the simulated day")
    parser.add_argument("--out", type=Path, default=Path("build"), help="for day.csv and its plot")
    arguments = parser.parse_args()
    options = MaintenanceOptions(older_than=arguments.older_than)
    days: dict[str, Day] = {}
    for name, chosen in ((MAINTAINED, options), (PLAIN, None)):
        with tempfile.TemporaryDirectory() as folder:
            days[name] = spend(Path(folder), name, chosen, arguments)
    write(arguments.out, [sample for day in days.values() for sample in day.samples])
    print(
        json.dumps(
            {
                "epochs": arguments.epochs,
                "rows": arguments.rows,
                "maintenance_every": arguments.every,
                "older_than": arguments.older_than,
                "days": {name: day.figures() for name, day in days.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
