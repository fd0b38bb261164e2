"""Maintenance as a Spark job: on a standalone cluster with two workers, driven by its engine."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Airflow writes its configuration there when it is first imported.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance import shipping
from airflow_provider_lance.backends.submission import Submission, spark_connection
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    StorageUnavailableError,
    TransientError,
)
from airflow_provider_lance.maintenance.compaction import plan_compaction
from airflow_provider_lance.maintenance.options import (
    MaintenanceOptions,
    MaintenanceSpec,
)
from airflow_provider_lance.operators.engines import LocalEngine, SparkEngine
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.compaction import ExecuteOnExecutors
from airflow_provider_lance.spark.maintain import main, run
from tests.integration import test_job
from tests.support.cluster import Cluster, standalone_cluster
from tests.support.processes import wait_for
from tests.support.submit import Submitter

s3 = test_job.s3
SECRET = test_job.SECRET
LOG: Any = logging.getLogger("engine")
SMALL = {"target_rows_per_fragment": 100}

RunOnCluster = Callable[[MaintenanceSpec], dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def run_on_cluster(
    cluster: Cluster, submit: Submitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunOnCluster:
    """Run the engine with the real spark-submit, and an interpreter that has no Airflow."""
    connection = {"conn_type": "spark", "host": cluster.master}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW__LANCE__DRIVER_FOLDER", str(tmp_path / "drivers"))
    python = {"PYSPARK_PYTHON": str(submit.python), "PYSPARK_DRIVER_PYTHON": str(submit.python)}
    submission = Submission(
        connection=spark_connection("spark_default"),
        name="lance-optimize",
        conf=cluster.conf,
        packages=None,
        py_files=None,
        deploy_mode=None,
        further={"env_vars": python},
    )
    return SparkEngine(LOG, submission).run


def spec(uri: str, storage_options: dict[str, str] | None = None, **options: Any) -> Any:
    return MaintenanceSpec(
        uri=uri,
        storage_options=storage_options or {},
        options=MaintenanceOptions.parse(options),
    )


def fill(uri: str, fragments: int, storage_options: dict[str, str] | None = None) -> str:
    """Write fragments of 15 to 24 rows, some of them large, some with deleted rows."""
    first = 0
    for number in range(fragments):
        count = 150 if number % 17 == 16 else 15 + number % 10
        table = pa.table({"id": pa.array(range(first, first + count), pa.int64())})
        table = table.append_column("text", pa.array([f"row {id_}" for id_ in table["id"]]))
        first += count
        lance.write_dataset(table, uri, mode="append", storage_options=storage_options)
    dataset = lance.dataset(uri, storage_options=storage_options)
    dataset.delete("id % 23 = 5 AND id > 300")
    return uri


def rows(uri: str) -> pa.Table:
    """Return the rows by id: Lance puts compacted fragments behind all others."""
    return lance.dataset(uri).to_table().sort_by("id")


def fragments(uri: str) -> list[list[int]]:
    """Return the ids of each fragment's rows, in their order."""
    return [each.to_table()["id"].to_pylist() for each in lance.dataset(uri).get_fragments()]


