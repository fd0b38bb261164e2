"""The DAG for change data reads a real topic, into both tables and the quarantine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.airflow import settings
from tests.support.kafka import KafkaSession, connector_jars, kafka_broker
from tests.support.processes import finish, python

pytestmark = pytest.mark.slow

TOPIC = "shop.public.customers"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[KafkaSession]:
    with kafka_broker() as broker:
        started = KafkaSession(broker, tmp_path / "session.log")
        try:
            started.call("create", topic=TOPIC, partitions=2)
            yield started
        finally:
            started.end()


def change(lsn: int, op: str, key: int, name: str = "", balance: float = 0) -> str:
    row = {"id": key, "name": name, "balance": f"{balance:.2f}"}
    source = {"connector": "postgresql", "lsn": lsn, "sequence": f'["{lsn}","{lsn}"]'}
    before, after = ({"id": key}, None) if op == "d" else (None, row)
    return json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": lsn})


def send(session: KafkaSession, folder: Path, *values: str) -> None:
    """Send records, shuffled over both partitions, each of them twice."""
    draw = random.Random(len(values))
    twice = [*values, *values]
    draw.shuffle(twice)
    places = pa.array([draw.randrange(2) for _ in twice], pa.int32())
    keys = pa.nulls(len(twice), pa.string())
    path = folder / "records.parquet"
    pq.write_table(pa.table({"key": keys, "value": twice, "partition": places}), path)
    session.call("send", topic=TOPIC, path=str(path))


def run(home: Path, session: KafkaSession) -> None:
    """Run the DAG once; Spark has the connector from a folder, as on a host without a network."""
    conf = home / "spark"
    conf.mkdir(exist_ok=True)
    jars = ",".join(map(str, sorted(connector_jars().glob("*.jar"))))
    (conf / "spark-defaults.conf").write_text(f"spark.jars {jars}\n")
    params = json.dumps({"servers": session.servers, "topic": TOPIC, "connector": ""})
    environment = settings(home) | {"SPARK_CONF_DIR": str(conf)}
    command = ("-m", "tests.system.run_dag", "lance_cdc", params)
    status, output = finish(python(*command, environment=environment), seconds=300)
    assert status == 0, output[-6000:]


def rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = lance.dataset(str(table)).to_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def versions(table: Path) -> list[tuple[Any, ...]]:
    found = lance.dataset(str(table)).to_table().to_pylist()
    return sorted(
        (
            row["id"],
            row["__start_at"]["position"],
            row["__end_at"] and row["__end_at"]["position"],
            row["name"],
        )
        for row in found
    )


def test_lance_cdc(tmp_path: Path, session: KafkaSession) -> None:
    data = tmp_path / "data"
    send(
        session,
        tmp_path,
        change(1, "c", 1, "Ann", 10),
        change(2, "c", 2, "Bob", 20),
        change(3, "u", 1, "Anna", 11),
        change(4, "c", 3, "Eve", -5),
        "this is not JSON",
        change(6, "d", 2),
    )
    run(tmp_path, session)
    assert rows(data / "customers.lance", "id", "name") == [(1, "Anna")]
    history = [(1, 1, 3, "Ann"), (1, 3, None, "Anna"), (2, 2, 6, "Bob"), (3, 4, None, "Eve")]
    assert versions(data / "customer_versions.lance") == history
    aside = data / "customers.quarantine.lance"
    assert [reason for (reason,) in rows(aside, "reason")] == [
        "expectation not_overdrawn",
        "expectation not_overdrawn",
        "the envelope cannot be taken off",
        "the envelope cannot be taken off",
    ]

    send(session, tmp_path, change(5, "u", 2, "Robert", 21), change(7, "c", 4, "Dan", 1))
    run(tmp_path, session)
    assert rows(data / "customers.lance", "id", "name") == [(1, "Anna"), (4, "Dan")]
    late = [(2, 2, 5, "Bob"), (2, 5, 6, "Robert"), (4, 7, None, "Dan")]
    assert versions(data / "customer_versions.lance") == sorted(
        [history[0], history[1], history[3], *late]
    )
    assert lance.dataset(str(aside)).count_rows() == 4
