"""How a task fails whose driver cannot do its work: real drivers, under the operator."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import MasterUnreachableError
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision
from tests.support.processes import QUICK_JAVA
from tests.support.turns import OtherRuns

pytestmark = pytest.mark.slow

SECRET = "t0p-s3cret-of-the-worker"
WORKERS_SECRETS = (
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__API_AUTH__JWT_SECRET",
    "AIRFLOW_CONN_WAREHOUSE",
    "AIRFLOW_VAR_TOKEN",
    "DATABASE_PASSWORD",
)
RATE = {"format": "rate-micro-batch", "options": {"rowsPerBatch": "5"}}


class TaskInstance(SimpleNamespace):
    def xcom_push(self, key: str, value: Any) -> None:
        setattr(self, key, value)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give this process the environment of a worker, secrets included."""
    for name in WORKERS_SECRETS:
        monkeypatch.setenv(name, SECRET)
    binaries = Path(pyspark.__file__).parent / "bin"
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-cloud")
    spark = {"conn_type": "spark", "host": "local[2]", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "drivers"))
    monkeypatch.setenv("AIRFLOW_CONN_LANCE_DEFAULT", json.dumps({"conn_type": "lance"}))
    OtherRuns(monkeypatch)  # none
    return monkeypatch


def run(root: Path, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "task_id": "stream",
        "uri": str(root / "table.lance"),
        "query_id": "q",
        "checkpoint_location": str(root / "checkpoint"),
        "create_if_missing": True,
        "lance_conn_id": None,
        "conf": {"spark.ui.enabled": False},
        "supervision": Supervision(poll_interval=0.5, max_restarts=3),
    }
    ti = TaskInstance(
        dag_id="dag", task_id="stream", run_id="r", map_index=-1, try_number=1, max_tries=3
    )
    return LanceStreamOperator(**(arguments | changes)).execute({"ti": ti})  # type: ignore[typeddict-item]


def launches(root: Path) -> list[RunDirectory]:
    return [RunDirectory.at(path) for path in root.glob("drivers/q/*")]


def test_a_users_exception_fails_the_task_at_once_and_sees_no_secret(
    tmp_path: Path, worker: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes.json"
    with caplog.at_level("INFO"), pytest.raises(AirflowFailException) as caught:
        run(
            tmp_path,
            dataframe="mistakes:bad_udf",
            arguments={"notes": str(notes)},
            py_files=str(Path(__file__).parents[1] / "support/mistakes.py"),
        )
    said = str(caught.value)
    assert said.startswith("UserFunctionError: ")
    assert "raised ValueError: no price" in said
    assert "ask the shop" in said
    assert "in _price\n    raise ValueError(" in said
    assert "pyspark" not in said
    (only,) = launches(tmp_path)
    seen = json.loads(notes.read_text())
    keeper = (only.read_driver() or {})["keeper"]["pid"]
    assert keeper not in (seen["pid"], seen["jvm"])
    for place, found in seen.items():
        assert SECRET not in str(found), place
    assert seen["python"]["AWS_SECRET_ACCESS_KEY"] == "of-the-cloud"
    assert "PATH" in seen["python"]
    assert not any(name in seen["python"] for name in WORKERS_SECRETS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"checkpoint_location": "/proc/none/checkpoint"}, "AccessDeniedError", "cannot make"),
        ({"conf": {"spark.driver.memory": "lots"}}, "SpecError", "lots"),
        ({"conf": {"spark.ui.port": "many"}}, "SpecError", "spark.ui.port"),
    ],
    ids=["unwritable checkpoint", "no start of Java", "no start of Spark"],
)
def test_what_leaves_no_summary_beside_the_checkpoint_is_read_from_the_log(
    tmp_path: Path, worker: pytest.MonkeyPatch, changes: Any, error: str, message: str
) -> None:
    with pytest.raises(AirflowFailException, match=f"{error}: .*{message}"):
        run(tmp_path, source=RATE, **changes)
    assert len(launches(tmp_path)) == 1


def test_a_connection_that_is_none_of_sparks_starts_nothing(
    tmp_path: Path, worker: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AirflowFailException, match="'lance_default' .*'lance', .*'lance://"):
        run(tmp_path, source=RATE, spark_conn_id="lance_default")
    assert launches(tmp_path) == []


def test_a_master_that_does_not_answer_is_named_before_anything_is_started(
    tmp_path: Path, worker: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        master = {"conn_type": "spark", "host": f"spark://127.0.0.1:{port}"}
        worker.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(master))
        with pytest.raises(MasterUnreachableError, match=f"127.0.0.1:{port}: .*refused"):
            run(tmp_path, source=RATE)
    assert launches(tmp_path) == []
