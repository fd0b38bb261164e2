"""A standalone Spark cluster on loopback, of the pip package: a master and workers of one core."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.support.processes import QUICK_JAVA, end, wait_for

_SPARK = Path(pyspark.__file__).parent
_PACKAGE = "org.apache.spark.deploy"


@dataclass
class Cluster:
    """A cluster that runs; ``folder`` has its logs, its executors' logs, and event logs."""

    folder: Path
    port: int
    web_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def conf(self) -> dict[str, str]:
        """What an application needs to be at home here, and to leave an event log."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "600m",
            "spark.ui.enabled": "false",
            # No task before both executors are there: a test asks where its tasks ran.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.eventLog.enabled": "true",
            "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={tempfile.gettempdir()}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.event_folder.as_uri(),
        }

    @property
    def event_folder(self) -> Path:
        return self.folder / "events"

    def events(self) -> list[dict[str, Any]]:
        """Return the event logs of all applications that have run."""
        lines = [line for text in self._texts(self.event_folder) for line in text.splitlines()]
        return [json.loads(line) for line in lines]

    def words(self) -> str:
        """Return whatever master, workers, executors and event logs wrote."""
        return "\n".join(self._texts(self.folder))

    @staticmethod
    def _texts(folder: Path) -> list[str]:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        skipped = (".jar", ".zip", ".crc", ".py")
        return [path.read_text("utf-8", "replace") for path in files if path.suffix not in skipped]

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [str(_SPARK / "bin" / "spark-class"), f"{_PACKAGE}.{name}", *arguments]
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)

    def alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/") as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # while the master starts, its page answers for its JSON
            return 0

    def busy_executors(self) -> list[psutil.Process]:
        """Return the executors that run a task, by what they have logged."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                place = Path(each.cwd())
                if self.folder in place.parents and each.name() == "java":
                    said = (place / "stderr").read_text("utf-8", "replace")
                    is_busy = said.count("Running task") > said.count("Finished task")
                    found += [each] if is_busy else []
        return found

    def submit(self, application: Path, code: Path, *arguments: str) -> tuple[int, str]:
        """Run an application with spark-submit; return its status and output."""
        conf = (f"{key}={value}" for key, value in self.conf.items())
        options = [word for each in conf for word in ("--conf", each)]
        command = [_SPARK / "bin" / "spark-submit", "--master", self.master, *options]
        ran = subprocess.run(
            [*map(str, command), "--py-files", str(code), str(application), *arguments],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster; it ends with the block, executors and all."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, *_free_ports(2))
    cluster.event_folder.mkdir()
    host = ("--host", "127.0.0.1")
    ports = ("--port", str(cluster.port), "--webui-port", str(cluster.web_port))
    try:
        cluster.start("master.Master", *host, *ports)
        for number in range(workers):
            place = ("--work-dir", str(folder / f"worker-{number}"), "--webui-port", "0")
            size = ("--cores", "1", "--memory", "1g")
            cluster.start("worker.Worker", *host, *place, *size, cluster.master)
        wait_for(f"{workers} workers", lambda: cluster.alive_workers() == workers)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            end(process)  # type: ignore[arg-type]


def _environment() -> dict[str, str]:
    ours = {
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {**os.environ, **ours}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
