"""The application under the real spark-submit, with an interpreter that has no Airflow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.spark.job import main, run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    forget_old_launches,
    read_heartbeat,
    read_summary,
    report_location,
)
from tests.support.processes import end, finish, wait_for
from tests.support.s3 import SECRET, s3_server
from tests.support.sparkstream import Stream, orders, spec, write_spec
from tests.support.submit import Submitter, command_lines


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]
    for n in range(3):
        stream.add(orders(n * 20, 20))
    return stream


def summary_of(stream: Stream, launch_id: str = "launch") -> Summary:
    summary = read_summary(open_files(report_location(stream.checkpoint)), launch_id)
    assert summary is not None
    return summary


@pytest.mark.slow
def test_a_bounded_run_on_a_cluster_without_airflow_ends_with_its_summary(
    submit: Submitter, stream: Stream, tmp_path: Path
) -> None:
    document = spec(
        stream,
        sql="SELECT id, upper(grp) AS grp, amount FROM source WHERE id < 50",
        sink={"smallEpochRows": 0},
    )
    # Executors are processes of their own here: what they import comes from the zip.
    cluster = ("--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m")
    status, output = submit.run(write_spec(tmp_path / "spec.json", document), *cluster)
    assert status == 0, output
    summary = summary_of(stream)
    assert json.dumps(summary.to_json()) in output
    assert (summary.reason, summary.error) == (EndReason.FINISHED, None)
    assert (summary.epochs, summary.rows) == (3, 50)
    assert (summary.first_epoch, summary.last_epoch, summary.watermark) == (0, 2, 2)
    assert summary.version == stream.dataset.version
    assert summary.manifest_updates == stream.dataset.version - 1
    assert summary.released
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(50))
    heartbeat = read_heartbeat(open_files(report_location(stream.checkpoint)), "launch")
    assert heartbeat is not None
    assert heartbeat["state"] == "ended"
    assert heartbeat["sink"]["epoch"] == 2
    assert {"batchId", "durationMs", "sources", "stateOperators"} <= set(heartbeat["progress"])


def test_a_users_function_is_the_source_and_a_stop_request_ends_an_idle_query(
    submit: Submitter, stream: Stream, tmp_path: Path
) -> None:
    module = tmp_path / "my_streams.py"
    module.write_text(
        "def orders(spark, arguments):\n"
        "    reader = spark.readStream.schema(arguments['ddl']).option('maxFilesPerTrigger', 1)\n"
        "    return reader.parquet(arguments['path']).where('id >= 10')\n"
    )
    document = spec(
        stream,
        dataframe="my_streams:orders",
        arguments={"path": str(stream.source), "ddl": stream.ddl},
        trigger="1 second",
    )
    del document["source"]
    path = write_spec(tmp_path / "spec.json", document)
    process = submit.shipping(module).start(path)
    try:
        wait_for("three epochs", lambda: _watermark(stream) == 2)
        assert request_stop(open_dataset(stream.uri), "q") == 1
        status, output = finish(process)
    finally:
        end(process)
    assert status == 0, output
    summary = summary_of(stream)
    assert (summary.reason, summary.epochs, summary.released) == (EndReason.STOPPED, 3, True)
    port = open_dataset(stream.uri)
    state = decode_query(port.config, "q", port.version)
    assert state.owner is not None
    assert (state.owner.state, state.stop_token) == (OwnerState.RELEASED, None)
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(10, 60))


def _watermark(stream: Stream) -> int:
    try:
        return exact_watermark(open_dataset(stream.uri), "q").epoch
    except DatasetNotFoundError:  # its folder is there a moment before its first version
        return -1


def test_a_terminal_end_is_named_in_the_summary(
    submit: Submitter, stream: Stream, tmp_path: Path
) -> None:
    document = spec(stream, sink={"createIfMissing": False})
    status, output = submit.run(write_spec(tmp_path / "spec.json", document))
    assert status == 1, output
    summary = summary_of(stream)
    assert (summary.reason, summary.error) == (EndReason.FAILED, "DatasetNotFoundError")
    assert stream.uri in str(summary.message)
    assert not Path(stream.checkpoint).exists()


@pytest.mark.parametrize("arguments", [[], ["spec.json", "--keep"], ["a.json", "--remove", "b"]])
def test_other_arguments_are_refused(arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_sql_that_cannot_be_read_is_a_spec_error(spark: SparkSession, stream: Stream) -> None:
    summary = run(spark, JobSpec.parse(spec(stream, sql="SELECT nowhere FROM source")))
    assert (summary.reason, summary.error) == (EndReason.FAILED, "SpecError")
    assert "nowhere" in str(summary.message)


def test_a_checkpoint_that_cannot_be_reached_is_named_too(
    spark: SparkSession, stream: Stream
) -> None:
    document = spec(stream, sink={"checkpointLocation": "nosuch://store/checkpoint"})
    summary = run(spark, JobSpec.parse(document))
    assert (summary.reason, summary.error) == (EndReason.FAILED, "SpecError")


def test_a_query_that_still_runs_is_ended_before_it_is_released(
    spark: SparkSession, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: DriverSession, *, poll: bool = False) -> bool:
        raise RuntimeError("not one of ours")

    monkeypatch.setattr(DriverSession, "stop_requested", broken)
    job = JobSpec.parse(spec(stream, trigger="1 second"))
    summary = run(spark, job)
    assert (summary.reason, summary.error) == (EndReason.FAILED, "RuntimeError")
    assert not spark.streams.active
    assert summary.released or summary.epochs == 0
    monkeypatch.undo()
    sink = stream.sink()
    query = sink.start(job_dataframe(spark, job), availableNow=True)
    query.awaitTermination()
    sink.release()
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(60))


def job_dataframe(spark: SparkSession, job: JobSpec) -> DataFrame:
    assert job.source is not None
    reader = spark.readStream.format(job.source.format).options(**job.source.options)
    return reader.schema(str(job.source.schema)).load()


# ----------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Start an S3 server with a bucket ``lake``; return the storage options that reach it."""
    with s3_server("lake") as server:
        yield server.options()


