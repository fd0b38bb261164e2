"""What OpenLineage's provider gets from a stream, with the real provider and its console."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk.exceptions import TaskDeferred
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.naming.dataset import ABFSS, GCS, HDFS, S3, Kafka, LocalFileSystem
from openlineage.client.serde import Serde

from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.operators.lineage import file_name, source_names
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.supervision.driver_reports import Summary
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import Action, SupervisionOutcome
from tests.support.processes import wait_for

from .conftest import AddConnection, SparkSubmit, TaskInstance, supervised

KAFKA = {"kafka.bootstrap.servers": "broker:9092, second:9092"}


def operator(tmp_path: Path, **changes: Any) -> LanceStreamOperator:
    arguments: dict[str, Any] = {
        "task_id": "stream",
        "uri": str(tmp_path / "flights.lance"),
        "query_id": "flights",
        "checkpoint_location": str(tmp_path / "checkpoint"),
        "source": {"format": "parquet", "options": {"path": "/data/in/"}, "schema": "id INT"},
        "sql": "SELECT id FROM source",
        "lance_conn_id": None,
    }
    return LanceStreamOperator(**supervised(poll_interval=0.05, **(arguments | changes)))


def event(task: LanceStreamOperator, when: str) -> dict[str, Any]:
    """Return what the provider makes of the operator, as OpenLineage's own JSON."""
    extractor = DefaultExtractor(task)
    extract: Any = {
        "start": extractor.extract,
        "complete": lambda: extractor.extract_on_complete(TaskInstance()),
        "failure": lambda: extractor.extract_on_failure(TaskInstance()),
    }[when]
    found = extract()
    assert found is not None
    run = Run("01941f29-7c00-7000-8000-000000000001", facets=found.run_facets)
    made = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        run=run,
        job=Job("test", "dag.stream", facets=found.job_facets),
        inputs=found.inputs,
        outputs=found.outputs,
    )
    shown: dict[str, Any] = json.loads(Serde.to_json(made))
    return shown


def test_the_start_names_source_and_dataset(tmp_path: Path) -> None:
    seen = event(operator(tmp_path), "start")
    [source], [dataset] = seen["inputs"], seen["outputs"]
    assert (source["namespace"], source["name"]) == ("file", "/data/in")
    assert (dataset["namespace"], dataset["name"]) == ("file", f"{tmp_path}/flights.lance")
    assert dataset["facets"]["storage"]["storageLayer"] == "lance"
    assert "version" not in dataset["facets"]
    assert seen["run"]["facets"]["lanceStream"]["queryId"] == "flights"
    assert seen["job"]["facets"]["sql"]["query"] == "SELECT id FROM source"


def test_a_lance_source_is_a_dataset_as_the_output_of_its_own_stream_is(
    tmp_path: Path, add_connection: AddConnection
) -> None:
    add_connection("lake", conn_type="lance", extra={"base_uri": "s3://lake/lance"})
    options = {"PATH": "landing.lance", "startingVersion": "latest"}
    task = operator(tmp_path, source={"format": "lance", "options": options}, source_conn_id="lake")
    [source] = event(task, "start")["inputs"]
    writer = operator(tmp_path, uri="landing.lance", lance_conn_id="lake")
    [written] = event(writer, "start")["outputs"]
    names = ("namespace", "name")
    assert [source[name] for name in names] == ["s3://lake", "lance/landing.lance"]
    assert [written[name] for name in names] == [source[name] for name in names]
    assert source["facets"]["storage"]["storageLayer"] == "lance"


def test_the_end_tells_versions_and_rows(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, ti: TaskInstance
) -> None:
    spark_submit.orders(summary={"version": 9, "rows": 70, "epochs": 7, "lastEpoch": 6})
    task = operator(tmp_path)
    task.execute({"ti": ti})  # type: ignore[typeddict-item]
    seen = event(task, "complete")
    facet = seen["run"]["facets"]["lanceStream"]
    told = {name: facet[name] for name in ("versionBefore", "versionAfter", "rows", "epochs")}
    assert told == {"versionBefore": 1, "versionAfter": 9, "rows": 70, "epochs": 7}
    assert (facet["reason"], facet["firstEpoch"], facet["lastEpoch"]) == ("finished", 0, 6)
    [out] = seen["outputs"]
    assert out["facets"]["version"]["datasetVersion"] == "9"
    assert out["outputFacets"]["outputStatistics"]["rowCount"] == 70


def test_the_end_tells_which_expectations_were_met(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, ti: TaskInstance
) -> None:
    met = {"positive": Met(70), "known": Met(68, 2)}
    checks = RowChecks(met, dropped=1, quarantined=1).to_json()
    spark_submit.orders(summary={"version": 9, "rows": 68, "checks": checks})
    task = operator(tmp_path)
    task.execute({"ti": ti})  # type: ignore[typeddict-item]
    seen = event(task, "complete")
    [source] = seen["inputs"]
    assertions = source["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {each["assertion"]: each["success"] for each in assertions} == {
        "positive": True,
        "known": False,
    }
    facet = seen["run"]["facets"]["lanceStream"]
    assert {name: facet[name] for name in checks} == checks


def test_without_expectations_there_is_no_assertion(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, ti: TaskInstance
) -> None:
    spark_submit.orders(summary={"version": 9, "rows": 70})
    task = operator(tmp_path)
    task.execute({"ti": ti})  # type: ignore[typeddict-item]
    [source] = event(task, "complete")["inputs"]
    assert not source.get("inputFacets")


