"""Every DAG in `dags/` runs by `dag.test()`: real Airflow, real Spark, real dataset."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_lance.streaming.dataset import open_dataset
from airflow_provider_lance.streaming.history import exact_watermark
from tests.support.airflow import REPOSITORY, settings
from tests.support.processes import finish, python

DAGS = sorted(path.stem for path in (REPOSITORY / "dags").glob("[!_]*.py"))
CHECKS = {"lance_flights"}


def run(home: Path, dag_id: str) -> tuple[int, str]:
    environment = settings(home) | {"PYTHONWARNINGS": "ignore"}
    conf = json.dumps({"folder": str(home / "data")})
    return finish(
        python("-m", "tests.system.run_dag", dag_id, conf, environment=environment), seconds=300
    )


def test_every_dag_has_a_system_test() -> None:
    assert set(DAGS) == CHECKS, "each file in dags/ holds the DAG of its name and is run below"


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.mark.parametrize("time", ["first", "second"])
def test_lance_flights(flights: Path, time: str) -> None:
    """The first run streams everything; a second one finds nothing new and changes nothing."""
    data = flights / "data"
    before = open_dataset(str(data / "flights.lance")).version if time == "second" else 0
    status, output = run(flights, "lance_flights")
    assert status == 0, output[-6000:]
    result = json.loads(output.strip().splitlines()[-1])
    assert set(result["tasks"].values()) == {"success"}
    assert set(result["tasks"]) == {"prepare", "stream", "arrived", "verify"}
    port = open_dataset(str(data / "flights.lance"))
    assert exact_watermark(port, "flights").epoch == 23
    ids = port.dataset.to_table(columns=["flight_id"]).column("flight_id").to_pylist()
    assert Counter(ids) == Counter(range(336_776))
    assert before in (0, port.version)