@pytest.mark.slow
def test_the_same_fragments_as_in_one_process_made_by_both_executors(
    run_on_cluster: RunOnCluster, cluster: Cluster, tmp_path: Path
) -> None:
    mine = fill(str(tmp_path / "mine.lance"), 60)
    lance.dataset(mine).create_scalar_index("id", "BTREE")
    new = pa.table({"id": range(10_000, 10_030), "text": ["new"] * 30})
    lance.write_dataset(new, mine, mode="append")
    theirs = shutil.copytree(mine, str(tmp_path / "theirs.lance"))
    before = rows(mine)
    known = len(cluster.events())
    wanted = {"compaction": SMALL, "olderThan": 0, "retainVersions": 2}

    local = LocalEngine(LOG).run(spec(mine, **wanted))
    spark = run_on_cluster(spec(theirs, **wanted))

    assert len(fragments(mine)) < 20
    assert fragments(theirs) == fragments(mine)
    assert rows(theirs) == before
    assert spark["done"]["compact"] == local["done"]["compact"]
    assert spark["done"]["compact"]["tasks"] > 6
    assert spark["done"].keys() == local["done"].keys()
    assert spark["done"]["index"] == local["done"]["index"]
    changing = {"bytes", "manifestBytes", "historyBytes"}
    assert {k: v for k, v in spark["after"].items() if k not in changing} == {
        k: v for k, v in local["after"].items() if k not in changing
    }
    dataset = lance.dataset(theirs)
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 77").explain_plan()
    assert dataset.to_table(filter="id = 77")["text"].to_pylist() == ["row 77"]

    ends = [each for each in cluster.events()[known:] if each["Event"] == "SparkListenerTaskEnd"]
    ran = Counter(each["Task Info"]["Executor ID"] for each in ends)
    assert ran.keys() == {"0", "1"}, "each on a worker of its own, and none is the driver"
    assert ran.total() == spark["done"]["compact"]["tasks"]


@pytest.mark.slow
def test_an_error_comes_back_as_its_own_class(run_on_cluster: RunOnCluster, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=str(tmp_path)):
        run_on_cluster(spec(str(tmp_path / "nothing.lance")))


