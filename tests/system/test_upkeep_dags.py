"""The example DAGs that look after tables run in a real Airflow, beside streams."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from tests.support.airflow import Airflow
from tests.support.wreck import ELSEWHERE, Wreck, whole

pytestmark = pytest.mark.slow

APPROVAL = "lance_recovery_approval"
OPEN = ("queued", "running")


def instances(airflow: Airflow, dag_id: str, run_id: str) -> list[dict[str, Any]]:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
    found: list[dict[str, Any]] = airflow.call("GET", path)["task_instances"]
    return sorted(found, key=lambda each: (each["task_id"], each["map_index"]))


def run(airflow: Airflow, dag_id: str, conf: dict[str, Any]) -> tuple[str, str]:
    """Run a DAG to its end; return its run id and state."""
    airflow.wait_for(f"DAG {dag_id}", lambda: airflow.has_dag(dag_id))
    airflow.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    run_id = airflow.trigger(dag_id, conf)
    ended = ("success", "failed")
    airflow.wait_for(f"{dag_id}'s end", lambda: airflow.run_state(dag_id, run_id) in ended)
    return run_id, airflow.run_state(dag_id, run_id)


def states(airflow: Airflow, dag_id: str, run_id: str) -> dict[tuple[str, int], str]:
    return {
        (each["task_id"], each["map_index"]): each["state"]
        for each in instances(airflow, dag_id, run_id)
    }


def result(airflow: Airflow, dag_id: str, run_id: str, task_id: str, index: int) -> Any:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
    return airflow.call("GET", f"{path}?map_index={index}")["value"]


class Feeder:
    """A driver that commits small epochs until it is told to end, then releases."""

    def __init__(self, uri: str) -> None:
        self.uri, self.epochs, self._over = uri, 0, threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _feed(self) -> None:
        committer = DriverSession(open_dataset(self.uri), "orders", Checkpoint("/checkpoint", "id"))
        committer.prepare()
        committer.identify(Driver("run", checkpoint_id="id", checkpoint_location="/checkpoint"))
        while not self._over.wait(0.2):
            first = 1_000_000 + 3 * self.epochs
            rows = pa.table({"id": range(first, first + 3)})
            fragments = lance.fragment.write_fragments(rows, self.uri)
            committer.begin(self.epochs).commit(
                Epoch(self.epochs, OutputMode.APPEND, fragments, 3, 0, utc_now())
            )
            self.epochs += 1
        committer.release()


def fill(uri: Path, fragments: int, *, first: int = 0) -> None:
    for number in range(first, first + fragments):
        ids = range(10 * number, 10 * number + 10)
        lance.write_dataset(pa.table({"id": ids}), uri, mode="append" if uri.exists() else "create")


def ids(uri: Path) -> Counter[int]:
    return Counter(lance.dataset(str(uri)).to_table(columns=["id"]).column("id").to_pylist())


def test_lance_maintenance(airflow: Airflow) -> None:
    """Each table is a mapped task; one with nothing to do is skipped; the stream goes on."""
    busy, quiet = (airflow.home / "data" / name for name in ("busy.lance", "quiet.lance"))
    fill(busy, 30)
    fill(quiet, 2)
    with Feeder(str(busy)) as stream:
        run_id, state = run(airflow, "lance_maintenance", {"tables": ["busy.lance", "quiet.lance"]})
        before = stream.epochs
        airflow.wait_for("more epochs", lambda: stream.epochs > before + 3)
    assert state == "success"
    assert states(airflow, "lance_maintenance", run_id) == {
        ("tables", -1): "success",
        ("compact", 0): "success",
        ("compact", 1): "skipped",
    }
    report = result(airflow, "lance_maintenance", run_id, "compact", 0)
    assert report["done"]["compact"]["fragmentsRemoved"] >= 30
    assert ids(busy) == Counter([*range(300), *range(1_000_000, 1_000_000 + 3 * stream.epochs)])
    assert {
        each["rendered_map_index"] for each in instances(airflow, "lance_maintenance", run_id)
    } >= {"busy.lance", "quiet.lance"}


def test_lance_maintenance_nightly(airflow: Airflow) -> None:
    """Index refresh and cleanup of a table, with a name of its own on the command."""
    uri = airflow.home / "data" / "indexed.lance"
    fill(uri, 3)
    lance.dataset(str(uri)).create_scalar_index("id", "BTREE")
    fill(uri, 3, first=3)
    run_id, state = run(airflow, "lance_maintenance_nightly", {"tables": ["indexed.lance"]})
    assert state == "success"
    report = result(airflow, "lance_maintenance_nightly", run_id, "index_and_clean_up", 0)
    assert (report["before"]["uncoveredRows"], report["after"]["uncoveredRows"]) == (30, 0)
    assert ids(uri) == Counter(range(60))


def answer(airflow: Airflow, run_id: str, task_id: str, option: str) -> None:
    """Answer a question of the approval DAG, as somebody does under Required Actions."""
    path = f"/dags/{APPROVAL}/dagRuns/{run_id}/taskInstances/{task_id}"
    # Airflow 3.3 fails a task that is answered before its scheduler has noted that it waits.
    noted = f"Finished: dag_id={APPROVAL}, task_id={task_id}, run_id={run_id},"
    airflow.wait_for(
        "the question",
        lambda: (
            airflow.call("GET", path)["state"] == "awaiting_input"
            and noted in airflow.log("scheduler").read_text()
        ),
    )
    body = {"chosen_options": [option], "params_input": {}}
    airflow.call("PATCH", f"{path}/-1/hitlDetails", body)


def questions(airflow: Airflow, *states: str) -> dict[str, dict[str, Any]]:
    """Return the configuration of each run of the approval DAG in some states."""
    runs = airflow.call("GET", f"/dags/{APPROVAL}/dagRuns?limit=100")["dag_runs"]
    return {each["dag_run_id"]: each["conf"] for each in runs if each["state"] in states}


def test_lance_recovery(airflow: Airflow) -> None:
    """What is safe is repaired, what is not is asked once, and the answers leave every row once."""
    data = airflow.home / "data"
    dead, silent = Wreck(data, "dead.lance"), Wreck(data, "silent.lance")
    landed, missing = Wreck(data, "landed.lance"), Wreck(data, "missing.lance")
    dead.run(3, unlogged=1)
    silent.run(3, process=ELSEWHERE, heartbeat_age=timedelta(hours=1))
    landed.run(3, unlogged=1)
    landed.clean_up()
    missing.run(3)
    missing.plan(3)
    missing.clean_up()
    tables = ["dead.lance", "silent.lance", "landed.lance", "missing.lance", "nothing.lance"]
    airflow.wait_for("DAG", lambda: airflow.has_dag(APPROVAL))
    airflow.call("PATCH", f"/dags/{APPROVAL}", {"is_paused": False})

    run_id, state = run(airflow, "lance_recovery", {"tables": tables})
    assert state == "failed"
    seen = states(airflow, "lance_recovery", run_id)
    assert [seen["check", n] for n in range(5)] == ["failed"] * 5
    assert seen["healthy", -1] == "upstream_failed"
    assert [seen["ask", n] for n in range(3)] == ["success"] * 3
    told = [
        airflow.call(
            "GET",
            f"/dags/lance_recovery/dagRuns/{run_id}/taskInstances/check/xcomEntries/message"
            f"?map_index={n}",
        )["value"]
        for n in range(4)
    ]
    for text, code in zip(told, ["Nobody runs", "LS102", "LS205", "LS205"], strict=True):
        assert code in text, text
    asked = questions(airflow, *OPEN)
    by_table = {Path(conf["uri"]).name: (id, conf) for id, conf in asked.items()}
    assert {name: conf["what"] for name, (_, conf) in by_table.items()} == {
        "silent.lance": "release",
        "landed.lance": "resolve_gap",
        "missing.lance": "resolve_gap",
    }

    # A second check asks nothing that is asked already.
    again, _ = run(airflow, "lance_recovery", {"tables": tables})
    assert [states(airflow, "lance_recovery", again)["ask", n] for n in range(3)] == ["skipped"] * 3
    assert questions(airflow, *OPEN) == asked

    answer(airflow, by_table["silent.lance"][0], "ask_release", "Approve")
    answer(airflow, by_table["landed.lance"][0], "ask_gap", "The rows are there")
    answer(airflow, by_table["missing.lance"][0], "ask_gap", "The rows are missing")
    airflow.wait_for("the answers' effect", lambda: not questions(airflow, *OPEN))
    assert not questions(airflow, "failed")

    for each, epochs in ((dead, 4), (silent, 4), (landed, 4), (missing, 5)):
        each.run(2 if each in (dead, landed, missing) else 1, released=True)
        assert each.ids == whole(epochs), each.uri
    _, state = run(airflow, "lance_recovery", {"tables": tables[:-1]})
    assert state == "success"


def test_lance_recovery_changes_nothing_when_a_person_rejects_it(airflow: Airflow) -> None:
    wreck = Wreck(airflow.home / "data", "kept.lance")
    wreck.run(2, process=ELSEWHERE)
    version = wreck.version
    conf = {"uri": wreck.uri, "query_id": "orders", "what": "release", "epoch": 1}
    run_id = airflow.trigger(APPROVAL, conf)
    airflow.call("PATCH", f"/dags/{APPROVAL}", {"is_paused": False})
    answer(airflow, run_id, "ask_release", "Reject")
    gap = airflow.trigger(APPROVAL, conf | {"what": "resolve_gap"})
    answer(airflow, gap, "ask_gap", "I see to it myself")
    airflow.wait_for("both ends", lambda: {run_id, gap} <= questions(airflow, "success").keys())
    assert states(airflow, APPROVAL, run_id)["release", -1] == "skipped"
    assert states(airflow, APPROVAL, gap)["committed", -1] == "skipped"
    assert wreck.version == version


@pytest.mark.system
def test_beside_a_stream_on_spark(airflow: Airflow) -> None:
    """A live Spark driver is healthy, and neither upkeep nor check gets in its way."""
    folder, dag_id = airflow.home / "data", "lance_long_running"
    landing = folder / "landing"
    landing.mkdir(parents=True, exist_ok=True)

    def land(name: str, first: int) -> None:
        rows = [{"id": number, "amount": number / 2} for number in range(first, first + 10)]
        hidden = landing / f"_{name}"
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        hidden.rename(landing / name)

    land("1.json", 0)
    airflow.wait_for("DAG", lambda: airflow.has_dag(dag_id))
    airflow.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    stream = airflow.trigger(dag_id, {"folder": str(folder), "minutes": 1.5})
    orders = folder / "orders.lance"
    airflow.wait_for("rows", lambda: orders.exists() and sum(ids(orders).values()) == 10)
    tables = {"tables": ["orders.lance"]}
    for check in ("lance_recovery", "lance_maintenance", "lance_recovery"):
        run_id, state = run(airflow, check, tables)
        assert state == "success", check
    codes = [
        each["code"] for each in result(airflow, "lance_recovery", run_id, "check", 0)["findings"]
    ]
    assert codes[0] == "LS000", codes
    land("2.json", 10)
    ended = ("success", "failed")
    airflow.wait_for("its evening", lambda: airflow.run_state(dag_id, stream) in ended)
    assert ids(orders) == Counter(range(20))
    assert run(airflow, "lance_recovery", tables)[1] == "success"
