"""Many queries into one dataset at once: `python -m benchmarks.crowd --queries 100`.

Each query is a driver's part of the protocol, without Spark, in a thread with a handle and caches
of its own; `--processes` share the threads. Each begins an epoch a `--trigger`, at an offset of its
own, and one maintenance after the other runs beside them. At the end each row must be there once.
The last line is one JSON object: how long write and commit took (p50, p99), how often a commit was
sent again because another one landed first, how late epochs began, and the same by query, worst
beside best. The dataset is in TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.exceptions import CommitPreemptedError, StorageUnavailableError
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.machine import ROOT
from benchmarks.harness.measure import median, percentile
from benchmarks.harness.sheet import Claim, study

EPOCHS_OF_A_QUERY = 1_000_000
"""Rows' numbers: query, epoch and place in the epoch, one after the other."""
FAIR = 0.9
"""What is claimed: the epochs of the slowest query beside those of the median one."""
_WARM_UP = 3
"""Epochs of each query that do not count: the first ones claim."""
_CACHE = 8 * 1024 * 1024


class CountingPort(LanceDatasetPort):
    """Counts the commits that another one preempted."""

    preempted: Counter[int]

    def latest(self) -> LanceDatasetPort:
        return self._like(super().latest())

    def commit(self, change: Any, properties: Any = None) -> LanceDatasetPort:
        try:
            return self._like(super().commit(change, properties))
        except CommitPreemptedError:
            self.preempted[threading.get_ident()] += 1
            raise

    def _like(self, port: LanceDatasetPort) -> LanceDatasetPort:
        port.__class__ = type(self)
        return port


