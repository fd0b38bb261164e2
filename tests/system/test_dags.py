"""Every DAG in `dags/` runs: real Airflow, real Spark, real dataset.

Those that end by themselves by `dag.test()`, those that need a triggerer in one with all parts.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, OwnerState, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.airflow import REPOSITORY, Airflow, settings
from tests.support.processes import finish, python
from tests.support.watch import process

DAGS = sorted(path.stem for path in (REPOSITORY / "dags").glob("[!_]*.py"))
CHECKS = {
    "lance_cdc",
    "lance_chain",
    "lance_event_consumer",
    "lance_every_five_minutes",
    "lance_flights",
    "lance_freshness",
    "lance_long_running",
    "lance_maintenance",
    "lance_recovery",
    "lance_taskflow",
}


def run(home: Path, dag_id: str) -> tuple[int, str]:
    environment = settings(home) | {"PYTHONWARNINGS": "ignore"}
    conf = json.dumps({"folder": str(home / "data")})
    return finish(
        python("-m", "tests.system.run_dag", dag_id, conf, environment=environment), seconds=300
    )


def test_every_dag_has_a_system_test() -> None:
    """Those that look after tables run in test_upkeep_dags.py, the others in test_…_dag.py."""
    assert set(DAGS) == CHECKS, "each file in dags/ holds the DAG of its name and is run"


def stream_flights(home: Path) -> int:
    """Run the demo DAG; return the dataset's version after it."""
    status, output = run(home, "lance_flights")
    assert status == 0, output[-6000:]
    result = json.loads(output.strip().splitlines()[-1])
    assert set(result["tasks"].values()) == {"success"}
    assert set(result["tasks"]) == {"prepare", "stream", "arrived", "verify"}
    port = open_dataset(str(home / "data" / "flights.lance"))
    assert exact_watermark(port, "flights").epoch == 23
    ids = port.dataset.to_table(columns=["flight_id"]).column("flight_id").to_pylist()
    assert Counter(ids) == Counter(range(336_776))
    return port.version


def test_lance_flights_streams_each_flight_once(tmp_path: Path) -> None:
    stream_flights(tmp_path)


@pytest.mark.slow
def test_lance_flights_changes_nothing_when_it_finds_nothing_new(tmp_path: Path) -> None:
    assert stream_flights(tmp_path) == stream_flights(tmp_path)


def land(folder: Path, name: str, first: int, count: int) -> None:
    """Put a file of payments where the streams look for them."""
    landing = folder / "landing"
    landing.mkdir(parents=True, exist_ok=True)
    rows = [{"id": number, "amount": number / 2} for number in range(first, first + count)]
    hidden = landing / f"_{name}"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    hidden.rename(landing / name)


def ids(uri: Path) -> Counter[int]:
    return Counter(lance.dataset(str(uri)).to_table(columns=["id"]).column("id").to_pylist())


@pytest.mark.slow
def test_lance_every_five_minutes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    land(folder, "1.json", 0, 10)
    land(folder, "2.json", 10, 10)
    status, output = run(tmp_path, "lance_every_five_minutes")
    assert status == 0, output[-6000:]
    assert ids(folder / "payments.lance") == Counter(range(20))


@pytest.mark.slow
def test_lance_taskflow(tmp_path: Path) -> None:
    """The function runs in the driver, with its arguments, and only its rows land."""
    folder = tmp_path / "data"
    (folder / "landing").mkdir(parents=True)
    clicks = [(1, "NO"), (2, "SE"), (3, "IS")]
    lines = [json.dumps({"id": number, "country": country}) for number, country in clicks]
    (folder / "landing" / "1.json").write_text("\n".join(lines))
    status, output = run(tmp_path, "lance_taskflow")
    assert status == 0, output[-6000:]
    assert ids(folder / "clicks.lance") == Counter([1, 3])


def unpause(airflow: Airflow, dag_id: str) -> None:
    airflow.wait_for(f"DAG {dag_id}", lambda: airflow.has_dag(dag_id))
    airflow.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})


def commit_epoch(uri: str, committer: DriverSession | None, epoch_id: int) -> DriverSession:
    """Commit an epoch of three rows as a driver of query `flights` would."""
    rows = pa.table({"flight_id": [3 * epoch_id, 3 * epoch_id + 1, 3 * epoch_id + 2]})
    if committer is None:
        lance.write_dataset(rows.slice(0, 0), uri)
        committer = DriverSession(open_dataset(uri), "flights", Checkpoint("/checkpoint", "id"))
        committer.prepare()
        committer.identify(Driver("run", checkpoint_id="id", checkpoint_location="/checkpoint"))
    fragments = lance.fragment.write_fragments(rows, uri)
    committer.begin(epoch_id).commit(
        Epoch(epoch_id, OutputMode.APPEND, fragments, len(rows), 0, utc_now())
    )
    return committer


@pytest.mark.slow
def test_lance_event_consumer(airflow: Airflow) -> None:
    """An epoch that lands starts a run, which counts its rows; epochs from before start none."""
    dag_id, uri = "lance_event_consumer", str(airflow.home / "data" / "flights.lance")
    unpause(airflow, dag_id)
    watching = "Watching for every_epochs=1"
    airflow.wait_for(watching, lambda: watching in airflow.log("triggerer").read_text())
    committer = commit_epoch(uri, None, 0)
    commit_epoch(uri, committer, 1)

    def counted() -> list[dict[str, int]]:
        runs = airflow.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
        ended = [each["dag_run_id"] for each in runs if each["state"] == "success"]
        return [airflow.xcom(dag_id, run_id, "count_new") for run_id in ended]

    airflow.wait_for("all rows", lambda: sum(each["rows"] for each in counted()) == 6)
    assert all(each["rows"] == each["rows_told"] for each in counted())
    assert max(each["epoch"] for each in counted()) == 1


