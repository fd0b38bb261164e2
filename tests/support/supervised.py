"""A launch as those who watch it find it: real files, dataset and processes; no Spark."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.backends import base
from airflow_provider_lance.backends.launch import Launch, UnseenDriver
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.files import Files, open_files
from airflow_provider_lance.protocol.model import (
    Driver,
    Epoch,
    OutputMode,
    QueryState,
    StopNote,
    utc_now,
)
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    report_location,
    write_heartbeat,
    write_summary,
)
from airflow_provider_lance.supervision.process import ProcessIdentity

QUERY = "flights"
ME = "dag/stream/run/-1#2"
EARLIER_TRY = "dag/stream/run/-1#1"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
ELSEWHERE = ProcessIdentity("elsewhere", 4711, "another-boot/1:99")


def heartbeat(**changes: Any) -> dict[str, Any]:
    """Return what an idle driver writes; ``changes`` go into its top level, driver or sink."""
    document: dict[str, Any] = {
        "launchId": "launch",
        "queryId": QUERY,
        "time": utc_now(),
        "state": "running",
        "busySince": None,
        "driver": {"uiAddress": "http://driver:4040", "token": 1},
        "sink": {"epoch": 4, "version": 9, "rows": 3, "totalRows": 12, "watermark": 4},
        "progress": None,
    }
    for name, value in changes.items():
        part = next((document[p] for p in ("driver", "sink") if name in document[p]), document)
        part[name] = value
    return document


def summary(reason: EndReason = EndReason.FINISHED, **changes: Any) -> Summary:
    """Return the last word of a driver that committed two epochs."""
    fields: dict[str, Any] = {
        "launch_id": "launch",
        "query_id": QUERY,
        "uri": "/flights.lance",
        "reason": reason,
        "epochs": 2,
        "rows": 6,
        "deletes": 0,
        "skipped": 0,
        "first_epoch": 3,
        "last_epoch": 4,
        "watermark": 4,
        "version": 9,
        "manifest_updates": 3,
        "released": True,
        "seconds": 1.5,
    }
    return Summary(**(fields | changes))


class Supervised:
    """One launch below a folder: its dataset, its checkpoint with reports, its processes."""

    def __init__(self, root: Path, launch_id: str = "launch") -> None:
        self.launch_id = launch_id
        self.uri, self.checkpoint = str(root / "flights.lance"), str(root / "checkpoint")
        self.folder = RunDirectory(root / "streams", QUERY, launch_id)
        self.reports = open_files(report_location(self.checkpoint))
        self._started: list[subprocess.Popen[bytes]] = []
        self._beats = 0
        if not Path(self.uri).exists():
            lance.write_dataset(ROWS.slice(0, 0), self.uri)

    # --- The driver's process ------------------------------------------------------------------

    def process(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, as a driver is; by default one that waits."""
        started = subprocess.Popen(
            command or ("sleep", "300"), stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._started.append(started)
        return started

    def local(self, process: subprocess.Popen[bytes] | None = None) -> LocalDriver:
        """Return a driver on this host, whose keeper is gone."""
        keeper = self.process("true")
        identity = ProcessIdentity.of(keeper.pid)
        keeper.wait()
        self.folder.make()
        driver = ProcessIdentity.of((process or self.process()).pid)
        return LocalDriver(str(self.folder.path), driver, identity)

    def remote(self) -> LocalDriver:
        """Return a driver that another host started."""
        return LocalDriver("/elsewhere/flights/launch", ELSEWHERE, ELSEWHERE)

    def launch(self, driver: base.Driver | None = None, **changes: Any) -> Launch:
        fields: dict[str, Any] = {
            "launch_id": self.launch_id,
            "query_id": QUERY,
            "uri": self.uri,
            "checkpoint_location": self.checkpoint,
            "launched_at": utc_now(),
            "launched_by": ME,
            "driver": driver or UnseenDriver(),
        }
        return Launch(**(fields | changes))

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    # --- What a driver leaves on disk ----------------------------------------------------------

    @property
    def heartbeat_file(self) -> Path:
        return Path(report_location(self.checkpoint), self.launch_id, "heartbeat.json")

    def beat(self, **changes: Any) -> None:
        """Write a heartbeat that is another than the one before."""
        self._beats += 1
        document = heartbeat(**({"beat": self._beats} | changes))
        write_heartbeat(self.reports, self.launch_id, document)

    def say(self, reason: EndReason = EndReason.FINISHED, **changes: Any) -> None:
        write_summary(self.reports, summary(reason, launch_id=self.launch_id, **changes))

    def plan(self, epoch_id: int, *, commit: bool = False) -> None:
        """Write Spark's notes of an epoch: planned, and done if ``commit``."""
        folder = Path(self.checkpoint)
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text('{"id":"checkpoint-id"}')
        (folder / "offsets" / str(epoch_id)).write_text('v1\n{"batchTimestampMs":1}\n{}')
        if commit:
            (folder / "commits" / str(epoch_id)).write_text("v1\n{}")

    # --- The dataset ---------------------------------------------------------------------------

    def owner(
        self, process: ProcessIdentity = ELSEWHERE, launch_id: str = "", launched_by: str = ME
    ) -> DriverSession:
        """Let a driver own the query, as its first commit does; return what it commits with."""
        checkpoint = Checkpoint(self.checkpoint, "checkpoint-id", planned=99)
        made = DriverSession(open_dataset(self.uri), QUERY, checkpoint)
        epoch_id = made.prepare().epoch + 1
        made.identify(
            Driver(
                run_id="run",
                checkpoint_id="checkpoint-id",
                checkpoint_location=self.checkpoint,
                host=process.host,
                pid=process.pid,
                start=process.start,
                launch_id=launch_id or self.launch_id,
                launched_by=launched_by,
            )
        )
        fragments = lance.fragment.write_fragments(ROWS, self.uri)
        made.begin(epoch_id).commit(
            Epoch(epoch_id, OutputMode.APPEND, fragments, len(ROWS), 0, utc_now())
        )
        return made

    @property
    def state(self) -> QueryState:
        port = open_dataset(self.uri)
        return decode_query(port.config, QUERY, port.version)

    @property
    def asked(self) -> StopNote | None:
        """Return the stop request that stands."""
        return self.state.stop_note


class CountingHook(LanceHook):
    """Notes every question to the store in ``asked``; while ``down`` the store answers none."""

    def __init__(self, lance_conn_id: str | None = None) -> None:
        super().__init__(lance_conn_id)
        self.asked: list[str] = []
        self.down = False

    def note(self, question: str) -> None:
        self.asked.append(question)
        if self.down:
            raise StorageUnavailableError(f"the store is down: {question}")

    def open(self, uri: str) -> LanceDatasetPort:
        self.note("open")
        return super().open(uri)

    def files(self, location: str) -> Files:
        return _CountingFiles(super().files(location), self)


class _CountingFiles:
    def __init__(self, files: Files, hook: CountingHook) -> None:
        self._files, self._hook = files, hook

    def read(self, path: str) -> bytes | None:
        self._hook.note(f"read {path}")
        return self._files.read(path)

    def names(self, path: str) -> list[str]:
        self._hook.note(f"list {path}")
        return self._files.names(path)

    def write(self, path: str, content: bytes) -> None:
        raise AssertionError("a supervisor writes nothing")

    def remove(self, path: str) -> None:
        raise AssertionError("a supervisor removes nothing")


def here(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = ProcessIdentity.of(process.pid)
    assert identity.host == socket.gethostname()
    return identity


def killed(process: subprocess.Popen[bytes]) -> None:
    """End a process at once, and reap it."""
    process.kill()
    assert process.wait() == -signal.SIGKILL
