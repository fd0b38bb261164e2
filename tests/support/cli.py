"""The command line as a person types it, and a stream for it to look at: real, without Spark."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
from lance.fragment import write_fragments

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import key
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import (
    new_launch_id,
    report_location,
    write_heartbeat,
)
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.supervision.query_state import QueryState
from tests.support.maintenance import rows

QUERY = "orders"
CHECKPOINT_ID = "7f3c"


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it said where."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def typed(*words: str | Path) -> Ran:
    """Run ``lance-stream`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:  # argparse's way
            status = int(ended.code or 0)
    return Ran(status, out.getvalue(), err.getvalue())


def python(*words: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run Python with some words in a process of its own."""
    ran = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **(env or {})},
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


class Stream:
    """A query whose epochs a test commits; its driver's process is another one, which can die."""

    def __init__(
        self, folder: Path, *, pid: int, uri: str | None = None, name: str = QUERY
    ) -> None:
        self.query, self.folder = name, folder
        self.uri = uri or str(folder / "orders.lance")
        self.checkpoint = folder / f"{name}.checkpoint"
        self.launch_id = new_launch_id()
        self._process = ProcessIdentity.of(pid)
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": CHECKPOINT_ID}))
        if not Path(self.uri).exists():
            lance.write_dataset(rows(0, 0), self.uri)
        seen = read_checkpoint(str(self.checkpoint), open_files(str(self.checkpoint)))
        self.committer = DriverSession(open_dataset(self.uri), name, seen, launch_id=self.launch_id)
        self.committer.prepare()
        self.committer.identify(
            Driver(
                "run",
                CHECKPOINT_ID,
                str(self.checkpoint),
                host=self._process.host,
                pid=self._process.pid,
                start=self._process.start,
                launch_id=self.launch_id,
                launched_by="dag:stream",
            )
        )
        self.next = 0
        self.progress: dict[str, Any] = {}
        self.checks = RowChecks()
        self.state: QueryState | None = None

    def step(self, count: int = 1, *, log: bool = True) -> None:
        """Plan, commit and log some epochs as Spark would."""
        for _ in range(count):
            epoch_id, self.next = self.next, self.next + 1
            self.plan(epoch_id)
            fragments = write_fragments(rows(epoch_id * 10, 10), self.uri)
            self.committer.begin(epoch_id).commit(
                Epoch(epoch_id, OutputMode.APPEND, fragments, 10, 160, utc_now())
            )
            if log:
                (self.checkpoint / "commits" / str(epoch_id)).write_text("v1\n{}")
        self.beat()

    def plan(self, epoch_id: int) -> None:
        """Plan an epoch that reads up to its own number."""
        meta = json.dumps({"batchTimestampMs": int(time.time() * 1000)})
        text = f'v1\n{meta}\n{{"logOffset":{epoch_id}}}'
        (self.checkpoint / "offsets" / str(epoch_id)).write_text(text)

    def beat(self) -> None:
        """Write the driver's heartbeat."""
        watermark = self.committer.watermark
        document = {
            "launchId": self.launch_id,
            "queryId": self.query,
            "time": utc_now(),
            "state": "running",
            "busySince": utc_now(),
            "driver": {
                **self._process.to_json(),
                "token": self.committer.owner.token if self.committer.owner else None,
                "launchedBy": "dag:stream",
                "uiAddress": "",
            },
            "progress": self.progress,
            "queryState": self.state.to_json() if self.state else None,
            "sink": {
                "watermark": watermark,
                "committedAt": self.committer.committed_at,
                "checks": self.checks.to_json(),
            },
        }
        write_heartbeat(open_files(report_location(str(self.checkpoint))), self.launch_id, document)

    @property
    def version(self) -> int:
        """Return the dataset's newest version."""
        return open_dataset(self.uri).version

    @property
    def config(self) -> dict[str, str]:
        return dict(open_dataset(self.uri).config)


def write_config(uri: str, **updates: str | None) -> None:
    """Write the config keys of one query by hand: ``write_config(uri, lastEpoch="3")``."""
    open_dataset(uri).commit(
        Configure({key(word, QUERY): value for word, value in updates.items()})
    )


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does nothing, to play a driver's."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
