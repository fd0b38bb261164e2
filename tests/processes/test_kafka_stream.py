"""LanceStreamOperator reads a real topic with real drivers, which are killed; and with passwords.

    python -m tests.processes.test_kafka_stream --full

runs it with 200,000 records.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.operators.stream import LanceStreamOperator
from tests.support.kafka import PASSWORD, Broker, KafkaSession, connector_jars, kafka_broker
from tests.unit.conftest import OtherRuns

from .conftest import AddConnection, Shown, TaskInstance, supervised

pytestmark = pytest.mark.slow

RECORDS, PARTITIONS, EPOCHS, KILLS = int(os.environ.get("RECORDS", "20000")), 4, 12, 3
TOPIC, WRONG = "orders", "a-password-of-nobody"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker whose topic has records with the numbers from 0 as their keys."""
    folder = tmp_path_factory.mktemp("kafka")
    draw = random.Random(1)
    keys = [str(each) for each in range(RECORDS)]
    places = pa.array([draw.randrange(PARTITIONS) for _ in keys], pa.int32())
    path = folder / "records.parquet"
    pq.write_table(pa.table({"key": keys, "value": keys, "partition": places}), path)
    with kafka_broker() as started:
        session = KafkaSession(started, folder / "session.log")
        try:
            session.call("create", topic=TOPIC, partitions=PARTITIONS)
            session.call("send", topic=TOPIC, path=str(path))
        finally:
            session.end()
        yield started


@pytest.fixture
def stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add_connection: AddConnection, broker: Broker
) -> Stream:
    add_connection("spark_default", conn_type="spark", host="local[2]")
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "drivers"))
    binaries = Path(pyspark.__file__).parent / "bin"
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    OtherRuns(monkeypatch)  # none
    return Stream(tmp_path, broker)


class Stream:
    """A topic, the task that reads it, and everything that the task leaves behind."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self._broker = folder, broker
        self.uri = str(folder / "orders.lance")
        self.checkpoint = folder / "checkpoint"
        self.ti = TaskInstance()

    def run(self, password: str) -> dict[str, Any]:
        """Execute the task once, as one try."""
        task = LanceStreamOperator(
            **supervised(
                task_id="stream",
                uri=self.uri,
                query_id="orders",
                checkpoint_location=str(self.checkpoint),
                source={
                    "format": "kafka",
                    "options": {
                        **self._broker.with_password(password),
                        "subscribe": TOPIC,
                        "startingOffsets": "earliest",
                        "maxOffsetsPerTrigger": str(RECORDS // EPOCHS),
                    },
                },
                sql="SELECT partition, offset, CAST(string(key) AS INT) AS key FROM source",
                create_if_missing=True,
                lance_conn_id=None,
                conf={"spark.ui.enabled": False},
                spark_submit={"jars": ",".join(map(str, connector_jars().glob("*.jar")))},
                poll_interval=0.5,
            )
        )
        result: dict[str, Any] = task.execute({"ti": self.ti})  # type: ignore[typeddict-item]
        return result

    def left_behind(self) -> str:
        """Return all text of its files: logs, checkpoint, reports, dataset."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return "".join(path.read_bytes().decode(errors="replace") for path in files)

    def planned(self) -> int:
        """Return the number of epochs that are planned."""
        folder = self.checkpoint / "offsets"
        return sum(each.name.isdecimal() for each in folder.iterdir()) if folder.exists() else 0


class Watch:
    """The command lines of all processes, seen again and again."""

    def __init__(self, *, kills: int = 0, stream: Stream | None = None) -> None:
        self.lines: set[str] = set()
        self.killed_at: list[int] = []
        self._draw = random.Random(kills)
        self._kills, self._stream = kills, stream
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        ourselves, next_at = os.getpid(), self._draw.randrange(1, 4)
        while not self._ended.wait(0.2):
            drivers = []
            for process in psutil.process_iter():
                try:
                    line = " ".join(process.cmdline())
                    if "SparkSubmit" in line and process.pid != ourselves:
                        drivers += [process] if self._is_ours(process) else []
                except psutil.Error:
                    continue
                self.lines.add(line)
            planned = self._stream.planned() if self._stream else 0
            if drivers and len(self.killed_at) < self._kills and planned >= next_at:
                time.sleep(self._draw.random() / 2)
                self.killed_at.append(planned)
                os.killpg(os.getpgid(drivers[0].pid), signal.SIGKILL)
                drivers[0].wait(30)
                next_at = planned + self._draw.randrange(1, 4)

    def _is_ours(self, process: psutil.Process) -> bool:
        assert self._stream
        return any(str(self._stream.folder) in word for word in process.cmdline())


def test_each_record_lands_once_though_drivers_are_killed(stream: Stream, shown: Shown) -> None:
    watch = Watch(kills=KILLS, stream=stream)
    failed = []
    with watch.watching():
        for _ in range(KILLS + 1):
            try:
                summary = stream.run(PASSWORD)
                break
            except AirflowFailException:
                raise  # Airflow would not retry it
            except Exception as error:
                failed.append(str(error))
                stream.ti.try_number += 1
    assert len(watch.killed_at) == KILLS
    assert len(failed) == KILLS, failed
    assert summary["reason"] == "finished"
    keys = lance.dataset(stream.uri).to_table(["key"])["key"].to_pylist()
    assert sorted(keys) == list(range(RECORDS))
    secret_kept(stream, watch, PASSWORD, shown(), summary, failed)
    print(f"{RECORDS} records, drivers killed in epochs {watch.killed_at}: each key once")


def test_a_wrong_password_is_one_clear_error(stream: Stream, shown: Shown) -> None:
    watch = Watch(stream=stream)
    with watch.watching(), pytest.raises(AirflowFailException) as caught:
        stream.run(WRONG)
    message = str(caught.value)
    assert "AccessDeniedError: Authentication failed: Invalid username or password. " in message
    assert "Correct user and password in kafka.sasl.jaas.config" in message
    assert not Path(stream.uri).exists() or lance.dataset(stream.uri).count_rows() == 0
    secret_kept(stream, watch, WRONG, shown(), message)


def secret_kept(stream: Stream, watch: Watch, secret: str, *shown: object) -> None:
    """Check that a secret is nowhere: command lines, files, XComs, the task's log."""
    assert any("--py-files" in line for line in watch.lines), "spark-submit was seen"
    assert not [line for line in watch.lines if secret in line]
    assert secret not in stream.left_behind()
    assert secret not in str(stream.ti.xcoms) + str(shown)


if __name__ == "__main__":
    # In a process of its own: pytest is to import this module first.
    words = [sys.executable, "-m", "pytest", "-q", "-s", __file__]
    records = {"RECORDS": "200000"} if "--full" in sys.argv else {}
    sys.exit(subprocess.run(words, env=os.environ | records, check=False).returncode)
