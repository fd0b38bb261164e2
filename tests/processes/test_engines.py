"""Where maintenance runs: the engines, one of them against a spark-submit that plays."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_lance.backends.submission import Submission, spark_connection
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    LanceStreamError,
    SpecError,
    StorageUnavailableError,
    TransientError,
)
from airflow_provider_lance.maintenance.options import (
    MaintenanceOptions,
    MaintenanceSpec,
)
from airflow_provider_lance.operators import job_output
from airflow_provider_lance.operators.engines import LocalEngine, SparkEngine
from tests.support.processes import wait_for

from .conftest import ROWS, SECRET, SparkOn, SparkSubmit

LOG = logging.getLogger("engine")
REPORT = {"uri": "/a", "done": {"compact": {"tasks": 3}}, "skipped": {}}


def engine(**changes: Any) -> SparkEngine:
    arguments: dict[str, Any] = {
        "connection": spark_connection("spark_default"),
        "name": "lance-optimize",
        "conf": {},
        "packages": None,
        "py_files": None,
        "deploy_mode": None,
        "further": {},
    }
    return SparkEngine(LOG, Submission(**(arguments | changes)))  # type: ignore[arg-type]


def spec(uri: str = "/a", secret: str | None = None, **options: Any) -> MaintenanceSpec:
    return MaintenanceSpec(
        uri=uri,
        storage_options={"aws_secret_access_key": secret} if secret else {},
        options=MaintenanceOptions.parse(options),
    )


@pytest.fixture
def small_fragments(dataset: str) -> str:
    for _ in range(4):
        lance.write_dataset(ROWS, dataset, mode="append")
    return dataset


def test_returns_the_jobs_report(spark_submit: SparkSubmit) -> None:
    spark_submit.orders(report=REPORT)
    assert engine().run(spec()) == REPORT


def test_hands_over_a_whole_specification(spark_submit: SparkSubmit) -> None:
    spark_submit.orders(report=REPORT)
    given = spec(steps=["cleanup"], olderThan=60, retainVersions=3)
    engine(
        conf={"spark.ui.enabled": False},
        packages="a:b:1",
        further={"files": "/their.txt", "num_executors": 2},
    ).run(given)
    notes = spark_submit.notes
    assert notes["spec"]["options"] == given.options.to_json()
    argv = notes["argv"]
    assert argv[argv.index("--name") + 1] == "lance-optimize"
    assert argv[argv.index("--packages") + 1] == "a:b:1"
    assert argv[argv.index("--files") + 1] == "/their.txt"
    assert argv[argv.index("--num-executors") + 1] == "2"
    assert "spark.ui.enabled=false" in argv
    assert argv[-5].endswith("spark/maintain.py")
    assert argv[-4:-1] == [notes["spec_file"], "--remove", "--report"]
    assert Path(argv[-1]).parent == Path(notes["spec_file"]).parent
    assert notes["pyspark_python"] == sys.executable


def test_secrets_travel_in_a_private_file_only(
    spark_submit: SparkSubmit, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    spark_submit.orders(report=REPORT)
    caplog.set_level(logging.DEBUG)
    engine().run(spec(secret=SECRET))
    notes = spark_submit.notes
    assert notes["spec"]["storageOptions"] == {"aws_secret_access_key": SECRET}
    assert notes["leaked"] == []
    assert (notes["mode"], notes["folder_mode"]) == ("0o600", "0o700")
    assert SECRET not in caplog.text + "".join(capfd.readouterr())
    assert not Path(notes["spec_file"]).parent.exists()


def test_the_child_does_not_hold_the_tasks_stdin(tmp_path: Path, spark_submit: SparkSubmit) -> None:
    spark_submit.orders(report=REPORT)
    line_to_airflow = tmp_path / "stdin"
    line_to_airflow.touch()
    mine = os.dup(0)
    with line_to_airflow.open() as file:
        os.dup2(file.fileno(), 0)
    try:
        engine().run(spec())
    finally:
        os.dup2(mine, 0)
        os.close(mine)
    assert spark_submit.notes["stdin"] == os.devnull


@pytest.mark.parametrize(
    ("name", "raised", "message"),
    [
        ("DatasetNotFoundError", DatasetNotFoundError, "it said this"),
        ("StorageUnavailableError", StorageUnavailableError, "it said this"),
        ("Py4JError", LanceStreamError, "Py4JError: it said this"),
    ],
)
def test_an_error_comes_back_as_its_own_class(
    name: str, raised: type[Exception], message: str, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(report={"error": name, "message": "it said this"}, exit=1)
    with pytest.raises(raised) as failed:
        engine().run(spec())
    assert (type(failed.value), str(failed.value)) == (raised, message)


def test_the_report_counts_more_than_the_exit_status(spark_submit: SparkSubmit) -> None:
    spark_submit.orders(report=REPORT, exit=1)
    assert engine().run(spec()) == REPORT


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"exit": 3, "say": ["a last word"]}, "Error code is: 3"),
        ({"signal": 9}, "Error code is: -9"),
        ({}, "exit status 0"),
    ],
)
def test_silence_is_a_failure_that_may_pass(
    order: dict[str, Any], said: str, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(**order)
    with pytest.raises(TransientError, match="left no report") as failed:
        engine().run(spec())
    assert said in str(failed.value)
    assert "a last word" not in str(failed.value)


def test_the_tasks_log_gets_progress_and_warnings_and_a_file_gets_the_rest(
    tmp_path: Path, spark_submit: SparkSubmit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    progress = [f"2026-11-20 14:00:00,000 INFO Compacting. task={n} of 500" for n in range(1, 501)]
    said = [
        *(f"26/11/20 14:00:0{n} INFO SparkContext: chatter" for n in range(10)),
        "26/11/20 14:00:00 WARN TaskSetManager: Lost task 0.0",
        "  its trace",
        *progress,
        "2026-11-20 14:00:00,000 ERROR Failed. OSError: gone",
    ]
    spark_submit.orders(report=REPORT, say=said)
    engine().run(spec())
    shown = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    (log,) = (tmp_path / "drivers" / "lance-optimize").glob("*/driver.log")
    assert shown[0].startswith("Submitting. ")
    assert shown[0].endswith(f" {log}")
    assert shown[1:] == [
        "26/11/20 14:00:00 WARN TaskSetManager: Lost task 0.0",
        "  its trace",
        *(f"Compacting. task={n} of 500" for n in range(50, 501, 50)),
        "2026-11-20 14:00:00,000 ERROR Failed. OSError: gone",
    ]
    assert "chatter" not in caplog.text, "nor does the hook's own logger show it"
    assert log.read_text().splitlines() == said


def test_what_airflow_masks_is_masked_in_the_file(
    tmp_path: Path, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_output, "masked_texts", lambda: [SECRET])
    spark_submit.orders(report=REPORT, say=[f"26/11/20 14:00:00 INFO key={SECRET}"])
    engine().run(spec())
    (log,) = (tmp_path / "drivers").rglob("driver.log")
    assert log.read_text() == "26/11/20 14:00:00 INFO key=***\n"
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_a_job_without_a_report_is_judged_by_its_output(spark_submit: SparkSubmit) -> None:
    spark_submit.orders(exit=1, say=["26/11/20 14:00:00 ERROR Executor: out of disk"])
    with pytest.raises(TransientError, match=r"Executor: out of disk\. .*driver\.log"):
        engine().run(spec())
    said = "Could not parse Master URL: 'sparky'"
    spark_submit.orders(exit=1, say=[f"org.apache.spark.SparkException: {said}"])
    with pytest.raises(SpecError, match="Could not parse Master URL"):
        engine().run(spec())


def test_missing_spark_submit_is_refused_with_binary_connection_and_remedy(
    tmp_path: Path, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SpecError, match="'spark-submit', the spark-binary of"):
        engine().run(spec())


def test_the_job_gets_none_of_the_workers_secrets(
    spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    spark_submit.orders(report=REPORT)
    engine(further={"env_vars": {"GREETING": "hello"}}).run(spec())
    environment = spark_submit.notes["environment"]
    assert SECRET not in environment.values()
    assert (environment["AWS_REGION"], environment["GREETING"]) == ("eu-central-1", "hello")


def test_kill_ends_the_job_and_all_that_it_started(spark_submit: SparkSubmit) -> None:
    spark_submit.orders(hang=True, child=True)
    running = engine()

    def kill() -> None:
        wait_for("the job", lambda: spark_submit.ran)
        running.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    # It would wait for ever for the child, which holds the pipe.
    with pytest.raises(AirflowException, match="task was ended"):
        running.run(spec())
    killer.join()
    notes = spark_submit.notes
    wait_for("their end", lambda: not any(_runs(notes[name]) for name in ("pid", "child")), 10)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_killed_before_it_began_it_submits_nothing(spark_submit: SparkSubmit) -> None:
    running = engine()
    running.kill()
    with pytest.raises(AirflowException, match="task was ended"):
        running.run(spec())
    assert not spark_submit.ran


def test_to_a_cluster_spark_brings_the_specification_and_the_worker_measures(
    small_fragments: str, spark_on: SparkOn
) -> None:
    spark_submit = spark_on("yarn")
    spark_submit.orders(work=True, say=["Submitted application_1_2"])
    report = engine(deploy_mode="cluster").run(spec(small_fragments, steps=["compact"]))
    argv, spec_file = spark_submit.notes["argv"], spark_submit.notes["spec_file"]
    assert argv[argv.index("--files") + 1] == spec_file
    assert argv[-1] == os.path.basename(spec_file)
    assert not os.path.exists(spec_file)
    assert (report["before"]["fragments"], report["after"]["fragments"]) == (4, 1)
    assert set(report["done"]) == {"spark"}, "what each step did is not known here"
    assert report["done"]["spark"]["driver"] == "application_1_2"
    assert report["done"]["spark"]["steps"] == ["compact"]


def test_from_a_cluster_nothing_done_is_told_as_such(
    small_fragments: str, spark_on: SparkOn
) -> None:
    spark_on("yarn").orders()
    report = engine(deploy_mode="cluster").run(spec(small_fragments))
    assert report["done"] == {}
    assert set(report["skipped"]) == {"spark"}


def test_a_job_that_fails_in_a_cluster_fails_here(small_fragments: str, spark_on: SparkOn) -> None:
    spark_on("yarn").orders(exit=1)
    with pytest.raises(TransientError, match="Error code is: 1"):
        engine(deploy_mode="cluster").run(spec(small_fragments))


@pytest.mark.parametrize(
    ("options", "further", "message"),
    [
        ({"dryRun": True}, {}, "engine='local'"),
        ({}, {"yarn_track_via_rm_api": True}, r"\[\'yarn_track_via_rm_api\'\]"),
    ],
)
def test_refuses_what_a_driver_in_a_cluster_cannot_do(
    options: dict[str, Any],
    further: dict[str, Any],
    message: str,
    small_fragments: str,
    spark_on: SparkOn,
    add_connection: Any,
) -> None:
    spark_submit = spark_on("yarn")
    web = {"yarn_resourcemanager_webapp_address": "http://127.0.0.1:1"}
    add_connection("spark_default", conn_type="spark", host="yarn", extra=web)
    with pytest.raises(SpecError, match=message):
        engine(deploy_mode="cluster", further=further).run(spec(small_fragments, **options))
    assert not spark_submit.ran


def test_it_waits_for_a_driver_that_could_be_asked_about(
    small_fragments: str, spark_on: SparkOn, add_connection: Any
) -> None:
    spark_submit = spark_on("yarn")
    web = {"yarn_resourcemanager_webapp_address": "http://127.0.0.1:1"}
    add_connection("spark_default", conn_type="spark", host="yarn", extra=web)
    spark_submit.orders(work=True)
    engine(deploy_mode="cluster").run(spec(small_fragments, steps=["compact"]))
    assert not any("waitAppCompletion" in word for word in spark_submit.notes["argv"])


def test_local_runs_here(small_fragments: str) -> None:
    report = LocalEngine(LOG).run(spec(small_fragments, steps=["compact"]))  # type: ignore[arg-type]
    assert report["done"]["compact"]["tasks"] == 1
    assert len(lance.dataset(small_fragments).get_fragments()) == 1


def test_of_many_tasks_the_local_engine_shows_ten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    running = LocalEngine(LOG)  # type: ignore[arg-type]
    for done in range(1, 501):
        running._show_progress(done, 500)
    shown = [record.getMessage() for record in caplog.records]
    assert shown == [f"Compacting. task={n} of 500" for n in range(50, 501, 50)]


def test_local_killed_begins_nothing(small_fragments: str) -> None:
    running = LocalEngine(LOG)  # type: ignore[arg-type]
    running.kill()
    with pytest.raises(AirflowException, match="task was ended"):
        running.run(spec(small_fragments, steps=["compact"]))
    assert len(lance.dataset(small_fragments).get_fragments()) == 4
