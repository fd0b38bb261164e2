"""Drivers in trouble: real processes that die, hang, freeze, fail, or run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.protocol.codec import decode_query, encode_stop, key
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import StopNote
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import new_launch_id, report_location
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.desk.desk import TASK, Desk, kind
from tests.support.processes import end, finish, python, wait_for
from tests.support.sparkstream import spec, write_spec

LONG_AGO = "2026-01-01T00:00:00.000+00:00"
ELSEWHERE = "worker-9"
Driver = subprocess.Popen[str]


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Collect the drivers of a test, and end those that still run."""
    started: list[Driver] = []
    yield started
    for each in started:
        end(each)
        if each.stdout:
            each.stdout.close()


def killed(desk: Desk, step: Failpoint = Failpoint.COMMIT_CHECKED) -> None:
    """Let a driver be killed at a step of its first epoch."""
    desk.scene.add()
    status, output = finish(desk.scene.start("kill", step, 1))
    assert status == -signal.SIGKILL, output


def hanging(desk: Desk, drivers: list[Driver], *, more: bool = True) -> Driver:
    """Start a driver that hangs before it commits its first epoch."""
    if more:
        desk.scene.add()
    planned = Path(desk.checkpoint, "offsets", str(desk.scene.added - 1))
    drivers.append(desk.scene.start("hang", Failpoint.COMMIT_CHECKED, 1))
    wait_for("an epoch to be planned", planned.exists)
    wait_for("its claim", lambda: owner(desk)["pid"] == drivers[-1].pid)
    wait_for("its heartbeat", lambda: pid(desk) == drivers[-1].pid)
    return drivers[-1]


def owner(desk: Desk) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(open_dataset(desk.uri).config[key("owner", "q")])
    return document


def heartbeats(desk: Desk) -> list[Path]:
    """Return the heartbeats of all launches, the newest launch last."""
    return sorted(Path(report_location(str(desk.checkpoint))).glob("*/heartbeat.json"))


def pid(desk: Desk) -> int:
    """Return the pid that the newest heartbeat names while its driver is busy, otherwise 0."""
    try:
        newest = json.loads(heartbeats(desk)[-1].read_text())
    except ValueError:  # it is just being written
        return 0
    return int(newest["driver"]["pid"]) if newest["busySince"] else 0


def moved_away(desk: Desk) -> None:
    """Let the owner's record and its heartbeat name another host."""
    record = owner(desk)
    record |= {"host": ELSEWHERE, "start": "another-boot/1:5"}
    open_dataset(desk.uri).commit(Configure({key("owner", "q"): json.dumps(record)}))
    said = json.loads(heartbeats(desk)[-1].read_text())["driver"]
    say(desk, driver=said | {"host": ELSEWHERE, "start": "another-boot/1:5"})


def say(desk: Desk, **changes: Any) -> None:
    """Change the newest launch's heartbeat, without the checksum that Hadoop keeps beside it."""
    newest = heartbeats(desk)[-1]
    newest.write_text(json.dumps(json.loads(newest.read_text()) | changes))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def ask_to_stop(desk: Desk) -> None:
    """Ask the owner to stop, as somebody did long ago."""
    port = open_dataset(desk.uri)
    known = decode_query(port.config, "q", port.version).owner
    assert known
    port.commit(Configure(encode_stop("q", StopNote(known.token, by="ann", time=LONG_AGO))))


@kind(
    "The driver was killed before a commit",
    Code.DRIVER_GONE,
    ends="start it again",
)
def test_killed_driver(desk: Desk) -> None:
    killed(desk)
    desk.follow(desk.found(), "start the stream")
    desk.expect()


@kind(
    "The driver was killed after a commit that Spark has not logged",
    Code.DRIVER_GONE,
    ends="start it again",
)
def test_killed_after_commit(desk: Desk) -> None:
    killed(desk, Failpoint.COMMIT_LANDED)
    desk.follow(desk.found(), "start the stream")
    desk.expect()


@kind(
    "The driver was killed, and somebody released its query",
    Code.DRIVER_GONE,
    ends="start it again",
)
def test_killed_and_released(desk: Desk) -> None:
    killed(desk)
    assert desk.type(f"lance-stream release {desk.uri} q --by ann --yes").returncode == 0
    found = desk.found()
    assert found["summary"].startswith("Nobody runs query q: released by ann ")
    desk.follow(found, "start the stream")
    desk.expect()


