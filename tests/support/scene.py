"""The stage of one scenario: a source that keeps growing, a dataset, a task that streams, eyes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_lance import shipping
from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import EpochStamp, Owner
from airflow_provider_lance.protocol.stop_requests import request_stop
from tests.support.airflow import Airflow
from tests.support.watch import Driver, Process, Timeline, drivers, process

TASK = "stream"
ENDED = ("success", "failed")
ROWS_PER_FILE = 100


@dataclass(frozen=True)
class Counts:
    """The dataset against the source files, counted without Spark and without the stream."""

    rows_in: int
    rows_out: int
    duplicates: int
    missing: int

    @property
    def exact(self) -> bool:
        return self.rows_in == self.rows_out and not self.duplicates and not self.missing


class Scene:
    """One query in one folder, streamed by one task of a DAG while its source grows."""

    def __init__(self, airflow: Airflow, folder: Path, dag_id: str) -> None:
        self.airflow, self.folder, self.dag_id = airflow, folder, dag_id
        self.query_id = f"{folder.name}.query"
        self.uri = str(folder / "table.lance")
        self.checkpoint = folder / "checkpoint"
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        self.runs: list[str] = []
        self._by_hand: subprocess.Popen[bytes] | None = None
        self.summaries: dict[str, dict[str, Any]] = {}
        self.timeline = Timeline(self.drivers, self._look)
        self._feeding = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._files = 0
        self._stamps: list[EpochStamp] = []
        self._read_to = 0

    def __enter__(self) -> Self:
        shipping.build_zip(self.folder)
        self._spec_file.write_text(json.dumps(self._spec()))
        self._feeding.set()
        self._feeder.start()
        self.timeline.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_feeding()
        try:
            self._leave_nothing()
        finally:
            self.timeline.__exit__(kind, error, traceback)

    def _leave_nothing(self) -> None:
        left = []
        with suppress(OSError):  # an Airflow that is down already
            left = [run for run in self.runs if self.state(run)[0] not in ENDED]
            for run_id in left:
                self.airflow.mark(self.dag_id, run_id, TASK, "failed")
        # A supervisor may replace what is killed here until it has noticed the failed task.
        quiet = time.monotonic() + (5 if left else 0)
        while (living := self.drivers()) or time.monotonic() < quiet:
            for driver in living:
                driver.signal(signal.SIGKILL)
            time.sleep(0.3)
        if self._by_hand:
            self._by_hand.wait(30)

    # --- The source -------------------------------------------------------------------------------

    @property
    def _spec_file(self) -> Path:
        return self.folder / "spec.json"

    def _spec(self) -> dict[str, Any]:
        """Return the job specification that a stock operator, or a hand, submits."""
        return {
            "launchId": "spark-submit",
            "source": {
                "format": "parquet",
                "options": {"path": str(self.source), "maxFilesPerTrigger": "1"},
                "schema": "id BIGINT, amount DOUBLE",
            },
            "sink": {
                "uri": self.uri,
                "queryId": self.query_id,
                "checkpointLocation": str(self.checkpoint),
                "createIfMissing": True,
            },
            "trigger": "500 milliseconds",
        }

    def stop_feeding(self) -> None:
        """Let the source grow no more."""
        self._feeding.clear()
        if self._feeder.is_alive():
            self._feeder.join(30)

    def _feed(self) -> None:
        while self._feeding.is_set():
            first = self._files * ROWS_PER_FILE
            ids = range(first, first + ROWS_PER_FILE)
            rows = pa.table({"id": ids, "amount": [n / 2 for n in ids]})
            hidden = self.source / f"_{self._files:06}.parquet"
            pq.write_table(rows, hidden)
            # Spark takes files in the order of their times.
            born = 1_700_000_000 + self._files
            os.utime(hidden, (born, born))
            hidden.rename(self.source / f"{self._files:06}.parquet")
            self._files += 1
            time.sleep(1.0)

    def count(self) -> Counts:
        """Count what came in, from the files themselves, and what is in the dataset."""
        files = sorted(self.source.glob("[!_]*.parquet"))
        came = [n for file in files for n in pq.read_table(file).column("id").to_pylist()]
        stored = self.port().dataset.to_table(columns=["id"]).column("id").to_pylist()
        return Counts(
            rows_in=len(came),
            rows_out=len(stored),
            duplicates=sum(n - 1 for n in Counter(stored).values()),
            missing=len(set(came) - set(stored)),
        )

    # --- The task ---------------------------------------------------------------------------------

    def run(self) -> str:
        """Start one more DAG run over this query."""
        run_id = self.airflow.trigger(
            self.dag_id, {"folder": str(self.folder), "query": self.query_id}
        )
        self.runs.append(run_id)
        return run_id

    def submit_by_hand(self) -> None:
        """Start a driver of this query that no task knows of."""
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.log.level": "WARN",
        }
        self._by_hand = subprocess.Popen(
            [
                "spark-submit",
                "--master=local[1]",
                f"--name={self.query_id}",
                *(f"--conf={name}={value}" for name, value in settings.items()),
                f"--py-files={self.folder}/airflow_provider_lance.zip",
                str(shipping.application_path()),
                str(self._spec_file),
            ],
            env=self.airflow.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def task(self, run_id: str = "") -> dict[str, Any]:
        """Return the streaming task instance, of the first DAG run unless said otherwise."""
        return self.airflow.tasks(self.dag_id, run_id or self.runs[0])[TASK]

    def state(self, run_id: str = "") -> tuple[str | None, int]:
        """Return the task's state and the number of its try."""
        task = self.task(run_id)
        return task["state"], task["try_number"]

    def mark(self, state: str) -> None:
        self.airflow.mark(self.dag_id, self.runs[0], TASK, state)

    def clear(self) -> None:
        self.airflow.clear(self.dag_id, self.runs[0], TASK)

    def runner(self) -> Process:
        """Return the process that runs the task's code."""
        found = process(int(self.task()["pid"]))
        assert found, "the task runs, so its process does"
        return found

    def supervisor(self) -> Process:
        """Return the LocalExecutor's process above the runner: Airflow's worker here."""
        found = process(self.runner().parent)
        assert found
        assert "LocalExecutor" in found.command[0], found.command
        return found

    # --- The drivers and what they commit ---------------------------------------------------------

    def drivers(self) -> list[Driver]:
        """Return this query's live drivers, oldest first."""
        return drivers(f"{self.folder}/", self.query_id)

    def port(self) -> LanceDatasetPort:
        return open_dataset(self.uri)

    def owner(self) -> Owner | None:
        try:
            port = self.port()
        except LanceStreamError:
            return None
        return decode_query(port.config, self.query_id, port.version).owner

    def stamps(self) -> list[EpochStamp]:
        """Return the epochs in the dataset's history, in the order of their commits."""
        try:
            port = self.port()
        except LanceStreamError:
            return []
        for version in range(self._read_to + 1, port.version + 1):
            if stamp := decode_stamp(port.properties(version) or {}, self.query_id, version):
                self._stamps.append(stamp)
        self._read_to = port.version
        return list(self._stamps)

    def commits(self, *, after: float = 0.0, of: str = "", but: str = "") -> list[float]:
        """Return when epochs landed, in seconds of the clock: of one Spark run, or but of one."""
        times = [
            _seconds(each.committed_at)
            for each in self.stamps()
            if each.run_id != but and (not of or each.run_id == of)
        ]
        return [moment for moment in times if moment > after]

    def pause(self, around: float) -> float:
        """Return the longest time without a commit that ended after a moment, in seconds."""
        times = self.commits()
        gaps = itertools.pairwise(times)
        return max((later - now for now, later in gaps if later > around), default=0.0)

    def flows(self) -> bool:
        """Tell whether epochs land now; the source grows every second."""
        return bool(self.commits(after=time.time() - 5))

    def planned(self) -> int | None:
        """Return the epoch that is planned and neither in Spark's log nor in the dataset."""
        offsets, done = (self._newest(name) for name in ("offsets", "commits"))
        return offsets if offsets > done else None

    def _newest(self, folder: str) -> int:
        try:
            names = os.listdir(self.checkpoint / folder)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)

    # --- Waiting ----------------------------------------------------------------------------------

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
        return self.airflow.wait_for(f"{what} ({self.folder.name})", condition, seconds)

    def flowing(self, epochs: int = 4, *, after: float = 0.0, but: str = "") -> str:
        """Wait until some epochs have landed; return the Spark run that the last belongs to."""
        self.wait(f"{epochs} epochs", lambda: len(self.commits(after=after, but=but)) >= epochs)
        return self.stamps()[-1].run_id

    def settle(self, quiet: float = 10.0, seconds: float = 90.0) -> bool:
        """Wait until all stays as it is and at most one driver lives, and commits; tell if so."""
        seen: Any = None
        since = time.monotonic()
        deadline = since + seconds
        while time.monotonic() < deadline:
            now = ([self.state(run) for run in self.runs], [each.key for each in self.drivers()])
            if now != seen:
                seen, since = now, time.monotonic()
            moving = any(state not in (*ENDED, "running", "deferred") for state, _ in now[0])
            moving = moving or len(now[1]) > 1 or bool(now[1] and not self.flows())
            if not moving and time.monotonic() - since > quiet:
                return True
            time.sleep(0.5)
        return False

    def catch_up(self) -> None:
        """Stop the source and wait until all of it is in the dataset."""
        self.stop_feeding()
        self.wait("all rows", lambda: self.count().missing == 0)

    def stop(self, seconds: float = 180) -> tuple[str | None, int]:
        """Ask the query to stop in order, wait for the task's end; return how it ended.

        One request reaches one owner: where there are more drivers, each is asked in its turn.
        """
        asked = 0.0

        def ended() -> bool:
            nonlocal asked
            if time.monotonic() - asked > 10:
                asked = time.monotonic()
                request_stop(self.port(), self.query_id)
            return self.state(self.runs[-1])[0] in ENDED

        self.wait("the task's end", ended, seconds)
        return self.state(self.runs[-1])

    def _look(self) -> Any:
        self.read_summaries()
        return [self.state(run) for run in self.runs]

    def read_summaries(self) -> dict[str, dict[str, Any]]:
        """Return the summaries that drivers have left so far, by Spark's run id."""
        for file in Path(f"{self.checkpoint}.reports").glob("*/summary.json"):
            try:
                document = json.loads(file.read_text())
            except (OSError, ValueError):
                continue  # being written just now
            self.summaries[document["runId"]] = document
        return self.summaries


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
