"""What the Airflow tests stand on: real connections and datasets, a spark-submit that plays."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

# Airflow writes its configuration there when it is first imported.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))

import lance
import pyarrow as pa
import pytest
from airflow.sdk.configuration import clear_secrets_backends_cache

from airflow_provider_lance.operators.supervision import Supervision
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from tests.support.isolation import isolated
from tests.support.turns import OtherRuns

SECRET = "s3cr3t-of-the-store"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})

AddConnection = Callable[..., None]
Shown = Callable[[], str]
SparkOn = Callable[..., "SparkSubmit"]


@pytest.fixture(autouse=True)
def no_process_and_no_socket() -> Iterator[None]:
    with isolated() as refused:
        yield
    assert not refused, "starts a process or uses a socket: belongs in tests/processes"


@pytest.fixture
def add_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Define connections in a secrets backend, so that none of them is in the environment."""
    path, known = tmp_path / "connections.json", {}
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", backend)
    kwargs = json.dumps({"connections_file_path": str(path)})
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", kwargs)
    path.write_text("{}")
    clear_secrets_backends_cache()

    def add(conn_id: str, extra: dict[str, Any] | str | None = None, **fields: Any) -> None:
        text = extra if isinstance(extra, str) or extra is None else json.dumps(extra)
        known[conn_id] = {**fields, **({"extra": text} if text is not None else {})}
        path.write_text(json.dumps(known))

    yield add
    clear_secrets_backends_cache()


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Shown:
    """Return what was logged or printed since the last call, wherever Airflow sends it."""

    def read() -> str:
        text = caplog.text + "".join(capfd.readouterr())
        caplog.clear()
        return text

    return read


class TaskInstance:
    """Stands where Airflow's own would: keeps what is pushed."""

    dag_id, task_id, run_id, map_index = "dag", "stream", "run", -1

    def __init__(self, try_number: int = 1, max_tries: int = 0) -> None:
        self.xcoms: dict[str, Any] = {}
        self.try_number, self.max_tries = try_number, max_tries

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture
def ti() -> TaskInstance:
    return TaskInstance()


class Stream:
    """A streaming query as a driver would run it, epoch by epoch, without Spark."""

    def __init__(self, uri: str, query_id: str = "flights", launched_by: str = "") -> None:
        self.uri = uri
        checkpoint = Checkpoint("/checkpoint", "checkpoint-id")
        self._committer = DriverSession(open_dataset(uri), query_id, checkpoint)
        self._committer.prepare()
        self._committer.identify(
            Driver(
                run_id="run",
                checkpoint_id="checkpoint-id",
                checkpoint_location="/checkpoint",
                launched_by=launched_by,
            )
        )

    def commit(self, epoch_id: int) -> None:
        fragments = lance.fragment.write_fragments(ROWS, self.uri)
        self._committer.begin(epoch_id).commit(
            Epoch(epoch_id, OutputMode.APPEND, fragments, len(ROWS), 0, utc_now())
        )

    def release(self) -> None:
        self._committer.release()


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """Make an empty dataset."""
    uri = str(tmp_path / "flights.lance")
    lance.write_dataset(ROWS.slice(0, 0), uri)
    return uri


def supervised(**arguments: Any) -> dict[str, Any]:
    """Return an operator's arguments with those of its supervision in one value."""
    names = arguments.keys() & {item.name for item in fields(Supervision)}
    supervision = Supervision(**{name: arguments.pop(name) for name in names})
    return {"supervision": supervision} | arguments