@pytest.mark.slow
def test_secrets_reach_the_executors_and_no_command_line_or_log(
    run_on_cluster: RunOnCluster,
    cluster: Cluster,
    s3: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    # Nothing but the storage options tells where this store is.
    uri = fill("s3://lake/many.lance", 12, s3)
    given = spec(uri, s3, steps=["compact"], compaction=SMALL)
    lines: set[str] = set()
    over = threading.Event()
    looking = threading.Thread(target=_look, args=(lines, over))
    looking.start()
    try:
        report = run_on_cluster(given)
    finally:
        over.set()
        looking.join()
    assert report["done"]["compact"]["tasks"] > 1
    assert any("maintain.py" in line for line in lines)
    assert any("pyspark.daemon" in line for line in lines), "the executors' Python workers"
    assert not any(SECRET in line for line in lines)
    words = cluster.words()
    assert "SparkListenerTaskEnd" in words
    assert "CoarseGrainedExecutorBackend" in words
    assert SECRET not in words + "".join(capfd.readouterr()) + json.dumps(report)


def _look(lines: set[str], over: threading.Event) -> None:
    """Gather the command lines of this host's processes."""
    while not over.wait(0.05):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.add(path.read_bytes().decode(errors="replace"))
            except OSError:
                continue


@pytest.mark.slow
def test_after_the_deadline_nothing_is_begun_and_the_next_run_goes_on(
    run_on_cluster: RunOnCluster, tmp_path: Path
) -> None:
    uri = fill(str(tmp_path / "many.lance"), 60)
    before = rows(uri)
    # Over before the first of the Python workers has imported Lance.
    late = run_on_cluster(spec(uri, compaction=SMALL, deadline=1))
    done = late["done"]["compact"]
    assert done["timedOut"]
    assert 1 <= done["tasks"] <= 2, "one an executor"
    assert done["left"] >= 5
    assert "deadline" in late["skipped"]["index"]
    assert rows(uri) == before
    rest = run_on_cluster(spec(uri, compaction=SMALL))["done"]["compact"]
    assert (rest["tasks"], rest["left"]) == (done["left"], 0)
    assert rows(uri) == before


@pytest.mark.slow
def test_a_specification_that_cannot_be_read(
    cluster: Cluster, submit: Submitter, tmp_path: Path
) -> None:
    path, report = tmp_path / "spec.json", tmp_path / "report.json"
    path.write_text(json.dumps({"uri": "/a", "options": {"step": "compact"}}))
    words = (str(path), "--remove", "--report", str(report))
    status, output = cluster.submit(shipping.application_path("maintain"), submit.zip, *words)
    assert status == 2, output
    assert json.loads(report.read_text())["error"] == "SpecError"
    assert report.read_text() in output.splitlines()
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"], "and nothing else"


# ------------------------------------------------------------------------- without a cluster


@pytest.mark.parametrize("arguments", [[], ["spec.json", "--rem"], ["a.json", "b.json"]])
def test_other_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: maintain.py" in capsys.readouterr().err


def test_unexpected_error_is_in_the_report_with_its_class(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = fill(str(tmp_path / "many.lance"), 3)
    status, document = run(spark, spec(uri, compaction=SMALL, steps=["compact"]))
    assert (status, document["done"]["compact"]["tasks"]) == (0, 1)
    broken: Any = MaintenanceSpec(uri=uri, options=None)  # type: ignore[arg-type]
    status, document = run(spark, broken)
    assert (status, document["error"]) == (1, "AttributeError")


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    """A port, and the tasks of its compaction."""
    port = open_dataset(fill(str(tmp_path / "many.lance"), 40))
    return port, plan_compaction(port, SMALL, set())


def test_what_lance_says_on_an_executor_is_said_here_and_no_task_is_begun_after_it(
    spark: SparkSession, planned: Any
) -> None:
    port, tasks = planned
    gone = [task.fragments[0].files[0].path for task in tasks]
    for name in gone:
        Path(port.uri, "data", name).unlink()
    waiting = deque(tasks)
    with pytest.raises(OSError, match="(?i)not found") as failed:
        list(ExecuteOnExecutors(spark, {})(port, iter(waiting.popleft, None)))
    assert any(name in str(failed.value) for name in gone)
    room = max(2, spark.sparkContext.defaultParallelism)
    assert len(waiting) == len(tasks) - room > 0, "as many as fit are begun, and none after that"


def test_executors_that_fail_in_another_way_are_a_transient_error(
    spark: SparkSession, planned: Any
) -> None:
    port, tasks = planned

    class Task:
        fragments = tasks[0].fragments

        def json(self) -> int:
            return 7  # from_json() on the executor raises TypeError

    with pytest.raises(TransientError, match="executors' logs"):
        list(ExecuteOnExecutors(spark, {})(port, [Task()]))


def test_tasks_are_taken_only_when_there_is_room(spark: SparkSession, planned: Any) -> None:
    port, tasks = planned
    taken: list[int] = []

    def counted() -> Iterator[Any]:
        for number, task in enumerate(tasks):
            taken.append(number)
            yield task

    results = ExecuteOnExecutors(spark, {})(port, counted())
    next(results)
    assert len(taken) == 2, "local[2]"
    assert len(list(results)) + 1 == len(tasks) == len(taken)


def test_closed_iterator_ends_the_running_compaction_tasks(
    spark: SparkSession, planned: Any
) -> None:
    port, tasks = planned
    results = ExecuteOnExecutors(spark, {})(port, tasks)
    next(results)
    results.close()  # type: ignore[attr-defined]
    wait_for("no job", lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), 30)
    assert not [each for each in threading.enumerate() if each.name.startswith("compaction")]


def test_a_version_that_was_cleaned_up_is_lances_error_not_a_lost_executor(
    spark: SparkSession, planned: Any
) -> None:
    port, tasks = planned
    shutil.rmtree(port.uri)
    with pytest.raises(OSError, match="not found"):
        list(ExecuteOnExecutors(spark, {})(port, tasks))


def test_a_store_that_does_not_answer_is_named(spark: SparkSession) -> None:
    nowhere = {
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_access_key_id": "user",
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
        "client_max_retries": "0",
    }
    status, document = run(spark, spec("s3://lake/a.lance", nowhere))
    assert (status, document["error"]) == (1, StorageUnavailableError.__name__)
    assert SECRET not in document["message"]
