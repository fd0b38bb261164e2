"""LanceStreamOperator against a spark-submit that plays: what is handed over, what comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_lance.backends.cluster_managers import master_of
from airflow_provider_lance.backends.submission import spark_connection
from airflow_provider_lance.backends.submit import driver_root
from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    FencedError,
    LanceStreamError,
    SpecError,
    TransientError,
)
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.operators.supervision import Supervision
from tests.support.processes import wait_for

from .conftest import (
    SECRET,
    AddConnection,
    Shown,
    SparkOn,
    SparkSubmit,
    Stream,
    TaskInstance,
    supervised,
)


def operator(tmp_path: Any, **changes: Any) -> LanceStreamOperator:
    arguments = {
        "task_id": "stream",
        "uri": str(tmp_path / "flights.lance"),
        "query_id": "flights",
        "checkpoint_location": str(tmp_path / "checkpoint"),
        "source": {"format": "rate"},
        "lance_conn_id": None,
        "poll_interval": 0.05,
    }
    return LanceStreamOperator(**supervised(**(arguments | changes)))


def run(task: LanceStreamOperator, ti: TaskInstance | None = None) -> dict[str, Any]:
    return task.execute({"ti": ti or TaskInstance()})  # type: ignore[typeddict-item]


def test_returns_the_drivers_summary(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    summary = run(operator(tmp_path))
    assert summary["reason"] == "finished"
    assert (summary["rows"], summary["epochs"], summary["watermark"]) == (6, 2, 1)
    assert json.loads(json.dumps(summary)) == summary


def test_hands_over_a_whole_specification(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    run(
        operator(
            tmp_path,
            source={"format": "parquet", "options": {"path": "/in"}, "schema": "id INT"},
            sql="SELECT id FROM source",
            output_mode="update",
            sink_options={"mergeKeys": ["id"], "createIfMissing": True},
            conf={"spark.ui.enabled": False},
            packages="a:b:1",
            py_files="/mine.py",
            spark_submit={"files": "/their.txt", "driver_memory": "1g"},
        )
    )
    spec = spark_submit.notes["spec"]
    assert spec["source"] == {"format": "parquet", "options": {"path": "/in"}, "schema": "id INT"}
    assert spec["sql"] == "SELECT id FROM source"
    assert spec["trigger"] == "availableNow"
    assert spec["sink"]["outputMode"] == "update"
    assert spec["sink"]["mergeKeys"] == ["id"]
    assert spec["sink"]["createIfMissing"] is True
    argv = spark_submit.notes["argv"]
    assert argv[argv.index("--name") + 1] == "lance-stream-flights"
    assert argv[argv.index("--packages") + 1] == "a:b:1"
    assert argv[argv.index("--py-files") + 1].endswith(".zip,/mine.py")
    assert argv[argv.index("--files") + 1] == "/their.txt"
    assert argv[argv.index("--driver-memory") + 1] == "1g"
    assert "spark.ui.enabled=false" in argv
    assert argv[-3].endswith("spark/job.py")
    assert argv[-2:] == [spark_submit.notes["spec_file"], "--remove"], "no copy in client mode"


@pytest.mark.parametrize(
    "changes",
    [
        {"deploy_mode": "cluster"},
        {"conf": {"spark.submit.deployMode": "cluster"}},
        {"spark_conn_id": "clustered"},
    ],
)
def test_to_a_cluster_spark_brings_the_specification(
    tmp_path: Any, spark_on: SparkOn, add_connection: AddConnection, changes: dict[str, Any]
) -> None:
    spark_submit = spark_on("yarn")
    add_connection("clustered", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    run(operator(tmp_path, spark_submit={"files": "/their.txt"}, **changes))
    argv = spark_submit.notes["argv"]
    assert argv[argv.index("--files") + 1] == f"/their.txt,{spark_submit.notes['spec_file']}"
    assert argv[-1] == os.path.basename(spark_submit.notes["spec_file"])
    assert not os.path.exists(spark_submit.notes["spec_file"])


def test_secrets_travel_in_a_private_file_only(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    ti: TaskInstance,
    add_connection: AddConnection,
    shown: Shown,
) -> None:
    add_connection(
        "warehouse",
        conn_type="lance",
        password=SECRET,
        extra={"base_uri": str(tmp_path), "storage_options": {"session_token": f"{SECRET}-2"}},
    )
    task = operator(tmp_path, uri="flights.lance", lance_conn_id="warehouse")
    summary = run(task, ti)
    notes = spark_submit.notes
    assert notes["spec"]["sink"]["uri"] == str(tmp_path / "flights.lance")
    assert notes["spec"]["sink"]["storageOptions"] == {
        "aws_secret_access_key": SECRET,
        "session_token": f"{SECRET}-2",
    }
    assert notes["leaked"] == []
    assert (notes["mode"], notes["folder_mode"]) == ("0o600", "0o700")
    rendered = {name: getattr(task, name) for name in task.template_fields}
    assert SECRET not in str(rendered) + str(summary) + str(ti.xcoms) + shown()
    wait_for("its deletion", lambda: not os.path.exists(notes["spec_file"]))


def test_the_secrets_of_a_lance_source_are_in_the_specification_alone(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    add_connection: AddConnection,
    shown: Shown,
) -> None:
    ti = TaskInstance()
    add_connection(
        "landing",
        conn_type="lance",
        extra={"base_uri": "s3://landing", "storage_options": {"session_token": SECRET}},
    )
    source = {"format": "lance", "options": {"path": "in.lance", "startingVersion": "{{ 3 }}"}}
    task = operator(tmp_path, source=source, source_conn_id="landing")
    task.source["options"]["startingVersion"] = "3"  # as rendered
    summary = run(task, ti)
    notes = spark_submit.notes
    assert notes["spec"]["source"]["options"] == {
        "path": "s3://landing/in.lance",
        "startingVersion": "3",
    }
    assert notes["spec"]["sourceStorageOptions"] == {"session_token": SECRET}
    assert notes["spec"]["sink"]["storageOptions"] == {}
    assert notes["leaked"] == []
    rendered = {name: getattr(task, name) for name in task.template_fields}
    assert SECRET not in str(rendered) + str(summary) + str(ti.xcoms) + shown()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"source": {"format": "lance", "options": {"path": "in.lance"}}}, True),
        ({"source": None, "dataframe": "my_streams:orders", "py_files": "/my_streams.py"}, True),
        ({"source": {"format": "rate"}}, False),
    ],
    ids=["lance", "function", "rate"],
)
def test_only_a_stream_that_may_read_lance_gets_the_stores_options(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    add_connection: AddConnection,
    rows: dict[str, Any],
    expected: bool,
) -> None:
    extra = {"base_uri": str(tmp_path), "storage_options": {"session_token": SECRET}}
    add_connection("warehouse", conn_type="lance", extra=extra)
    run(operator(tmp_path, uri="flights.lance", lance_conn_id="warehouse", **rows))
    spec = spark_submit.notes["spec"]
    assert spec["sourceStorageOptions"] == ({"session_token": SECRET} if expected else {})


def test_the_child_does_not_hold_the_tasks_stdin(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    line_to_airflow = tmp_path / "stdin"
    line_to_airflow.touch()
    mine = os.dup(0)
    with line_to_airflow.open() as file:
        os.dup2(file.fileno(), 0)
    try:
        run(operator(tmp_path))
    finally:
        os.dup2(mine, 0)
        os.close(mine)
    assert spark_submit.notes["stdin"] == os.devnull


@pytest.mark.parametrize(
    ("host", "environment", "conf", "expected"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "/chosen"}, {}, "/chosen"),
        ("local[2]", {}, {"spark.pyspark.python": "/conf"}, None),
        ("yarn", {}, {}, None),
    ],
)
def test_a_local_master_runs_this_interpreter(
    tmp_path: Any,
    spark_on: SparkOn,
    *,
    host: str,
    environment: dict[str, str],
    conf: dict[str, str],
    expected: str | None,
) -> None:
    spark_submit = spark_on(host, **environment)
    run(operator(tmp_path, conf=conf))
    assert spark_submit.notes["pyspark_python"] == expected


def test_env_vars_of_the_user_are_kept(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    run(operator(tmp_path, spark_submit={"env_vars": {"PYSPARK_PYTHON": "/theirs"}}))
    assert spark_submit.notes["pyspark_python"] == "/theirs"


TOLD_AT_PARSING = [
    ({"query_id": ""}, "queryId is missing"),
    ({"query_id": "a b"}, "cannot be part of a config key"),
    ({"query_id": "../other"}, "cannot be part of a config key"),
    ({"query_id": None, "uri": "/data/my flights"}, "cannot stand for it"),
    ({"uri": "flights.lance"}, "relative name"),
    ({"uri": "s3:///flights.lance"}, "not the root"),
    ({"uri": None}, "uri must be a text"),
    ({"uri": "../flights.lance", "lance_conn_id": "lance_default"}, "leads out of the base URI"),
    ({"checkpoint_location": "checkpoint"}, "absolute path"),
    ({"checkpoint_location": None}, "has no checkpoint"),
    ({"checkpoint_location": "/data", "uri": "/data/x.lance"}, "another place"),
    ({"source": None}, "either source"),
    ({"source": "json"}, "mapping of options"),
    ({"source": {}}, "format is missing"),
    ({"source": {"format": "rate", "option": {}}}, "did you mean options?"),
    ({"source": {"format": "rate", "schema": 1}}, "schema must be a text"),
    ({"dataframe": "m:f"}, "not both"),
    ({"dataframe": "m.f", "source": None}, "'module:function'"),
    ({"dataframe": "m:f", "source": None, "sql": "SELECT 1"}, "put it into the function"),
    ({"sql": " "}, "sql must be a text"),
    ({"arguments": ["a"]}, "arguments must be a mapping"),
    ({"trigger": "10 secs"}, "an interval such as '10 seconds', got '10 secs'"),
    ({"trigger": "availablenow"}, "'availableNow' or an interval"),
    ({"output_mode": "overwrite"}, "outputMode must be one of"),
    ({"output_mode": "update"}, "mergeKeys"),
    ({"sink_options": {"mergeKeys": ["id"]}}, "mergeKeys belongs to outputMode=update"),
    ({"sink_options": {"mergekeys": "id"}}, "did you mean mergeKeys?"),
    ({"sink_options": {"merge_key": "id"}}, "did you mean mergeKeys?"),
    ({"sink_options": {"watermarkEvery": 0}}, "watermarkEvery must be a whole number of 1"),
    ({"sink_options": {"watermark_every": "often"}}, "watermarkEvery must be a whole number"),
    (
        {"sink_options": {"watermarkEvery": 5, "watermark_every": 5}},
        "watermarkEvery and watermark_every are one option",
    ),
    ({"sink_options": {"queryId": "other"}}, "contradicts"),
    ({"sink_options": {"create_if_missing": False}, "create_if_missing": True}, "contradicts"),
    ({"sink_options": {"storageOptions": {"a": "b"}}}, "rendered template"),
    ({"sink_options": {"storage_options": "{{ x }}"}}, "rendered template"),
    ({"sink_options": "createIfMissing"}, "mapping"),
    ({"create_if_missing": "yes"}, "createIfMissing must be true or false"),
    ({"spark_conn_id": ""}, "spark_conn_id must be a text"),
    ({"spark_submit": {"driver_mem": "1g"}}, "unknown ['driver_mem']"),
    ({"spark_submit": {"py_files": "x"}}, "belong to the operator"),
    ({"conf": {"spark.yarn.submit.waitAppCompletion": False}}, "nothing polls the driver"),
    ({"conf": "spark.ui.enabled=false"}, "conf must be a mapping"),
    ({"deploy_mode": "Cluster"}, "deploy_mode must be 'client' or 'cluster', got 'Cluster'"),
    ({"packages": "a:b:1;c:d:2"}, "Maven coordinates"),
    ({"packages": "a:b"}, "Maven coordinates"),
]


@pytest.mark.parametrize(("changes", "message"), TOLD_AT_PARSING)
def test_a_mistake_without_a_template_is_told_when_the_dag_is_parsed(
    changes: dict[str, Any], message: str, tmp_path: Any
) -> None:
    with pytest.raises(SpecError) as told:
        operator(tmp_path, **changes)
    assert message in str(told.value)
    assert "template/" not in str(told.value), "names no place that nobody wrote"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"poll_interval": 0}, "poll_interval must be .*got 0"),
        ({"poll_interval": timedelta(seconds=1)}, "poll_interval must be .*timedelta"),
        ({"stall_timeout": 600}, "stall_timeout must be .*600"),
        ({"start_timeout": timedelta(0)}, "start_timeout must be"),
        ({"heartbeat_timeout": None}, "heartbeat_timeout must be .*None"),
        ({"stop_grace": "1 minute"}, "stop_grace must be .*'1 minute'"),
        ({"max_restarts": -1}, "max_restarts must be .*-1"),
        ({"max_restarts": "5"}, "max_restarts must be .*'5'"),
        ({"restart_delay": timedelta(hours=1)}, "at most max_restart_delay"),
        ({"max_restart_delay": timedelta(seconds=1)}, "at most max_restart_delay"),
        ({"healthy_after": timedelta(seconds=-1)}, "healthy_after must be"),
    ],
)
def test_a_wrong_time_out_is_told_when_the_dag_is_parsed(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        Supervision(**changes)


def test_supervision_in_another_form_is_told_when_the_dag_is_parsed(tmp_path: Any) -> None:
    with pytest.raises(SpecError, match="supervision must be"):
        operator(tmp_path, supervision={"poll_interval": 1})


@pytest.mark.parametrize(
    "changes",
    [
        {"uri": "{{ var.value.uri }}", "query_id": None},
        {"query_id": "{{ params.query }}"},
        {"checkpoint_location": "{{ params.folder }}/checkpoint"},
        {"uri": "/data/{{ x }}", "checkpoint_location": "/data"},
        {"source": {"format": "{{ params.format }}", "options": {"path": "{{ x }}"}}},
        {"source": {"format": "json", "schema": "{{ params.schema }}"}},
        {"sql": "orders.sql"},
        {"sql": "{% if params.all %}SELECT * FROM source{% endif %}"},
        {"trigger": "{{ params.trigger }}"},
        {"output_mode": "{{ params.mode }}", "sink_options": {"mergeKeys": ["id"]}},
        {"output_mode": "update", "sink_options": {"mergeKeys": "{{ params.keys }}"}},
        {"output_mode": "update", "sink_options": {"merge_keys": ["{{ params.key }}"]}},
        {"sink_options": {"watermarkEvery": "{{ params.every }}"}},
        {"create_if_missing": "{{ params.create }}"},
        {"conf": {"spark.yarn.submit.waitAppCompletion": "{{ params.wait }}"}},
        {"deploy_mode": "{{ params.mode }}"},
        {"packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:{{ params.version }}"},
        {"spark_submit": {"driver_memory": "{{ params.memory }}"}},
        {"spark_conn_id": "{{ params.cluster }}"},
        {"lance_conn_id": "{{ params.lake }}", "uri": "x.lance", "checkpoint_location": None},
        {"arguments": {"day": "{{ ds }}"}},
    ],
)
def test_templated_arguments_are_not_checked_before_they_are_rendered(
    changes: dict[str, Any], tmp_path: Any
) -> None:
    operator(tmp_path, **changes)


def test_result_of_another_task_is_not_checked_when_the_dag_is_parsed(tmp_path: Any) -> None:
    with DAG("streams", schedule=None):
        before = EmptyOperator(task_id="before")
        operator(
            tmp_path,
            uri=before.output,
            query_id=before.output["query"],
            source=before.output["source"],
            output_mode="update",
            sink_options=before.output["options"],
        )


def test_a_mistake_beside_a_template_is_told_when_the_dag_is_parsed(tmp_path: Any) -> None:
    with pytest.raises(SpecError, match="watermarkEvry.*mean watermarkEvery"):
        operator(tmp_path, uri="{{ x }}", sink_options={"watermarkEvry": "{{ y }}"})


RENDERED_BADLY = [
    each
    for each in TOLD_AT_PARSING
    if each[0] not in ({"uri": None}, {"spark_conn_id": ""}) and "lance_conn_id" not in each[0]
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *RENDERED_BADLY,
        ({"lance_conn_id": "nowhere"}, "airflow connections add nowhere --conn-type lance"),
        ({"lance_conn_id": "spark_default"}, "'spark_default' is of type 'spark'"),
        ({"lance_conn_id": "lake", "checkpoint_location": None}, "has no checkpoint_root"),
        (
            {"lance_conn_id": "rooted", "checkpoint_location": None, "query_id": "x.reports"},
            "keeps its reports",
        ),
        (
            {"lance_conn_id": "lance_default", "checkpoint_location": "s3a://bucket/cp"},
            "airflow connections add lance_default",
        ),
        ({"spark_conn_id": "nowhere"}, "airflow connections add nowhere --conn-type spark"),
        ({"spark_conn_id": "lake"}, "'lance://' is no master"),
        ({"spark_submit": {"yarn_track_via_rm_api": True}}, "to be YARN"),
        ({"spark_submit": {"spark_binary": "sh"}, "spark_conn_id": "odd"}, "spark-home"),
        ({"spark_conn_id": "standalone", "deploy_mode": "cluster"}, "use client mode"),
        ({"spark_conn_id": "kubernetes"}, "cncf-kubernetes"),
    ],
)
def test_refuses_before_anything_is_started_and_is_not_retried(
    changes: dict[str, Any],
    message: str,
    tmp_path: Any,
    spark_submit: SparkSubmit,
    add_connection: AddConnection,
) -> None:
    add_connection("standalone", conn_type="spark", host="spark://master", port=7077)
    add_connection("kubernetes", conn_type="spark", host="k8s://https://master", port=443)
    add_connection("odd", conn_type="spark", host="local", extra={"spark-home": "/x"})
    add_connection("lake", conn_type="lance", extra={"base_uri": "/data"})
    add_connection("rooted", conn_type="lance", extra={"checkpoint_root": "/data/checkpoints"})
    task = operator(tmp_path)
    for name, value in changes.items():  # as its templates were rendered
        setattr(task, name, value)
    with pytest.raises(AirflowFailException) as failed:
        run(task)
    assert message in str(failed.value)
    assert isinstance(failed.value.__cause__, SpecError)
    assert not spark_submit.ran


@pytest.mark.parametrize(
    "fields",
    [
        {"conn_type": "spark", "host": "local[2]"},
        {"conn_type": "spark", "host": "yarn"},
        {"conn_type": "spark", "host": "spark://master", "port": 7077},
        {"conn_type": "spark", "host": "master", "port": 7077},
        {"conn_type": "spark", "host": "spark://one:7077,two:7077"},
        {"conn_type": "yarn", "host": "cluster"},
        {"conn_type": "spark"},
    ],
)
def test_the_master_is_read_as_sparks_own_hook_reads_it(
    fields: dict[str, Any], add_connection: AddConnection
) -> None:
    add_connection("mine", **fields)
    hook = SparkSubmitHook(conn_id="mine")
    assert master_of(spark_connection("mine")) == hook._connection["master"]


def test_the_smallest_stream_finds_its_places_and_its_name(
    tmp_path: Any, spark_submit: SparkSubmit, add_connection: AddConnection, shown: Shown
) -> None:
    places = {"base_uri": str(tmp_path), "checkpoint_root": f"{tmp_path}/checkpoints/"}
    add_connection("lance_default", conn_type="lance", extra=places)
    run(
        LanceStreamOperator(
            task_id="stream",
            uri="bronze/flights.lance",
            source={"format": "rate"},
            create_if_missing=True,
        )
    )
    sink = spark_submit.notes["spec"]["sink"]
    assert sink["uri"] == f"{tmp_path}/bronze/flights.lance"
    assert sink["queryId"] == "flights"
    assert sink["checkpointLocation"] == f"{tmp_path}/checkpoints/flights"
    assert sink["createIfMissing"] is True
    assert re.search("No query_id .*'flights'", shown())


def test_options_may_be_spelled_as_in_airflow(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    options = {"merge_keys": ["id"], "delete_when": "gone", "small_epoch_rows": 7}
    run(operator(tmp_path, output_mode="update", sink_options=options))
    sink = spark_submit.notes["spec"]["sink"]
    assert (sink["mergeKeys"], sink["deleteWhen"], sink["smallEpochRows"]) == (["id"], "gone", 7)


def test_a_local_path_needs_no_connection(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    run(operator(tmp_path, lance_conn_id="lance_default"))
    assert spark_submit.notes["spec"]["sink"]["storageOptions"] == {}


def test_the_datasets_name_stands_for_the_query_of_one_task_only(
    tmp_path: Any, spark_submit: SparkSubmit, dataset: str
) -> None:
    stream = Stream(dataset, launched_by="dag/old_name/scheduled__1/-1#1")
    stream.commit(0)
    stream.release()
    with pytest.raises(AirflowFailException) as failed:
        run(operator(tmp_path, query_id=None))
    for value in ("task dag/old_name;", "task dag/stream.", "query_id='flights'"):
        assert value in str(failed.value)
    assert not spark_submit.ran
    run(operator(tmp_path, query_id="flights"))
    assert spark_submit.ran


def test_the_datasets_name_stands_for_the_query_of_each_run_of_a_task(
    tmp_path: Any, spark_submit: SparkSubmit, dataset: str
) -> None:
    stream = Stream(dataset, launched_by="dag/stream/another_run/-1#2")
    stream.commit(0)
    stream.release()
    run(operator(tmp_path, query_id=None))
    assert spark_submit.ran


def test_the_drivers_folder_is_a_setting(
    tmp_path: Any, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "elsewhere"))
    run(operator(tmp_path))
    assert list((tmp_path / "elsewhere" / "flights").iterdir())
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", "elsewhere")
    with pytest.raises(AirflowFailException, match="driver_folder .*'elsewhere'"):
        run(operator(tmp_path))
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", "")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    assert driver_root() == tmp_path / "home" / "lance-streams"


def test_equal_options_are_no_contradiction(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    run(operator(tmp_path, sink_options={"queryId": "flights"}))
    assert spark_submit.ran


def test_a_terminal_end_is_not_retried(tmp_path: Any, spark_submit: SparkSubmit) -> None:
    ended = {"reason": "failed", "error": "FencedError", "message": "token 4 holds the query"}
    spark_submit.orders(summary=ended, exit=1)
    with pytest.raises(AirflowFailException, match="FencedError: token 4 holds") as failed:
        run(operator(tmp_path))
    assert isinstance(failed.value.__cause__, FencedError)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        ("CommitStateUnknownError", CommitStateUnknownError, "the store said nothing"),
        ("Py4JError", LanceStreamError, "Py4JError: the store said nothing"),
    ],
)
def test_any_other_end_is_retried(
    error: str,
    raised: type[Exception],
    message: str,
    tmp_path: Any,
    spark_submit: SparkSubmit,
) -> None:
    ended = {"reason": "failed", "error": error, "message": "the store said nothing"}
    spark_submit.orders(summary=ended, exit=1)
    with pytest.raises(raised) as failed:
        run(operator(tmp_path))
    assert str(failed.value) == message


@pytest.mark.parametrize(
    ("order", "status"),
    [({"exit": 3}, "exit status 3"), ({"signal": signal.SIGKILL}, "signal 9")],
)
def test_a_killed_driver_is_retried(
    order: dict[str, Any],
    status: str,
    tmp_path: Any,
    spark_submit: SparkSubmit,
) -> None:
    spark_submit.orders(summary=None, say=["the last words"], **order)
    with pytest.raises(TransientError, match=rf"\({status}\) .*no summary") as failed:
        run(operator(tmp_path))
    assert "the last words" not in str(failed.value)


MASTER = 'Exception in thread "main" org.apache.spark.SparkException: Master must be yarn'
AWAY = "26/11/22 10:00:00 ERROR SparkContext: All masters are unresponsive! Giving up."


def test_a_certain_error_in_the_drivers_log_is_not_retried(
    tmp_path: Any, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary=None, say=[MASTER, "\tat org.apache.spark"], exit=1)
    with pytest.raises(AirflowFailException) as failed:
        run(operator(tmp_path, max_restarts=3))
    said = "SpecError: query 'flights': org.apache.spark.SparkException: Master must be yarn"
    assert str(failed.value).startswith(said)
    assert len(list((tmp_path / "drivers/flights").iterdir())) == 1


def test_any_other_error_in_the_drivers_log_is_the_tasks(
    tmp_path: Any, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary=None, say=[AWAY], exit=1)
    with pytest.raises(TransientError, match="All masters are unresponsive") as failed:
        run(operator(tmp_path))
    assert "left no summary" not in str(failed.value)


def test_a_signal_is_not_explained_by_an_earlier_error(
    tmp_path: Any, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary=None, say=[MASTER], signal=signal.SIGKILL)
    with pytest.raises(TransientError, match=r"signal 9\) .*no summary"):
        run(operator(tmp_path))


def test_the_summary_counts_more_than_the_exit_status(
    tmp_path: Any, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary={"reason": "stopped"}, exit=1)
    assert run(operator(tmp_path))["reason"] == "stopped"


def test_success_that_cannot_be_read_is_unknown(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    shown: Shown,
) -> None:
    spark_submit.orders(summary=None)
    summary = run(operator(tmp_path))
    assert summary["reason"] == "unknown"
    assert summary["queryId"] == "flights"
    assert summary["launchId"]
    assert "no summary in" in shown()


def test_missing_spark_submit_is_refused_with_binary_connection_and_remedy(
    tmp_path: Any, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(AirflowFailException) as caught:
        run(operator(tmp_path, spark_submit={"spark_binary": "spark3-submit"}))
    said = str(caught.value)
    assert said.startswith("SpecError: 'spark3-submit', ")
    parts = (
        "'spark_default'",
        "PATH",
        "`pip install 'airflow-provider-lance[pyspark]'`",
        '{"spark-binary": "spark3-submit"}',
    )
    assert [each for each in parts if each not in said] == []


def test_progress_and_links_while_it_runs(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    ti: TaskInstance,
    shown: Shown,
) -> None:
    driver = {"uiAddress": "http://host:4040"}
    spark_submit.orders(
        heartbeats=[
            {"driver": driver, "sink": None, "progress": None},
            {
                "driver": driver,
                "sink": {"epoch": 0, "version": 3, "rows": 1000},
                "progress": {"processedRowsPerSecond": 512.34, "batchDuration": 250},
            },
            {"driver": driver, "sink": {"epoch": 0, "version": 3, "rows": 1000}},
            {"driver": driver, "sink": {"epoch": 1, "version": 4, "rows": 7}},
        ],
        summary={},
    )
    task = operator(tmp_path)
    run(task, ti)
    line = "Epoch 0 committed. version=3 rows=1000 rowsPerSecond=512.3 batchMs=250"
    logged = shown()
    assert logged.count(line) == 1
    assert "Epoch 1 committed. version=4 rows=7" in logged
    assert ti.xcoms["lance_spark_ui"] == "http://host:4040"
    page = f"lance/stream?{urlencode({'uri': task.uri, 'query': 'flights', 'conn_id': ''})}"
    assert ti.xcoms["lance_stream_page"] == page
    assert ti.xcoms["lance_dataset"] == "", "a browser opens no folder of this host"
    ends = {
        link.name: link.get_link(task, ti_key=None)  # type: ignore[arg-type]
        for link in task.operator_extra_links
    }
    assert list(ends.items()) == [
        ("Lance stream", page),
        ("Spark UI", ""),  # the driver is gone
        ("Lance dataset", ""),
    ]


def test_the_last_heartbeat_is_shown_however_long_the_interval(
    tmp_path: Any, spark_submit: SparkSubmit, shown: Shown
) -> None:
    spark_submit.orders(heartbeats=[{"sink": {"epoch": 8}}], beat_seconds=0, summary={})
    run(operator(tmp_path, poll_interval=60))
    assert "Epoch 8 committed." in shown()


def test_a_heartbeat_that_cannot_be_read_fails_nothing(
    tmp_path: Any,
    spark_submit: SparkSubmit,
    shown: Shown,
) -> None:
    spark_submit.orders(unreadable_heartbeat=True, say=["working"], summary={})
    assert run(operator(tmp_path))["reason"] == "finished"
    assert shown().count("cannot be observed") == 1


def test_on_kill_has_the_driver_ended_after_its_grace(
    tmp_path: Any, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary=None, hang=True)
    task = operator(tmp_path, stop_grace=timedelta(seconds=1))

    def kill() -> None:
        wait_for("the driver", lambda: spark_submit.ran)
        began.append(time.monotonic())
        task.on_kill()
        began.append(time.monotonic())

    began: list[float] = []
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="asked to stop"):
        run(task)
    killer.join()
    pid = spark_submit.notes["pid"]
    wait_for("the driver's end", lambda: not Path(f"/proc/{pid}").exists())
    assert began[1] - began[0] < 5, "Airflow kills a task that takes longer"


def test_the_constructor_does_no_work() -> None:
    task = LanceStreamOperator(
        task_id="stream",
        uri="{{ x }}",
        query_id="{{ y }}",
        checkpoint_location="{{ z }}",
        source={"format": "rate"},
    )
    assert "hook" not in vars(task)
    assert {"uri", "query_id", "source", "sink_options", "conf"} <= set(task.template_fields)
    assert all(hasattr(task, name) for name in task.template_fields)