@pytest.mark.slow
def test_secrets_reach_driver_and_executors_and_no_command_line_or_log(
    submit: Submitter, stream: Stream, s3: dict[str, str], tmp_path: Path
) -> None:
    uri = "s3://lake/orders.lance"
    document: dict[str, Any] = spec(
        stream,
        trigger="1 second",
        # Written by the executors, so that they need the secret, too.
        sink={"uri": uri, "storageOptions": s3, "smallEpochRows": 0},
    )
    path = write_spec(tmp_path / "spec.json", document)
    process = submit.start(path, "--conf", "spark.log.level=INFO", "--verbose")
    try:
        wait_for("three epochs", lambda: _s3_watermark(uri, s3) == 2)
        lines = command_lines(process.pid)
        assert len(lines) > 2, "the JVM, the driver and Python workers"
        assert not any(SECRET in line for line in lines)
        request_stop(open_dataset(uri, s3), "q")
        status, output = finish(process)
    finally:
        end(process)
    assert status == 0, output
    assert SECRET not in output
    assert "Epoch done" in output
    reports = Path(report_location(stream.checkpoint))
    assert not any(SECRET in file.read_text() for file in reports.rglob("*.json"))
    port = open_dataset(uri, s3)
    assert SECRET not in json.dumps(dict(port.config))
    ids = port.dataset.to_table().column("id").to_pylist()
    assert Counter(ids) == Counter(range(60))


def _s3_watermark(uri: str, options: dict[str, str]) -> int:
    from airflow_provider_lance.exceptions import DatasetNotFoundError

    try:
        return exact_watermark(open_dataset(uri, options), "q").epoch
    except DatasetNotFoundError:
        return -1


def test_heartbeat_and_summary_can_lie_in_s3(s3: dict[str, str]) -> None:
    files = open_files("s3a://lake/checkpoint.lance", s3)
    assert files.read("nothing.json") is None
    assert files.names("nothing") == []
    files.write("launch/heartbeat.json", b'{"state": "running"}')
    assert read_heartbeat(files, "launch") == {"state": "running"}
    assert files.names("") == ["launch"]


def test_only_old_launches_are_forgotten_and_nothing_else(tmp_path: Path) -> None:
    files = open_files(str(tmp_path))
    launches = [f"202601{day:02}T000000000Z-0123abcd" for day in range(1, 6)]
    for name in (*launches, "_versions", "my-own-launch"):
        files.write(f"{name}/summary.json", b"{}")
    forget_old_launches(files, keep=2)
    assert files.names("") == [*launches[-2:], "_versions", "my-own-launch"]