@kind(
    "The driver was killed, and the stream is not to run again",
    Code.DRIVER_GONE,
    ends="`release --for-good`",
)
def test_killed_for_good(desk: Desk) -> None:
    killed(desk)
    desk.follow(desk.found(), "not to run again")
    report = desk.check()
    assert report["worst"] == "info"
    assert report["statuses"][0]["state"] == "stopped"
    desk.expect()


@kind("A new driver died before its claim", Code.DRIVER_GONE, ends="start it again")
def test_died_before_its_claim(desk: Desk) -> None:
    killed(desk, Failpoint.CLAIM_OPENED)
    found = desk.found()
    assert found["summary"].startswith("The newest driver of query q, ")
    desk.follow(found, "start the stream")
    desk.expect()


@kind("A driver that never wrote a report was killed", Code.DRIVER_GONE, ends="start it again")
def test_driver_without_reports(desk: Desk) -> None:
    killed(desk)
    for each in heartbeats(desk):
        each.unlink()
    desk.follow(desk.found(), "start the stream")
    desk.expect()


@kind("The driver was killed on another host", Code.DRIVER_GONE, ends="start it again")
def test_driver_on_another_host(desk: Desk) -> None:
    killed(desk)
    moved_away(desk)
    time.sleep(0.2)
    found = desk.found("--silence", "0.1s")
    assert ELSEWHERE in found["summary"]
    assert found["steps"][-1]["host"] == ELSEWHERE, "only there it is seen to be dead"
    desk.follow(found, "start the stream")
    desk.expect()


@kind(
    "The driver was killed on a host whose clock is months ahead",
    Code.DRIVER_GONE,
    ends="start it again",
)
def test_clock_ahead(desk: Desk) -> None:
    killed(desk)
    moved_away(desk)
    say(desk, time="2099-01-01T00:00:00.000+00:00")
    time.sleep(0.2)
    desk.follow(desk.found("--silence", "0.1s"), "start the stream")
    desk.expect()


@kind("The driver is on another host, and sends nothing", Code.DRIVER_UNSEEN, ends="start it again")
def test_unseen_driver(desk: Desk) -> None:
    killed(desk)
    moved_away(desk)
    for each in heartbeats(desk):
        each.unlink()
    time.sleep(0.2)
    desk.follow(desk.found("--silence", "0.1s"), "start the stream")
    desk.expect()


@kind("A signal has stopped the driver in an epoch", Code.NOT_RESPONDING, ends="`kill -CONT`")
def test_suspended_driver(desk: Desk, drivers: list[Driver]) -> None:
    driver = hanging(desk, drivers)
    driver.send_signal(signal.SIGSTOP)
    wait_for("it to be stopped", lambda: ProcessIdentity.of(driver.pid).suspended())
    found = desk.found()
    assert "(SIGSTOP)" in found["summary"]
    desk.follow(found)
    desk.scene.let_go()
    status, output = finish(driver)
    assert status == 0, output
    desk.expect()


@kind("A signal has stopped an idle driver", Code.NOT_RESPONDING, ends="`kill -CONT`")
def test_suspended_idle_driver(desk: Desk, drivers: list[Driver]) -> None:
    driver = idle(desk, drivers)
    driver.send_signal(signal.SIGSTOP)
    wait_for("it to be stopped", lambda: ProcessIdentity.of(driver.pid).suspended())
    desk.scene.add()
    desk.follow(desk.found())
    wait_for("the new rows", lambda: len(desk.rows()) == desk.scene.added * 40)
    assert desk.type(f"lance-stream stop {desk.uri} q --yes").returncode == 0
    assert finish(driver)[0] == 0
    desk.expect()


@kind("The driver hangs in an epoch", Code.STALLED, ends="`kill -KILL`, start it again")
def test_stalled_driver(desk: Desk, drivers: list[Driver]) -> None:
    hanging(desk, drivers)
    time.sleep(1)
    desk.follow(desk.found("--stall", "0.5s"))
    desk.expect()


