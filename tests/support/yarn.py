"""A YARN cluster on loopback, of Maven's jars: a resource manager and a node manager."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from tests.support.jars import JarsUnavailableError, fetched_jars
from tests.support.processes import QUICK_JAVA, wait_for

VERSION = os.environ.get("HADOOP", "3.5.0")
"""Of the cluster; the client is in PySpark's own jars."""

_SPARK = Path(pyspark.__file__).parent
_SERVER = "org.apache.hadoop.yarn.server"
_LOGS = "org.apache.hadoop.yarn.client.cli.LogsCLI"
_LOG = """
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
_OPEN = "--add-opens=java.base/java.lang=ALL-UNNAMED"


@dataclass(frozen=True, slots=True)
class Yarn:
    """A cluster that runs; ``folder`` has its settings, logs and containers."""

    folder: Path
    address: str
    """Of the resource manager's REST API."""

    @property
    def settings(self) -> Path:
        """Return what ``HADOOP_CONF_DIR`` takes."""
        return self.folder / "conf"

    @property
    def conf(self) -> dict[str, str]:
        """Return what an application needs to be at home here."""
        return {
            # Spark's jars are on every host; otherwise each launch copies 400 MB.
            "spark.yarn.jars": f"local:{_SPARK}/jars/*",
            "spark.yarn.stagingDir": self.folder.as_uri(),
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.driver.memory": "600m",
            "spark.executor.memory": "600m",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.ui.enabled": "false",
        }

    def ask(self, path: str) -> Any:
        """Return what the REST API answers."""
        with urllib.request.urlopen(f"{self.address}/ws/v1/cluster/{path}") as answer:
            return json.load(answer)

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications, oldest first."""
        found = (self.ask("apps").get("apps") or {}).get("app", [])
        return sorted(found, key=lambda each: str(each["id"]))

    def application(self, name: str) -> dict[str, Any]:
        """Return one application."""
        found: dict[str, Any] = self.ask(f"apps/{name}")["app"]
        return found

    def containers(self, name: str, main: str) -> list[psutil.Process]:
        """Return the JVMs of an application's containers whose command line has a main class."""
        found = []
        for each in self._processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                program, *words = each.cmdline()
                found += [each] if "java" in program and any(main in w for w in words) else []
        return found

    def master(self, name: str) -> psutil.Process:
        """Return the JVM of an application's master, which has the driver."""
        [found] = self.containers(name, "org.apache.spark.deploy.yarn.ApplicationMaster")
        return found

    def executors(self, name: str) -> list[psutil.Process]:
        """Return the JVMs of an application's executors."""
        return self.containers(name, "YarnCoarseGrainedExecutorBackend")

    def logs(self, name: str) -> str:
        """Return what ``yarn logs -applicationId`` prints."""
        command = [_java(), *QUICK_JAVA.split(), "-cp", f"{self.settings}:{yarn_jars()}/*", _LOGS]
        done = subprocess.run(
            [*command, "-applicationId", name],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout + done.stderr

    def _processes(self, of: str) -> list[psutil.Process]:
        """Return the processes of the containers here whose environment has a text."""
        found, here = [], str(self.folder)
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = each.environ()
                container, place = (environment.get(name, "") for name in ("CONTAINER_ID", "PWD"))
                is_ours = place.startswith(here) and of.removeprefix("application") in container
                found += [each] if container and is_ours else []
        return found

    def end_containers(self) -> None:
        """Kill what the node manager left behind."""
        for each in self._processes(""):
            with contextlib.suppress(psutil.Error):
                each.kill()


def yarn_jars() -> Path:
    """Return the folder with the jars of both managers."""
    parts = ("yarn-server-nodemanager", "yarn-server-timelineservice", "yarn-client", "common")
    beside = [f"org.apache.hadoop:hadoop-{part}:{VERSION}" for part in parts]
    name = f"hadoop-yarn-server-resourcemanager:{VERSION}"
    try:
        return fetched_jars("org.apache.hadoop", name, beside=beside)
    except JarsUnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """Start a cluster; it ends with the block, containers and all."""
    jars = yarn_jars()
    ports = _free_ports(5)
    cluster = Yarn(folder, f"http://127.0.0.1:{ports[4]}")
    cluster.settings.mkdir(parents=True)
    core, yarn = _settings(folder, ports)
    _write(cluster.settings / "core-site.xml", core)
    _write(cluster.settings / "yarn-site.xml", yarn)
    (cluster.settings / "log4j.properties").write_text(_LOG)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.end_containers)
        stack.enter_context(_server(cluster, jars, "resourcemanager.ResourceManager", nodes=0))
        # A node manager that comes first waits half a minute for its second try.
        stack.enter_context(_server(cluster, jars, "nodemanager.NodeManager", nodes=1))
        yield cluster


def _settings(folder: Path, ports: list[int]) -> tuple[dict[str, str], dict[str, str]]:
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    here = "127.0.0.1"
    places = zip((*names, "webapp.address"), ports, strict=True)
    manager = {f"yarn.resourcemanager.{name}": f"{here}:{port}" for name, port in places}
    node = {
        "address": f"{here}:0",
        "localizer.address": f"{here}:0",
        "webapp.address": f"{here}:0",
        "hostname": here,
        "local-dirs": str(folder / "local"),
        "log-dirs": str(folder / "logs"),
        "remote-app-log-dir": (folder / "aggregated").as_uri(),
        "resource.memory-mb": "8192",
        "resource.cpu-vcores": "8",
        "vmem-check-enabled": "false",
        "pmem-check-enabled": "false",
        # By default a disk that is nine tenths full gets no container.
        "disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "sleep-delay-before-sigkill.ms": "100",
    }
    yarn = manager | {f"yarn.nodemanager.{name}": value for name, value in node.items()}
    yarn |= {
        "yarn.resourcemanager.hostname": here,
        "yarn.resourcemanager.scheduler.class": (
            f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler"
        ),
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.env-whitelist": "JAVA_HOME",
    }
    return {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")}, yarn


def _write(path: Path, settings: dict[str, str]) -> None:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>{properties}</configuration>")


@contextmanager
def _server(cluster: Yarn, jars: Path, name: str, *, nodes: int) -> Iterator[None]:
    """Run one manager, from when the cluster has so many nodes."""
    output = cluster.folder / f"{name}.log"
    paths = f"{cluster.settings}:{jars}/*"
    with (
        output.open("wb") as log,
        subprocess.Popen(
            [
                *(_java(), *QUICK_JAVA.split(), _OPEN, "-Xmx256m"),
                *(f"-Djava.io.tmpdir={cluster.folder}", "-cp", paths, f"{_SERVER}.{name}"),
            ],
            cwd=cluster.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            wait_for(name, lambda: process.poll() is not None or _nodes(cluster) == nodes)
            assert process.poll() is None, output.read_text()[-4000:]
            yield
        finally:
            process.kill()


def _nodes(cluster: Yarn) -> int:
    try:
        return int(cluster.ask("metrics")["clusterMetrics"]["activeNodes"])
    except (OSError, ValueError):
        return -1


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
