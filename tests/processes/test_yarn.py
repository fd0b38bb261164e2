"""LanceStreamOperator in cluster mode on a real YARN: launched, found again, killed, stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from airflow_provider_lance.backends.launch import ClusterDriver, Launch
from airflow_provider_lance.operators.stream import LanceStreamOperator
from tests.support import cli
from tests.support.processes import REPOSITORY, end, wait_for
from tests.support.yarn import Yarn, yarn_cluster

from .conftest import AddConnection, TaskInstance, supervised

pytestmark = pytest.mark.slow

FILES, ROWS = 10, 30
SLOWLY = "SELECT id FROM source WHERE reflect('java.lang.Thread', 'sleep', 20L) IS NOT NULL"
"""An epoch takes more than half a second: long enough to be killed in its middle."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as started:
        yield started


@pytest.fixture
def stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add_connection: AddConnection, cluster: Yarn
) -> Iterator[Stream]:
    web = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": cluster.address}
    add_connection("spark_default", conn_type="spark", host="yarn", extra=web)
    binaries = Path(pyspark.__file__).parent / "bin"
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "drivers"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.settings))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # only the conf names it
        monkeypatch.delenv(name, raising=False)
    made = Stream(tmp_path, cluster)
    yield made
    made.close()


class Stream:
    """Files with rows, and the task that reads them: each of its tries is a process."""

    def __init__(self, folder: Path, cluster: Yarn) -> None:
        self.folder, self.cluster = folder, cluster
        self.uri, self.checkpoint = str(folder / "orders.lance"), folder / "checkpoint"
        self.known = len(cluster.applications())
        self._tries: list[subprocess.Popen[str]] = []
        (folder / "in").mkdir()
        for number in range(FILES):
            ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
            pq.write_table(pa.table({"id": ids}), folder / "in" / f"{number:03}.parquet")

    def start_try(self) -> subprocess.Popen[str]:
        """Start the task's next try."""
        number = len(self._tries) + 1
        given = {"folder": str(self.folder), "conf": self.cluster.conf, "try": number}
        with (self.folder / f"try-{number}.log").open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.test_yarn", json.dumps(given)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._tries.append(started)
        return started

    def log(self) -> str:
        """Return the log of the newest try."""
        return (self.folder / f"try-{len(self._tries)}.log").read_text()

    def result(self) -> dict[str, Any]:
        """Wait for the end of the newest try; return what the task returns."""
        status = self._tries[-1].wait(120)
        assert status == 0, self.log()[-4000:]
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    def applications(self) -> list[dict[str, Any]]:
        """Return the applications of this stream."""
        return self.cluster.applications()[self.known :]

    def ends(self) -> dict[str, str]:
        """Return what YARN says of the end of each application of this stream."""
        return {each["id"]: each["finalStatus"] for each in self.applications()}

    def running(self, number: int) -> str:
        """Wait until the application of this number streams; return its id."""
        before = self.committed()

        def streams() -> bool:
            assert self._tries[-1].poll() is None, self.log()[-4000:]
            return len(self.applications()) >= number and self.committed() > before

        wait_for(f"application {number}", streams)
        return str(self.applications()[number - 1]["id"])

    def committed(self) -> int:
        """Return the number of epochs that Spark has noted."""
        return _newest(self.checkpoint / "commits")

    def in_mid_epoch(self) -> None:
        """Wait for an epoch that is planned and not committed."""
        wait_for("an epoch", lambda: _newest(self.checkpoint / "offsets") > self.committed())

    def ids(self) -> list[int]:
        """Return the rows of the dataset, sorted."""
        return sorted(lance.dataset(self.uri).to_table()["id"].to_pylist())

    def all_read(self) -> None:
        """Wait until all files are read."""
        wait_for("all rows", lambda: lance.dataset(self.uri).count_rows() >= FILES * ROWS)

    def note(self) -> dict[str, Any]:
        """Return what the task has noted of its launch."""
        path = self.folder / "state.json"
        noted: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return noted

    def driver(self) -> ClusterDriver:
        """Return the driver of the newest launch."""
        driver = Launch.from_json(self.note()["launch"]).driver
        assert isinstance(driver, ClusterDriver)
        return driver

    def stop(self) -> None:
        """Ask it to stop, as a person does."""
        asked = cli.typed("stop", self.uri, "orders", "--yes")
        assert asked.status == 0, asked

    def close(self) -> None:
        """End what still runs."""
        for each in self._tries:
            end(each)
        for name, how in self.ends().items():
            if how == "UNDEFINED":
                ClusterDriver("yarn", name).kill()