@pytest.mark.slow
def test_lance_long_running(airflow: Airflow) -> None:
    """The stream goes on without a worker slot until its evening, and both tasks succeed."""
    dag_id, folder = "lance_long_running", airflow.home / "orders"
    land(folder, "1.json", 0, 10)
    unpause(airflow, dag_id)
    run_id = airflow.trigger(dag_id, {"folder": str(folder), "minutes": 1})
    dataset = folder / "orders.lance"

    def arrived(count: int) -> bool:
        return dataset.exists() and sum(ids(dataset).values()) == count

    airflow.wait_for("the first rows", lambda: arrived(10))
    land(folder, "2.json", 10, 10)
    airflow.wait_for("the others", lambda: arrived(20))
    airflow.wait_for(
        "the triggerer's turn",
        lambda: airflow.tasks(dag_id, run_id)["stream"]["state"] in ("deferred", "success"),
    )
    ended = ("success", "failed")
    airflow.wait_for("its evening", lambda: airflow.run_state(dag_id, run_id) in ended)
    states = {name: each["state"] for name, each in airflow.tasks(dag_id, run_id).items()}
    assert states == dict.fromkeys(["stream", "evening", "stop"], "success")
    assert airflow.xcom(dag_id, run_id, "stop")["state"] == "released"
    summary = airflow.xcom(dag_id, run_id, "stream")
    assert (summary["reason"], summary["released"], summary["rows"]) == ("stopped", True, 20)
    assert summary["stoppedBy"].startswith(f"{dag_id}/stop/")
    assert ids(dataset) == Counter(range(20))


CHAIN = ("lance_chain", "lance_chain_cleaned", "lance_chain_totals")


def pay(folder: Path, name: str, *payments: tuple[int, float, int, int]) -> None:
    """Put a file of payments where the chain looks: id, amount, hour paid, minute changed."""
    landing = folder / "landing"
    landing.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": number,
            "amount": amount,
            "paid_at": f"2026-01-01T{hour:02}:30:00Z",
            "changed_at": f"2026-01-02T00:{minute:02}:00Z",
        }
        for number, amount, hour, minute in payments
    ]
    hidden = landing / f"_{name}"
    hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    hidden.rename(landing / name)


def totals(uri: Path) -> dict[int, tuple[int, float]]:
    """Return number and amount of the payments of each hour; empty without a dataset."""
    if not (uri / "_versions").exists():
        return {}
    rows = lance.dataset(str(uri)).to_table().to_pylist()
    assert len(rows) == len({row["hour"] for row in rows})
    return {row["hour"].hour: (row["payments"], row["amount"]) for row in rows}


def kill_driver(uri: Path, query_id: str) -> bool:
    """Kill the driver that owns a query; return whether there was one."""
    if not (uri / "_versions").exists():
        return False
    port = open_dataset(str(uri))
    owner = decode_query(port.config, query_id, port.version).owner
    if owner is None or owner.state is not OwnerState.ACTIVE or not owner.driver.pid:
        return False
    found = process(owner.driver.pid)
    return bool(found and found.signal(signal.SIGKILL))


@pytest.mark.slow
def test_lance_chain(airflow: Airflow) -> None:
    """Corrections reach the totals, each exactly once, though two drivers are killed.

    One stop then ends the whole chain.
    """
    folder, dataset = airflow.home / "chain", airflow.home / "data" / "chain_totals.lance"
    pay(folder, "1.json", (1, 10.0, 8, 0), (2, 20.0, 8, 0), (3, -1.0, 8, 0), (4, 40.0, 9, 1))
    for dag_id in CHAIN:
        unpause(airflow, dag_id)
    # A watcher fires for what is committed once it watches; other DAGs have watchers too.
    airflow.wait_for(
        "the watcher of the first dataset",
        lambda: any(
            "Watching for" in line and "chain_landing.lance" in line
            for line in airflow.log("triggerer").read_text().splitlines()
        ),
    )
    run_id = airflow.trigger("lance_chain", {"folder": str(folder)})
    first = {8: (2, 30.0), 9: (1, 40.0)}
    airflow.wait_for("the first totals", lambda: totals(dataset) == first, seconds=400)
    data = airflow.home / "data"
    assert kill_driver(data / "chain_landing.lance", "chain_landing")
    # Payment 1 costs more, 2 was in another hour, 4 arrives late and is older than what is there.
    pay(folder, "2.json", (1, 11.0, 8, 5), (2, 20.0, 10, 5), (5, 50.0, 9, 5))
    # The next driver owns the query from its first commit on.
    airflow.wait_for(
        "a driver to kill",
        lambda: kill_driver(data / "chain_landing.lance", "chain_landing"),
        seconds=400,
    )
    pay(folder, "3.json", (4, 99.0, 9, 0))
    second = {8: (1, 11.0), 9: (2, 90.0), 10: (1, 20.0)}
    airflow.wait_for("the corrected totals", lambda: totals(dataset) == second, seconds=400)
    unpause(airflow, "lance_chain_stop")
    stop = airflow.trigger("lance_chain_stop", {})
    ended = [("lance_chain_stop", stop), ("lance_chain", run_id)]
    airflow.wait_for(
        "the stop", lambda: {airflow.run_state(*each) for each in ended} <= {"success", "failed"}
    )
    assert {airflow.run_state(*each) for each in ended} == {"success"}

    def all_runs() -> Counter[str]:
        found = [airflow.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"] for dag_id in CHAIN]
        return Counter(each["state"] for runs in found for each in runs)

    airflow.wait_for("all runs' end", lambda: set(all_runs()) <= {"success", "failed"}, 400)
    assert set(all_runs()) == {"success"}
    assert totals(dataset) == second