FAKE = '''#!{python}
"""Plays spark-submit: takes notes, then leaves behind what the test ordered."""
import json, os, signal, sys, time

order = json.load(open(os.environ["SPARK_FAKE_ORDER"]))
argv = sys.argv[1:]
option = lambda name: argv[argv.index(name) + 1]
sys.path.insert(0, option("--py-files").split(",")[0])
from airflow_provider_lance.protocol import files
from airflow_provider_lance.supervision import driver_reports as report
from airflow_provider_lance.spec import job as spec
from airflow_provider_lance.maintenance.options import MaintenanceSpec

assert spec.__file__.startswith(sys.path[0]), "the job must come from the zip"
applications = ("/job.py", "/maintain.py")
job_file = next(n for n, word in enumerate(argv) if word.endswith(applications))
maintains = argv[job_file].endswith("/maintain.py")
path, *rest = argv[job_file + 1:]
if not os.path.isabs(path):
    path = option("--files").split(",")[-1]
    assert argv[-1] == os.path.basename(path)
else:
    assert rest[:2] == (["--remove", "--report"] if maintains else ["--remove"])
job = (MaintenanceSpec if maintains else spec.JobSpec).loads(open(path).read())
secrets = (job if maintains else job.sink).storage_options.values()
seen = " ".join(argv) + json.dumps(dict(os.environ))
notes = {{
    "argv": argv,
    "environment": dict(os.environ),
    "pyspark_python": os.environ.get("PYSPARK_PYTHON"),
    "mode": oct(os.stat(path).st_mode & 0o777),
    "folder_mode": oct(os.stat(os.path.dirname(path)).st_mode & 0o777),
    "spec_file": path,
    "spec": json.loads(job.dumps()),
    "leaked": [v for v in secrets if v in seen],
    "stdin": os.readlink("/proc/self/fd/0"),
    "pid": os.getpid(),
}}
if order.get("child"):
    notes["child"] = os.fork() or os.execlp("sleep", "sleep", "600")
hidden = os.environ["SPARK_FAKE_NOTES"] + ".new"
json.dump(notes, open(hidden, "w"))
os.rename(hidden, os.environ["SPARK_FAKE_NOTES"])
for line in order.get("say", []):
    print(line, flush=True)
if maintains:
    if order.get("work"):
        from airflow_provider_lance.protocol.dataset import open_dataset
        from airflow_provider_lance.maintenance.run import maintain

        maintain(open_dataset(job.uri), job.options)
    if order.get("report") is not None:
        open(rest[2], "w").write(json.dumps(order["report"]))
    place = os.path.dirname(path)
else:
    place = report.report_location(job.sink.checkpoint_location)
reports = files.open_files(place)
if order.get("unreadable_heartbeat"):
    os.makedirs(os.path.join(place, job.launch_id, "heartbeat.json"))
    time.sleep(0.3)
for beat in order.get("heartbeats", []):
    report.write_heartbeat(reports, job.launch_id, beat)
    time.sleep(order.get("beat_seconds", 0.2))
if order.get("summary") is not None and not maintains:
    made = {{
        "launchId": job.launch_id, "queryId": job.sink.query_id, "uri": job.sink.uri,
        "reason": "finished", "epochs": 2, "rows": 6, "deletes": 0, "skipped": 0,
        "firstEpoch": 0, "lastEpoch": 1, "watermark": 1, "version": 5, "manifestUpdates": 3,
        "released": True, "seconds": 1.5, **order["summary"],
    }}
    report.write_summary(reports, report.Summary.from_json(made))
if order.get("signal"):
    os.kill(os.getpid(), order["signal"])
while order.get("hang") and not os.path.exists(os.environ["SPARK_FAKE_ORDER"] + ".go"):
    time.sleep(0.02)
sys.exit(order.get("exit", 0))
'''


class SparkSubmit:
    """A ``spark-submit`` first on PATH; ``orders`` says how it ends, ``notes`` what it saw."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._order, self._notes = folder / "order.json", folder / "notes.json"
        binary = folder / "bin" / "spark-submit"
        binary.parent.mkdir()
        binary.write_text(FAKE.format(python=sys.executable))
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SPARK_FAKE_ORDER", str(self._order))
        monkeypatch.setenv("SPARK_FAKE_NOTES", str(self._notes))
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        self.orders(summary={})

    def orders(self, **order: Any) -> None:
        self._order.write_text(json.dumps(order))
        self._notes.unlink(missing_ok=True)

    def let_go(self) -> None:
        """End the drivers that were ordered to hang."""
        self._order.with_name(f"{self._order.name}.go").touch()

    @property
    def ran(self) -> bool:
        """Tell whether it was run since it got its last orders."""
        return self._notes.exists()

    @property
    def notes(self) -> dict[str, Any]:
        return json.loads(self._notes.read_text())


@pytest.fixture
def spark_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add_connection: AddConnection
) -> SparkOn:
    """Return what makes a ``spark-submit`` for a master, with environment variables."""

    def make(host: str, **environment: str) -> SparkSubmit:
        add_connection("spark_default", conn_type="spark", host=host)
        monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "drivers"))
        OtherRuns(monkeypatch)  # none
        made = SparkSubmit(tmp_path, monkeypatch)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return made

    return make


@pytest.fixture
def spark_submit(spark_on: SparkOn) -> SparkSubmit:
    return spark_on("local[2]")