class Query(threading.Thread):
    """One query: an epoch at each trigger, until the time is over."""

    def __init__(self, number: int, given: Any) -> None:
        super().__init__(daemon=True)
        self.number, self._given = number, given
        self.took: list[float] = []
        """Milliseconds of write and commit of each epoch."""
        self.late: list[float] = []
        """How many milliseconds after its trigger each began."""
        self.preempted = 0
        self.epochs = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        given = self._given
        port = open_dataset(given.uri, cache_bytes=_CACHE)
        port.__class__ = CountingPort
        session = DriverSession(port, f"query-{self.number:03}", Checkpoint("/checkpoint"))
        session.prepare()
        session.identify(Driver(f"run-{self.number}", f"checkpoint-{self.number}", "/checkpoint"))
        due = given.start + self.number / given.queries * given.trigger
        while due < given.start + given.seconds:
            time.sleep(max(0.0, due - time.time()))
            self.late.append((time.time() - due) * 1000)
            began = time.perf_counter()
            self._epoch(session)
            self.took.append((time.perf_counter() - began) * 1000)
            # As Spark does: a trigger that was missed is left out.
            due += given.trigger * max(1, int((time.time() - due) // given.trigger))
        self.preempted = CountingPort.preempted[threading.get_ident()]
        session.release()

    def _epoch(self, session: DriverSession) -> None:
        first = (self.number * EPOCHS_OF_A_QUERY + self.epochs) * self._given.rows
        table = pa.table({"id": np.arange(first, first + self._given.rows)})
        started, port = utc_now(), session.port
        fragments = write_fragments(table, port.dataset)  # type: ignore[attr-defined]
        session.begin(self.epochs).commit(
            Epoch(self.epochs, OutputMode.APPEND, fragments, table.num_rows, table.nbytes, started)
        )
        self.epochs += 1

    def told(self) -> dict[str, Any]:
        return {
            "query": self.number,
            "epochs": self.epochs,
            "preempted": self.preempted,
            "took": [round(each, 2) for each in self.took[_WARM_UP:]],
            "late": [round(each, 2) for each in self.late[_WARM_UP:]],
        }


def work(given: Any) -> None:
    """Run every `--processes`-th query in this process; prints what each did."""
    CountingPort.preempted = Counter()
    queries = [Query(number, given) for number in range(given.part, given.queries, given.processes)]
    for query in queries:
        query.start()
    for query in queries:
        query.join()
        if query.error:
            raise query.error
    print(json.dumps([query.told() for query in queries]))


def lead(given: Any) -> dict[str, Any]:
    """Start the processes, maintain the dataset beside them, and sum up."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        uri = str(Path(folder, "t.lance"))
        lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), uri)
        start = time.time() + 5 + given.processes  # importing takes a while
        words = [sys.executable, "-m", "benchmarks.crowd", "--uri", uri, "--start", str(start)]
        for name in ("queries", "seconds", "trigger", "rows", "processes"):
            words += [f"--{name}", str(getattr(given, name))]
        children = [
            subprocess.Popen([*words, "--part", str(part)], cwd=ROOT, stdout=subprocess.PIPE)
            for part in range(given.processes)
        ]
        ageing, options = Ageing(uri, given.trigger / given.queries), MaintenanceOptions()
        runs, refused = [], 0
        while time.time() < start + given.seconds:
            time.sleep(given.every)
            ageing.age(round(max(0.0, time.time() - start) / given.trigger * given.queries))
            try:
                runs.append(maintain(open_dataset(uri), options).seconds)
            except StorageUnavailableError:  # Lance gives up after 30 s; a schedule runs it again
                refused += 1
        outputs = [child.communicate()[0] for child in children]
        if any(child.returncode for child in children):
            raise SystemExit("a process of the queries failed")
        found = [query for output in outputs for query in json.loads(output)]
        _check(uri, found, given.rows)
        newest = open_dataset(uri)
        fragments, version = len(newest.dataset.get_fragments()), newest.version
    took = [each for query in found for each in query["took"]]
    late = [each for query in found for each in query["late"]]
    worst = [percentile(query["took"], 0.99) for query in found if query["took"]]
    epochs = [query["epochs"] for query in found]
    return {
        "epochs": sum(epochs),
        "epochs_a_second": round(sum(epochs) / given.seconds, 1),
        "write_and_commit_p50_ms": round(median(took), 1),
        "write_and_commit_p99_ms": round(percentile(took, 0.99), 1),
        "write_and_commit_max_ms": round(max(took), 1),
        "sent_again_per_epoch": round(sum(each["preempted"] for each in found) / sum(epochs), 3),
        "began_late_p99_ms": round(percentile(late, 0.99), 1),
        "epochs_of_a_query": [min(epochs), median(epochs), max(epochs)],
        "p99_of_a_query_ms": [round(each, 1) for each in (min(worst), median(worst), max(worst))],
        "fragments_at_end": fragments,
        "version": version,
        "maintenance_runs": len(runs),
        "maintenance_runs_refused": refused,
        "maintenance_p50_seconds": round(median(runs), 2) if runs else None,
    }


_HIDDEN = ("uri", "start", "part")


def _check(uri: str, found: list[dict[str, Any]], rows: int) -> None:
    """Fail unless each row of each query is there once."""
    ids = np.sort(lance.dataset(uri).to_table(columns=["id"])["id"].to_numpy())
    first = [query["query"] * EPOCHS_OF_A_QUERY * rows for query in found]
    ranges = zip(first, found, strict=True)
    expected = np.sort(
        np.concatenate([np.arange(n, n + each["epochs"] * rows) for n, each in ranges])
    )
    if not np.array_equal(ids, expected):
        raise AssertionError(f"{len(ids)} rows, expected {len(expected)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--trigger", type=float, default=1.0, help="seconds")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--every", type=float, default=10, help="seconds between two maintenances")
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    if given.uri:
        work(given)
    else:
        told = lead(given)
        settings = {name: getattr(given, name) for name in vars(given) if name not in _HIDDEN}
        print(json.dumps(study("crowd", settings, _claims(told, given), told)))


def _claims(told: dict[str, Any], given: Any) -> Iterator[Claim]:
    p99 = told["write_and_commit_p99_ms"]
    yield Claim("crowd: p99 of write and commit, in triggers", p99 / given.trigger / 1000, 1)
    fewest, usual, _ = told["epochs_of_a_query"]
    fair = "crowd: epochs of the slowest query beside the median's"
    yield Claim(fair, fewest / usual, FAIR, atleast=True)


if __name__ == "__main__":
    main()
