"""Runs of a task in a real Airflow: a backfill beside the schedule, the page, OpenLineage."""

from __future__ import annotations

import itertools
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.airflow import REPOSITORY, Airflow, free_port
from tests.support.pages import words
from tests.support.processes import QUICK_JAVA
from tests.support.scene import ENDED, Scene

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

TASK = "stream"


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, stages: Path) -> Iterator[Airflow]:
    changes = {
        "TURNS_FOLDER": str(stages),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(stages / "lineage.jsonl"), "append": True}
        ),
        # 5 s by default: a busy machine fails tasks before they have begun.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__CORE__PARALLELISM": "8",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    dags = REPOSITORY / "tests" / "system" / "dags"
    with Airflow(tmp_path_factory.mktemp("airflow"), dags=dags, changes=changes) as running:
        yield running


def runs(airflow: Airflow, dag_id: str) -> list[dict[str, Any]]:
    found = airflow.call("GET", f"/dags/{dag_id}/dagRuns?limit=100&order_by=id")["dag_runs"]
    tasks = airflow.call("GET", f"/dags/{dag_id}/dagRuns/~/taskInstances?limit=100")
    of_run = {each["dag_run_id"]: each for each in tasks["task_instances"]}
    return [each | {"task": of_run.get(each["dag_run_id"])} for each in found]


def pause(airflow: Airflow, dag_id: str, *, paused: bool) -> None:
    airflow.call("PATCH", f"/dags/{dag_id}", {"is_paused": paused})


def page(airflow: Airflow, path: str) -> str:
    """Return a page below Airflow's address, as somebody who signed in gets it."""
    request = urllib.request.Request(f"http://127.0.0.1:{airflow.port}/{path}")
    request.add_header("Authorization", f"Bearer {airflow._token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return words(answer.read().decode())


def test_a_deferred_stream_without_outlets_has_its_page_and_its_lineage(
    running: Airflow, stages: Path
) -> None:
    dag_id = "stream_ours"
    with Scene(running, stages / dag_id, dag_id) as scene:
        run_id = scene.run()
        scene.flowing()
        scene.wait("the deferral", lambda: scene.state()[0] == "deferred")
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{TASK}/links"
        links = running.call("GET", path)["extra_links"]
        address = links["Lance stream"]
        named = {"uri": scene.uri, "query": scene.query_id, "conn_id": "lance_default"}
        assert address == f"lance/stream?{urlencode(named)}"
        assert not links["Lance dataset"], "a browser opens no folder of this host"
        shows = re.compile(rf"{scene.query_id} .*(running|idle): watermark \d+")
        scene.wait("the page", lambda: shows.search(page(running, address)))
        lists = re.compile(rf"{scene.query_id} {scene.uri} (running|idle) watermark \d+")
        scene.wait("the list", lambda: lists.search(page(running, "lance/")))
        scene.catch_up()
        assert scene.stop() == ("success", 1)
        counts = scene.count()
        assert counts.exact

        def completed() -> list[dict[str, Any]]:
            lines = (stages / "lineage.jsonl").read_text().splitlines()
            every = [json.loads(line) for line in lines]
            ours = [each for each in every if each["job"]["name"] == f"{dag_id}.{TASK}"]
            return ours if any(each["eventType"] == "COMPLETE" for each in ours) else []

        events = scene.wait("the lineage", completed)
        begun, complete = events[0], events[-1]
        print(json.dumps(events, indent=1))
        for event in (begun, complete):
            [source], [dataset] = event["inputs"], event["outputs"]
            assert (source["namespace"], source["name"]) == ("file", str(scene.source))
            assert (dataset["namespace"], dataset["name"]) == ("file", scene.uri)
        facet = complete["run"]["facets"]["lanceStream"]
        assert facet["rows"] == counts.rows_in
        assert (facet["queryId"], facet["reason"]) == (scene.query_id, "stopped")
        assert "versionBefore" not in facet, "the task created the dataset"
        assert facet["versionAfter"] <= scene.port().version
        version = complete["outputs"][0]["facets"]["version"]["datasetVersion"]
        assert version == str(facet["versionAfter"])


def backfill(airflow: Airflow, dag_id: str) -> bool:
    """Start a backfill of three runs, unless it was started; a busy API server refuses some."""
    if airflow.call("GET", f"/backfills?dag_id={dag_id}")["backfills"]:
        return True
    body = {
        "dag_id": dag_id,
        "from_date": "2026-02-01T00:00:00Z",
        "to_date": "2026-02-01T00:02:00Z",
        "max_active_runs": 3,
        "reprocess_behavior": "none",
        "run_backwards": False,
        "dag_run_conf": {},
    }
    return bool(airflow.call("POST", "/backfills", body))


@pytest.mark.parametrize("dag_id", ["turns_ours", "turns_ours_worker"])
def test_a_backfill_of_three_runs_beside_the_schedule(
    running: Airflow, stages: Path, dag_id: str
) -> None:
    with Scene(running, stages / dag_id, dag_id) as scene:
        scene.wait("the DAG", lambda: running.has_dag(dag_id))
        pause(running, dag_id, paused=False)
        active = ("running", "deferred")
        scene.wait(
            "a run of the schedule",
            lambda: [r for r in runs(running, dag_id) if (r["task"] or {}).get("state") in active],
        )
        scene.wait("the backfill's start", lambda: backfill(running, dag_id))

        def backfilled() -> list[dict[str, Any]]:
            found = [r for r in runs(running, dag_id) if r["run_type"] == "backfill"]
            return found if len(found) == 3 and all(r["state"] in ENDED for r in found) else []

        three = scene.wait("the backfill", backfilled, 900)
        scene.stop_feeding()
        before = {r["dag_run_id"] for r in runs(running, dag_id)}

        def after() -> bool:
            new = [r for r in runs(running, dag_id) if r["dag_run_id"] not in before]
            return any(r["state"] in ENDED for r in new)

        scene.wait("a run after the last file", after, 600)
        pause(running, dag_id, paused=True)
        every = runs(running, dag_id)
        done = [r for r in every if r["state"] in ENDED]
        print([(r["dag_run_id"], r["state"], r["task"]["try_number"]) for r in every])
        assert {r["state"] for r in three} == {"success"}
        assert {r["state"] for r in done} == {"success"}
        assert {r["task"]["try_number"] for r in done} == {1}
        assert any(r["run_type"] == "scheduled" for r in done)
        # One driver at any time, and at least one run had to wait for another.
        assert scene.timeline.most == 1
        logs = [running.task_log(dag_id, r["dag_run_id"], TASK, 1) for r in three]
        assert any("Waiting for " in log for log in logs)
        assert not any("fenced" in log.lower() for log in logs)
        spans = sorted(
            (summary["firstEpoch"], summary["lastEpoch"])
            for r in done
            if (summary := running.xcom(dag_id, r["dag_run_id"], TASK)) and summary["epochs"]
        )
        assert all(last < first for (_, last), (first, _) in itertools.pairwise(spans))
        counts = scene.count()
        assert counts.exact, counts
        assert counts.rows_in > 0
        epochs = [each.epoch_id for each in scene.stamps()]
        assert len(epochs) == len(set(epochs))