def _newest(folder: Path) -> int:
    numbers = [int(each.name) for each in folder.glob("*") if each.name.isdecimal()]
    return max(numbers, default=-1)


def test_each_row_lands_once_though_workers_executor_master_and_application_are_killed(
    stream: Stream,
) -> None:
    yarn = stream.cluster
    # A worker that dies before it can note the application: the next try finds it by its tag.
    worker = stream.start_try()
    wait_for("spark-submit", lambda: "SparkSubmit" in _command_lines(worker))
    worker.kill()
    wait_for("the application", lambda: bool(stream.applications()))
    assert "cluster" not in stream.note()["launch"], "its id is not known"
    worker = stream.start_try()
    first = stream.running(1)
    assert f"Found the driver again. where=yarn {first}" in stream.log()
    assert stream.driver().name == first
    # An executor: Spark starts another.
    [executor] = yarn.executors(first)
    stream.in_mid_epoch()
    executor.kill()
    stream.running(1)
    assert executor not in yarn.executors(first)
    # The master, with the driver: the operator launches another application.
    stream.in_mid_epoch()
    yarn.master(first).kill()
    second = stream.running(2)
    assert stream.driver().name == second
    assert re.search(_ended("FAILED", first), stream.log())
    assert "Lost executor" in yarn.logs(first), "the command that the task's log names"
    # The application, by YARN, while no worker watches it: the next try launches another.
    worker.kill()
    stream.in_mid_epoch()
    assert stream.driver().kill()
    wait_for("its end", lambda: stream.driver().alive() is False)
    stream.start_try()
    third = stream.running(3)
    assert re.search(_ended("KILLED", second), stream.log())
    # It is asked to stop.
    stream.all_read()
    stream.stop()
    assert stream.result()["reason"] == "stopped"
    # The driver's last report ends the task; YARN knows of the end a moment later.
    wait_for("YARN's word on the end", lambda: "UNDEFINED" not in stream.ends().values())
    assert stream.ends() == {first: "FAILED", second: "KILLED", third: "SUCCEEDED"}
    assert stream.ids() == list(range(FILES * ROWS))


def _ended(how: str, name: str) -> str:
    """Return a pattern of what the task's log says of an application's end."""
    log = rf"its log: `yarn logs -applicationId {name}`"
    return rf"process is gone \(exit status 1, YARN says {how}: Application.*; {log}\)"


def _command_lines(process: subprocess.Popen[str]) -> str:
    """Return the command lines of a process's children, and theirs."""
    lines = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            lines += each.cmdline()
    return " ".join(lines)


class FileStore:
    """Airflow's task state, as it outlives a worker."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self._path.read_text()) if self._path.exists() else default

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(value))
        new.replace(self._path)


def _run(folder: Path, conf: dict[str, str], number: int) -> None:
    """Execute one try of the task."""
    task = LanceStreamOperator(
        **supervised(
            task_id="stream",
            uri=str(folder / "orders.lance"),
            query_id="orders",
            checkpoint_location=str(folder / "checkpoint"),
            source={
                "format": "parquet",
                "options": {"path": str(folder / "in"), "maxFilesPerTrigger": "1"},
                "schema": "id BIGINT",
            },
            sql=SLOWLY,
            trigger="100 milliseconds",
            create_if_missing=True,
            deferrable=False,
            lance_conn_id=None,
            conf={
                **conf,
                "spark.pyspark.python": sys.executable,
                "spark.executor.instances": "1",
                "spark.yarn.maxAppAttempts": "1",
            },
            poll_interval=0.5,
            restart_delay=timedelta(milliseconds=100),
        )
    )
    store = FileStore(folder / "state.json")
    context: Any = {"ti": TaskInstance(number, 5), "task_state_store": store}
    (folder / "result.json").write_text(json.dumps(task.execute(context)))


if __name__ == "__main__":
    words = json.loads(sys.argv[1])
    _run(Path(words["folder"]), words["conf"], words["try"])
