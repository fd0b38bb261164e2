"""How a driver ends: stopped by name, fenced while idle, or hung in the middle of an epoch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, encode_stop
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, OwnerState, QueryState, StopNote
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.spark import driver_loop as supervision
from airflow_provider_lance.spark import heartbeat as heartbeats
from airflow_provider_lance.spark.heartbeat import Activity
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    read_heartbeat,
    read_summary,
    report_location,
)
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.processes import end, finish, wait_for
from tests.support.sparkstream import Stream, orders, spec, write_spec
from tests.support.submit import Submitter, command_lines

LAUNCHED_BY = "flights/stream/manual__1/-1#1"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    stream = Stream(None, tmp_path)  # type: ignore[arg-type]
    for n in range(2):
        stream.add(orders(n * 20, 20))
    return stream


def state_of(stream: Stream) -> QueryState:
    port = open_dataset(stream.uri)
    return decode_query(port.config, "q", port.version)


def watermark(stream: Stream) -> int:
    try:
        return exact_watermark(open_dataset(stream.uri), "q").epoch
    except DatasetNotFoundError:
        return -1


def beat(stream: Stream) -> dict[str, Any]:
    return read_heartbeat(open_files(report_location(stream.checkpoint)), "launch") or {}


class Job:
    """The job in a thread of this process, polling without a pause."""

    def __init__(self, spark: SparkSession, document: dict[str, Any], **sink: Any) -> None:
        job = JobSpec.parse(document)
        self._summary: list[Summary] = []
        launch = {"launch_id": job.launch_id, "launched_by": job.launched_by}
        self.thread = threading.Thread(
            target=lambda: self._summary.append(
                run(spark, job, LanceSink(job.sink, **launch, **sink))
            )
        )
        self.thread.start()

    def end(self) -> Summary:
        wait_for("the job's end", lambda: not self.thread.is_alive(), 60)
        return self._summary[0]


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make idle drivers poll at each look and beat at each poll; return a list of the polls."""
    monkeypatch.setattr(supervision, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(heartbeats, "_QUIET_SECONDS", 0.0)
    seen: list[bool] = []
    asks = DriverSession.stop_requested

    def counted(self: DriverSession, *, poll: bool = False) -> StopNote | None:
        answer = asks(self, poll=poll)
        seen.append(poll)
        return answer

    monkeypatch.setattr(DriverSession, "stop_requested", counted)
    return seen


@pytest.fixture
def start(spark: SparkSession, stream: Stream) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(**sink: Any) -> Job:
        document = spec(stream, trigger="1 second", launchedBy=LAUNCHED_BY, stopGrace=1)
        jobs.append(Job(spark, document, **sink))
        return jobs[-1]

    yield make
    for query in spark.streams.active:
        query.stop()
    for job in jobs:
        job.thread.join(30)


def test_a_stop_that_names_another_launch_is_not_obeyed_and_one_that_names_this_is(
    stream: Stream, start: Callable[..., Job], polls: list[bool]
) -> None:
    job = start()
    wait_for("two epochs", lambda: watermark(stream) == 1)
    driver = state_of(stream).owner.driver  # type: ignore[union-attr]
    assert (driver.launch_id, driver.launched_by) == ("launch", LAUNCHED_BY)
    assert ProcessIdentity(driver.host, driver.pid, driver.start).alive()
    port = open_dataset(stream.uri)
    port.commit(Configure(encode_stop("q", StopNote(1, "another", "somebody"))))
    before = len(polls)
    wait_for("three polls of an idle driver", lambda: sum(polls[before:]) >= 3)
    assert request_stop(port, "q", launch_id="another") == 2, "the token that it would get"
    assert job.thread.is_alive()
    assert request_stop(port, "q", launch_id="launch", by="on-call") == 1
    summary = job.end()
    assert (summary.reason, summary.released) == (EndReason.STOPPED, True)
    assert summary.stopped_by == "on-call"
    state = state_of(stream)
    assert state.owner is not None
    assert (state.owner.state, state.stop_token) == (OwnerState.RELEASED, None)
    assert not [name for name in open_dataset(stream.uri).config if ".stop" in name]


def test_an_idle_driver_is_not_busy_and_ends_when_a_newer_owner_holds_the_query(
    stream: Stream, start: Callable[..., Job], polls: list[bool]
) -> None:
    job = start()
    wait_for("two epochs", lambda: watermark(stream) == 1)
    wait_for("nothing to do", lambda: beat(stream).get("busySince", "") is None)
    told = beat(stream)["driver"]
    assert told["launchedBy"] == LAUNCHED_BY
    assert ProcessIdentity(told["host"], told["pid"], told["start"]).alive()
    newer = take_over(stream)
    summary = job.end()
    assert (summary.reason, summary.error) == (EndReason.FAILED, "FencedError")
    assert re.search("token 2 .* newer .* node-7", str(summary.message))
    assert (summary.released, summary.stopped_by) == (False, None)
    assert state_of(stream).owner == newer.owner


def take_over(stream: Stream) -> DriverSession:
    checkpoint = read_checkpoint(stream.checkpoint, open_files(stream.checkpoint))
    newer = DriverSession(open_dataset(stream.uri), "q", checkpoint)
    newer.prepare()
    newer.identify(Driver("newer", str(checkpoint.id), stream.checkpoint, host="node-7"))
    newer.claim(2)
    return newer


class HangInSecondEpoch:
    """Holds the driver's own code until told to go on; nothing interrupts it."""

    def __init__(self) -> None:
        self.hung, self.go_on = threading.Event(), threading.Event()
        self._commits = 0

    def __call__(self, step: Failpoint) -> None:
        self._commits += step is Failpoint.COMMIT_CHECKED
        if self._commits == 2:
            self.hung.set()
            self.go_on.wait(60)


def test_an_epoch_that_hangs_in_the_driver_is_told_and_given_up_after_the_grace(
    stream: Stream, start: Callable[..., Job], polls: list[bool]
) -> None:
    hang = HangInSecondEpoch()
    try:
        job = start(on_step=hang)
        assert hang.hung.wait(60)
        told: dict[str, set[str]] = {}

        def three_beats_tell_one_moment() -> bool:
            seen = beat(stream)
            if seen.get("busySince"):
                told.setdefault(seen["busySince"], set()).add(seen["time"])
            return any(len(times) >= 3 for times in told.values())

        wait_for("three beats that tell since when it hangs", three_beats_tell_one_moment)
        assert request_stop(open_dataset(stream.uri), "q", by="on-call") == 1
        summary = job.end()
    finally:
        hang.go_on.set()
    assert (summary.reason, summary.released) == (EndReason.STOPPED, False)
    assert re.search("epoch 1 .* within 1 s", str(summary.message))
    assert (summary.stopped_by, summary.error) == ("on-call", None)
    assert read_summary(open_files(report_location(stream.checkpoint)), "launch") == summary


def test_a_fenced_driver_does_not_wait_for_its_epoch_that_hangs(
    stream: Stream, start: Callable[..., Job], polls: list[bool]
) -> None:
    hang = HangInSecondEpoch()
    try:
        job = start(on_step=hang)
        assert hang.hung.wait(60)
        take_over(stream)
        summary = job.end()
    finally:
        hang.go_on.set()
    assert (summary.reason, summary.error) == (EndReason.FAILED, "FencedError")
    assert not summary.released


def test_a_query_that_looks_for_data_without_a_pause_is_never_busy_for_long(
    spark: SparkSession, stream: Stream
) -> None:
    stream.spark = spark
    stream.create()
    query = stream.sink().start(stream.read(), processingTime="0 seconds")
    try:
        wait_for("two epochs", lambda: watermark(stream) == 1)
        activity = Activity()
        found: set[str | None] = set()

        def busy_anew() -> bool:
            activity.look(query)
            found.add(activity.since)
            return len(found) >= 4

        # Were a trigger not told from the next, one moment would stand as long as both are seen.
        wait_for("a look between two triggers, and three that begin anew", busy_anew)
        assert None in found
    finally:
        query.stop()


BLOCKING = """
import os, time

def orders(spark, arguments):
    held = arguments["held"]

    def block(batches):
        for batch in batches:
            while min(batch.column("id").to_pylist()) >= 20 and os.path.exists(held):
                time.sleep(0.05)
            yield batch

    reader = spark.readStream.schema(arguments["ddl"]).option("maxFilesPerTrigger", 1)
    return reader.parquet(arguments["path"]).mapInArrow(block, arguments["ddl"])
"""


def test_an_epoch_that_hangs_on_an_executor_ends_with_the_process_and_all_of_it(
    submit: Submitter, stream: Stream, tmp_path: Path
) -> None:
    module, held = tmp_path / "my_streams.py", tmp_path / "held"
    module.write_text(BLOCKING)
    held.touch()
    document = spec(
        stream,
        dataframe="my_streams:orders",
        arguments={"path": str(stream.source), "ddl": stream.ddl, "held": str(held)},
        trigger="1 second",
        stopGrace=1,
    )
    del document["source"]
    path = write_spec(tmp_path / "spec.json", document)
    process = submit.shipping(module).start_here(path, "--remove")
    try:
        wait_for("the first epoch", lambda: watermark(stream) == 0)
        wait_for("a busy heartbeat", lambda: bool(beat(stream).get("busySince")))
        assert not path.exists()
        assert request_stop(open_dataset(stream.uri), "q", launch_id="launch") == 1
        wait_for("spark-submit's end", lambda: process.poll() is not None, 60)
        wait_for("the end of Java and Python", lambda: not command_lines(process.pid), 30)
        status, output = finish(process)
    finally:
        end(process)
    assert status == 1, output
    assert re.search("epoch 1 .* within 1 s", output)
    summary = read_summary(open_files(report_location(stream.checkpoint)), "launch")
    assert summary is not None
    assert (summary.reason, summary.released, summary.epochs) == (EndReason.STOPPED, False, 1)
    owner = state_of(stream).owner
    assert owner is not None
    assert owner.state is OwnerState.ACTIVE
    assert ProcessIdentity(owner.driver.host, owner.driver.pid, owner.driver.start).alive() is False
