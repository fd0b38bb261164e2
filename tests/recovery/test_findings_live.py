"""Real drivers that live and hang: what a check says at each moment of a takeover."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from subprocess import Popen
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.protocol.codec import decode_query, encode_stop
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import StopNote
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, report_location
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.processes import end, finish, wait_for
from tests.support.recovery import Scene, codes, expect_clean, finding

PATIENT = Tolerance(stall=3600, silence=3600)
HURRIED = Tolerance(stall=0.5, silence=3600)
ANXIOUS = Tolerance(stall=3600, silence=0.1)
LONG_AGO = "2026-01-01T00:00:00.000+00:00"

Life = dict[str, CheckReport]


@pytest.fixture(scope="module")
def life(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Let a driver hang, ask it to stop, start another beside it, kill the first.

    Returns what was reported at each moment.
    """
    scene = Scene(spark, tmp_path_factory.mktemp("live") / "stream", 3)
    drivers: list[Popen[str]] = []
    try:
        yield dict(moments(scene, drivers))
    finally:
        for driver in drivers:
            end(driver)
            if driver.stdout:
                driver.stdout.close()


def moments(scene: Scene, drivers: list[Popen[str]]) -> Iterator[tuple[str, CheckReport]]:
    drivers.append(scene.start("hang", Failpoint.COMMIT_CHECKED, 2))
    wait_for("epoch 1 to be planned", (scene.checkpoint / "offsets/1").exists)
    wait_for("a heartbeat that tells of epoch 0", lambda: heard(scene) == [0])
    yield "in flight", scene.check(tolerance=PATIENT)
    time.sleep(HURRIED.stall)
    yield "stalled", scene.check(tolerance=HURRIED)
    with patch("socket.gethostname", return_value="another-host"):
        away = scene.check(checkpoint_location="wasb://box/checkpoint", tolerance=ANXIOUS)
    yield "from another host", away
    drivers[0].send_signal(signal.SIGSTOP)
    wait_for("the driver to be stopped", lambda: ProcessIdentity.of(drivers[0].pid).suspended())
    yield "suspended", (report := scene.check(tolerance=PATIENT))
    subprocess.run(finding(report, Code.NOT_RESPONDING).command, shell=True, check=True)
    wait_for("the driver to continue", lambda: not codes(scene.check(tolerance=PATIENT)))
    asked = encode_stop("q", StopNote(1, by="ann", time=LONG_AGO))
    open_dataset(scene.uri).commit(Configure(asked))
    yield "asked to stop", scene.check(tolerance=PATIENT)
    drivers.append(scene.start("hang", Failpoint.COMMIT_CHECKED, 1))
    wait_for("the second driver's claim", lambda: token(scene) == 2)
    yield "two", scene.check(tolerance=PATIENT)
    end(drivers[0])
    wait_for("a heartbeat of the second driver", lambda: len(heard(scene)) == 2)
    yield "taking over", scene.check(tolerance=PATIENT)
    scene.let_go()
    status, output = finish(drivers[1])
    assert status == 0, output
    scene.expect_exactly_once()
    yield "taken over", scene.check(tolerance=PATIENT)


def token(scene: Scene) -> int:
    port = open_dataset(scene.uri)
    owner = decode_query(port.config, "q", port.version).owner
    return owner.token if owner else 0


def heard(scene: Scene) -> list[int | None]:
    """Return the newest epoch of each launch whose heartbeat says that it is at work."""
    files = open_files(report_location(str(scene.checkpoint)))
    beats = [read_heartbeat(files, launch_id) for launch_id in files.names("")]
    return [beat["sink"]["epoch"] for beat in beats if beat and beat["busySince"]]


def test_check_reports_an_epoch_in_flight_as_information(life: Life) -> None:
    report = life["in flight"]
    expect_clean(report)
    flight = finding(report, Code.EPOCH_IN_FLIGHT)
    assert (flight.evidence["planned"], flight.evidence["watermark"]) == (1, 0)
    assert finding(report, Code.WATERMARK_BEHIND).severity is Severity.INFO
    (status,) = report.statuses
    assert (status.state, status.in_flight, status.token) == ("running", 1, 1)
    assert status.launched_by == "dag:stream"
    assert status.sentence.startswith("running: watermark 0, committed ")


def test_check_reports_a_stopped_process_and_the_command_that_continues_it(life: Life) -> None:
    report = life["suspended"]
    assert codes(report) == [Code.NOT_RESPONDING]
    found = finding(report, Code.NOT_RESPONDING)
    assert found.command == f"kill -CONT {found.evidence['driver'].rpartition(':')[2]}"
    (status,) = report.statuses
    assert status.state == "not responding"
    assert status.processed_rows_per_second is None
    assert "(SIGSTOP) has stopped its process" in status.sentence


def test_check_reports_stalled_when_an_epoch_is_in_flight_too_long(life: Life) -> None:
    report = life["stalled"]
    assert codes(report) == [Code.STALLED]
    stalled = finding(report, Code.STALLED)
    assert (stalled.evidence["planned"], stalled.evidence["watermark"]) == (1, 0)
    assert stalled.command == f"kill -KILL {stalled.evidence['driver'].rpartition(':')[2]}"
    assert report.statuses[0].state == "stalled"
    assert ": epoch 1 " in report.statuses[0].sentence


def test_check_reports_driver_unseen_when_it_runs_on_another_host(life: Life) -> None:
    report = life["from another host"]
    assert codes(report) == [
        Code.DRIVER_UNSEEN,
        Code.WATERMARK_BEHIND,
        Code.CHECKPOINT_UNREADABLE,
    ]
    unseen = finding(report, Code.DRIVER_UNSEEN)
    assert unseen.evidence["alive"] is None
    assert "; epoch 0 was committed " in unseen.summary
    assert report.statuses[0].state == "unknown"


def test_a_driver_that_does_not_stop(life: Life) -> None:
    report = life["asked to stop"]
    assert codes(report) == [Code.STOP_PENDING]
    pending = finding(report, Code.STOP_PENDING)
    assert (pending.evidence["token"], pending.evidence["by"]) == (1, "ann")
    assert "Query q " in pending.summary
    assert "by ann " in pending.summary


def test_two_drivers_of_one_query(life: Life) -> None:
    report = life["two"]
    assert codes(report) == [Code.TWO_DRIVERS, Code.STOP_PENDING]
    two = finding(report, Code.TWO_DRIVERS)
    newer, older = two.evidence["drivers"]
    assert (older["token"], newer["token"]) == (1, 2)
    assert two.evidence["keep"] == newer
    assert two.command == f"kill -KILL {older['driver'].rsplit(':', 1)[1]}"


def test_the_next_driver_has_taken_over(life: Life) -> None:
    report = life["taking over"]
    expect_clean(report)
    (status,) = report.statuses
    assert (status.state, status.token, status.watermark) == ("running", 2, 0)


def test_check_is_clean_after_a_takeover(life: Life) -> None:
    report = life["taken over"]
    expect_clean(report)
    assert report.statuses[0].state == "finished"
    assert report.statuses[0].token == 2
