"""A newcomer waits for the driver that it fenced: until it is gone, has spoken, or is silent."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Owner, OwnerState, utc_now
from airflow_provider_lance.spark import start as handover
from airflow_provider_lance.spark.start import wait_for_end
from airflow_provider_lance.supervision.driver_reports import write_heartbeat
from airflow_provider_lance.supervision.process import ProcessIdentity

LAUNCH = "20261120T140000000Z-1a2b3c4d"
ELSEWHERE = ProcessIdentity("worker-9", 4711, "another-boot/1:1")


def owner(process: ProcessIdentity) -> Owner:
    driver = Driver(
        "run",
        "id",
        "/checkpoint",
        host=process.host,
        pid=process.pid,
        start=process.start,
        launch_id=LAUNCH,
    )
    return Owner(1, OwnerState.ACTIVE, 0, driver, utc_now())


def waiting(of: ProcessIdentity, folder: Path) -> threading.Thread:
    thread = threading.Thread(target=wait_for_end, args=(owner(of), open_files(str(folder))))
    thread.start()
    return thread


def test_it_waits_for_a_live_driver_and_no_longer(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_PATIENCE_SECONDS", 600.0)
    thread = waiting(ProcessIdentity.of(process.pid), tmp_path)
    thread.join(1)
    assert thread.is_alive(), "the driver is"
    process.kill()
    process.wait()
    thread.join(60)
    assert not thread.is_alive()


def test_its_patience_ends(
    process: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(handover, "_PATIENCE_SECONDS", 0.5)
    waiting(ProcessIdentity.of(process.pid), tmp_path).join(60)
    assert process.poll() is None
    assert f"pid={process.pid}" in caplog.records[-1].getMessage()


def test_a_driver_out_of_sight_is_waited_for_while_it_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_PATIENCE_SECONDS", 600.0)
    monkeypatch.setattr(handover, "_SILENCE_SECONDS", 600.0)
    write_heartbeat(open_files(str(tmp_path)), LAUNCH, {"time": "1"})
    thread = waiting(ELSEWHERE, tmp_path)
    thread.join(0.5)
    assert thread.is_alive()
    monkeypatch.setattr(handover, "_SILENCE_SECONDS", 0.0)
    thread.join(60)
    assert not thread.is_alive(), "it is silent"


@pytest.mark.parametrize("of", [ELSEWHERE, ProcessIdentity.of(os.getpid())])
def test_fencing_wait_ends_at_once_for_an_unreachable_process_and_for_this_one(
    of: ProcessIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_PATIENCE_SECONDS", 600.0)
    thread = waiting(of, tmp_path)
    thread.join(60)
    assert not thread.is_alive()