@kind("Two drivers of one query run", Code.TWO_DRIVERS, ends="`kill -KILL` of the older")
def test_two_drivers(desk: Desk, drivers: list[Driver]) -> None:
    older = hanging(desk, drivers)
    newer = hanging(desk, drivers, more=False)
    found = desk.found()
    assert found["command"] == f"kill -KILL {older.pid}"
    desk.follow(found)
    assert older.wait(10) == -signal.SIGKILL
    desk.scene.let_go()
    status, output = finish(newer)
    assert status == 0, output
    desk.expect()


@kind(
    "The driver does not obey a stop request",
    Code.STOP_PENDING,
    ends="`kill -KILL`, `release --for-good`",
)
def test_stop_not_obeyed(desk: Desk, drivers: list[Driver]) -> None:
    hanging(desk, drivers)
    ask_to_stop(desk)
    desk.follow(desk.found())
    assert desk.check()["statuses"][0]["state"] == "stopped"
    desk.expect()


@kind(
    "The driver was asked to stop, and killed before it released",
    Code.DRIVER_GONE,
    ends="`release --for-good`",
)
def test_killed_after_a_stop_request(desk: Desk, drivers: list[Driver]) -> None:
    driver = hanging(desk, drivers)
    ask_to_stop(desk)
    driver.kill()
    driver.wait()
    found = desk.found()
    assert found["severity"] == "warning", "nothing is to run"
    desk.follow(found, "not to run again")
    desk.expect()


@kind("The stream's SQL names a column that is not there", Code.QUERY_FAILED, ends="correct it")
def test_wrong_sql(desk: Desk) -> None:
    desk.scene.add()
    failed(desk, sql="SELECT nope FROM source")
    found = desk.found()
    assert "`nope`" in found["summary"]
    desk.follow(found, by_hand={"Correct": lambda: None})
    desk.expect()


@kind("A user's function raises", Code.QUERY_FAILED, ends="correct the line, start it again")
def test_users_function(desk: Desk) -> None:
    desk.scene.add()
    failed(desk, source=None, dataframe=f"{__name__}:broken")
    found = desk.found()
    line = broken.__code__.co_firstlineno + 2
    where = f"{__file__}:{line} in broken"
    assert "ValueError: no price" in found["summary"]
    assert found["steps"][0]["text"] == f"Correct {where}."
    desk.follow(found, by_hand={"Correct": lambda: None})
    desk.expect()


@kind("The store did not answer in an epoch", Code.QUERY_FAILED, ends="start it again")
def test_transient_failure(desk: Desk) -> None:
    def unavailable(step: Failpoint) -> None:
        raise StorageUnavailableError("the store did not answer")

    desk.scene.add()
    failed(desk, on_step=unavailable)
    found = desk.found()
    assert found["cause"].startswith("Transient, by the kind of the error")
    assert len(found["steps"]) == 1
    desk.follow(found)
    desk.expect()


def broken(spark: object, arguments: object) -> object:
    """Fail as a user's function does."""
    raise ValueError("no price")


def failed(desk: Desk, *, on_step: Any = None, **changes: Any) -> None:
    """Run one launch in this process, which fails."""
    order = spec(desk.scene.stream, new_launch_id(), launchedBy=TASK, **changes)
    order = {name: value for name, value in order.items() if value is not None}
    known = JobSpec.parse(order)
    sink = LanceSink(known.sink, launch_id=known.launch_id, on_step=on_step or (lambda step: None))
    assert run(desk.spark, known, sink).error


def idle(desk: Desk, drivers: list[Driver]) -> Driver:
    """Start a driver that reads what there is, and then waits for more."""
    desk.scene.add()
    launch_id = new_launch_id()
    order = spec(desk.scene.stream, launch_id, trigger="1 second")
    path = write_spec(desk.scene.stream.root / f"{launch_id}.json", order)
    words = (str(path), "hang", Failpoint.RELEASE_DONE.value, "99")
    drivers.append(python("-m", "tests.support.recovery_driver", *words))
    wait_for("its rows", lambda: len(desk.rows()) == desk.scene.added * 40)
    wait_for("an idle heartbeat", lambda: '"busySince": null' in heartbeats(desk)[-1].read_text())
    assert os.path.exists(desk.uri)
    return drivers[-1]
