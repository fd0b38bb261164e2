"""The example DAG of a deadline on freshness, in a real Airflow: what arrives, and when."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from tests.support.airflow import REPOSITORY, Airflow
from tests.support.webhook import web

DAG = "lance_freshness"


@pytest.mark.slow
def test_lance_freshness(tmp_path: Path) -> None:
    """Without an epoch the deadline sends the check once; an epoch lets the run succeed."""
    dags = tmp_path / "dags"
    dags.mkdir()
    text = (REPOSITORY / "dags" / f"{DAG}.py").read_text()
    quick = (
        text.replace('schedule="*/15 * * * *"', "schedule=None")
        .replace("timedelta(minutes=10)", "timedelta(seconds=5)")
        .replace("deferrable=True", "deferrable=True, poke_interval=2")
    )
    assert quick.count("seconds=5") == quick.count("poke_interval=2") == 1
    (dags / f"{DAG}.py").write_text(quick)
    uri = tmp_path / "airflow" / "data" / "orders.lance"
    with web() as (port, got):
        http = {"conn_type": "http", "host": "127.0.0.1", "port": port}
        changes = {"AIRFLOW_CONN_HTTP_DEFAULT": json.dumps(http)}
        with Airflow(tmp_path / "airflow", dags=dags, changes=changes) as airflow:
            run_id = airflow.trigger(DAG, {})
            airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": False})
            airflow.wait_for("the deadline", lambda: got)
            [(_, _, said)] = got
            assert said["dagId"] == DAG
            assert said["headline"].startswith(f"DAG {DAG} missed its deadline, run ")
            assert said["severity"] == "unknown"
            assert f"DatasetNotFoundError: no Lance dataset at {uri}" in said["text"]
            commit(uri)
            airflow.wait_for("its end", lambda: airflow.run_state(DAG, run_id) == "success")


def commit(uri: Path) -> None:
    """Commit an epoch as a driver does."""
    rows = pa.table({"id": [1, 2, 3]})
    lance.write_dataset(rows.slice(0, 0), uri)
    session = DriverSession(open_dataset(str(uri)), "orders", Checkpoint("/checkpoint", "id"))
    session.prepare()
    session.identify(Driver("run", checkpoint_id="id", checkpoint_location="/checkpoint"))
    fragments = lance.fragment.write_fragments(rows, uri)
    session.begin(0).commit(Epoch(0, OutputMode.APPEND, fragments, 3, 0, utc_now()))
