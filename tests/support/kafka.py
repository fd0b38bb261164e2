"""A Kafka broker on loopback, and Spark's Kafka connector: both from Maven, fetched once."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.support.jars import JarsUnavailableError, fetched_jars
from tests.support.processes import QUICK_JAVA, REPOSITORY, end, wait_for

KAFKA = os.environ.get("KAFKA_BROKER", "4.1.0")
CONNECTOR = os.environ.get("KAFKA_CONNECTOR", pyspark.__version__)

_NODE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=BROKER://127.0.0.1:{port},SECURE://127.0.0.1:{secure},CONTROL://127.0.0.1:{control}
advertised.listeners=BROKER://127.0.0.1:{port},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=BROKER:PLAINTEXT,SECURE:SASL_PLAINTEXT,CONTROL:PLAINTEXT
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config={login} required user_reader="{password}";
inter.broker.listener.name=BROKER
controller.listener.names=CONTROL
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
PASSWORD = "the-password-of-the-reader"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_CLUSTER = "test-cluster-of-one-nod"


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker listens."""

    port: int
    secure_port: int

    def with_password(self, password: str) -> dict[str, str]:
        """Return the source's options for the listener that asks for a password."""
        return {
            "kafka.bootstrap.servers": f"127.0.0.1:{self.secure_port}",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{_LOGIN} required username="reader" password="{password}";',
        }

    @property
    def servers(self) -> str:
        """Return what ``kafka.bootstrap.servers`` takes."""
        return f"127.0.0.1:{self.port}"


class KafkaSession:
    """One Spark with the connector, in a process of its own: see :mod:`.kafka_session`."""

    def __init__(self, broker: Broker, log: Path) -> None:
        self.servers = broker.servers
        self._log = log
        jars = ",".join(map(str, connector_jars().glob("*.jar")))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kafka_session", self.servers, jars],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "JAVA_TOOL_OPTIONS": QUICK_JAVA,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def call(self, name: str, **arguments: Any) -> Any:
        """Have one of its functions called; return the result."""
        self.ask(name, **arguments)
        return self.answer()

    def answer(self) -> Any:
        """Wait for the result of what was asked for last."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"Spark's process ended: {self.log()[-4000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ask(self, name: str, **arguments: Any) -> None:
        """Have one of its functions called, and wait for nothing."""
        assert self._process.stdin
        print(json.dumps({"call": name, **arguments}), file=self._process.stdin, flush=True)

    def log(self) -> str:
        """Return what it has logged so far, as a driver's log holds it."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kill the process and its JVM."""
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def end(self) -> None:
        """End the process and its JVM."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.stdout.close()
            end(self._process)


def broker_jars() -> Path:
    """Return the folder with the broker's jars."""
    return _or_skip("org.apache.kafka", f"kafka_2.13:{KAFKA}")


def connector_jars() -> Path:
    """Return the folder with the connector and what it needs, as ``--packages`` would."""
    return _or_skip("org.apache.spark", f"spark-sql-kafka-0-10_2.13:{CONNECTOR}")


def _or_skip(group: str, coordinates: str) -> Path:
    try:
        return fetched_jars(group, coordinates)
    except JarsUnavailableError as error:
        pytest.skip(str(error))


@contextmanager
def kafka_broker() -> Iterator[Broker]:
    """Run a broker of one node (KRaft); everything in it is lost at the end."""
    jars = f"{broker_jars()}/*"
    with tempfile.TemporaryDirectory(prefix="kafka-") as name:
        folder = Path(name)
        broker, secure, control = _free_ports()
        settings, output = folder / "server.properties", folder / "output.log"
        node = {"port": broker, "secure": secure, "control": control, "folder": folder}
        settings.write_text(_NODE.format(**node, login=_LOGIN, password=PASSWORD))
        temporary = f"-Djava.io.tmpdir={folder}"
        command = [_java(), *QUICK_JAVA.split(), temporary, "-Xmx512m", "-cp", jars]
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)],
            check=True,
            capture_output=True,
            timeout=120,
        )
        with (
            output.open("wb") as log,
            subprocess.Popen(
                [*command, "kafka.Kafka", str(settings)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                wait_for("Kafka", lambda: process.poll() is not None or _listens(broker))
                assert process.poll() is None, output.read_text()[-4000:]
                yield Broker(broker, secure)
            finally:
                process.kill()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports() -> tuple[int, int, int]:
    with socket.socket() as one, socket.socket() as other, socket.socket() as third:
        ports = []
        for each in (one, other, third):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
        return ports[0], ports[1], ports[2]