def test_a_deferred_task_tells_at_its_end_what_its_drivers_did(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, ti: TaskInstance
) -> None:
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={}, hang=True)
    given: Any = {"ti": ti}
    first = operator(tmp_path, deferrable=True)
    with pytest.raises(TaskDeferred) as waiting:
        first.execute(given)
    order = json.loads(json.dumps(waiting.value.trigger.order))
    spark_submit.let_go()
    wait_for("its end", lambda: not SupervisionConfig.from_json(order).launch.driver.alive())
    ended = {
        **summary(tmp_path).to_json(),
        "launchId": order["launch"]["launchId"],
    }
    outcome = SupervisionOutcome(Action.END, StreamState.FINISHED, "read all", ended=ended)
    # Another process: another operator, which knows only what the trigger hands it.
    second = operator(tmp_path, deferrable=True)
    second.execute_complete(given, {"outcome": outcome.to_json(), "order": order | {"rows": 45}})
    facet = event(second, "complete")["run"]["facets"]["lanceStream"]
    assert (facet["versionBefore"], facet["versionAfter"], facet["rows"]) == (1, 12, 45)


def summary(tmp_path: Path) -> Summary:
    document = {
        "launchId": "launch",
        "queryId": "flights",
        "uri": str(tmp_path / "flights.lance"),
        "reason": "finished",
        **dict.fromkeys(("epochs", "rows", "deletes", "skipped", "manifestUpdates"), 3),
        "firstEpoch": 0,
        "lastEpoch": 2,
        "watermark": 2,
        "version": 12,
        "released": True,
        "seconds": 1.0,
    }
    return Summary.from_json(document)


def test_a_failure_tells_what_had_landed(
    tmp_path: Path, spark_submit: SparkSubmit, ti: TaskInstance
) -> None:
    failed = {"reason": "failed", "error": "StorageUnavailableError", "message": "gone"}
    spark_submit.orders(summary={**failed, "rows": 20, "version": 4}, exit=1)
    task = operator(tmp_path)
    with pytest.raises(TransientError, match="gone"):
        task.execute({"ti": ti})  # type: ignore[typeddict-item]
    facet = event(task, "failure")["run"]["facets"]["lanceStream"]
    assert (facet["rows"], facet["versionAfter"]) == (20, 4)
    assert (facet["reason"], facet["error"]) == ("failed", "StorageUnavailableError")
    assert "versionBefore" not in facet or facet["versionBefore"] is None


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("/data/a.lance", LocalFileSystem("/data/a.lance")),
        ("file:///data/a.lance/", LocalFileSystem("/data/a.lance")),
        ("s3://bucket/w/a.lance", S3("bucket", "w/a.lance")),
        ("s3a://KEY:SECRET@bucket/w/a.lance", S3("bucket", "w/a.lance")),
        ("gs://bucket/a.lance", GCS("bucket", "a.lance")),
        ("abfss://c@acc.dfs.core.windows.net/a.lance", ABFSS("c", "acc", "a.lance")),
        ("hdfs://namenode:8020/w/a.lance", HDFS("namenode", "8020", "/w/a.lance")),
    ],
)
def test_files_are_named_by_openlineages_conventions(uri: str, named: Any) -> None:
    assert file_name(uri) == (named.get_namespace(), named.get_name())


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "orders, clicks"}, ["clicks", "orders"]),
        ({"assign": '{"orders": [0, 1]}'}, ["orders"]),
        ({"assign": "no json"}, []),
        ({"subscribePattern": "orders.*"}, []),
    ],
)
def test_topics_are_named_by_openlineages_conventions(
    options: dict[str, str], topics: list[str]
) -> None:
    named = [Kafka("broker", "9092", topic) for topic in topics]
    expected = [(each.get_namespace(), each.get_name()) for each in named]
    assert list(source_names({"format": "kafka", "options": KAFKA | options})) == expected


@pytest.mark.parametrize("source", [None, {"format": "rate"}, {"options": 7}, "text"])
def test_what_names_no_source_has_none(source: Any) -> None:
    assert list(source_names(source)) == []


def test_the_facets_hold_no_secret(tmp_path: Path) -> None:
    options = KAFKA | {"subscribe": "orders", "kafka.sasl.jaas.config": "password=s3cr3t"}
    source = {"format": "kafka", "options": options}
    task = operator(tmp_path, uri="s3a://b/a.lance", source=source)
    assert "s3cr3t" not in json.dumps(event(task, "start"))


def test_without_the_provider_nothing_of_it_is_imported() -> None:
    """Nor with it, until it calls: its client costs time in every process that parses a DAG."""
    code = """
import sys
if sys.argv[1:]:
    class Hidden:
        def find_spec(self, name, *rest):
            if name in ("openlineage", "airflow.providers.openlineage.extractors"):
                raise ModuleNotFoundError(name)
    sys.meta_path.insert(0, Hidden())
from airflow_provider_lance.operators import lineage, run, stream
wanted = lineage.is_wanted()
print([n for n in sys.modules if n.split(".")[0] == "openlineage" or ".openlineage.e" in n], wanted)
"""
    for hidden in ([], ["hidden"]):
        command = [sys.executable, "-c", code, *hidden]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines()[-1] == f"[] {not hidden}"
