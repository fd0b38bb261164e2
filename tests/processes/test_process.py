from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_lance.supervision import process as module
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.processes import wait_for

Spawn = Callable[..., subprocess.Popen[bytes]]
SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started = []

    def start(code: str = SLEEP, **further: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", code], **further))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_running_process_is_alive(spawn: Spawn) -> None:
    identity = ProcessIdentity.of(spawn().pid)
    assert identity.here
    assert identity.alive() is True


def test_one_process_is_always_the_same_and_two_are_not(spawn: Spawn) -> None:
    one, other = spawn(), spawn()
    assert ProcessIdentity.of(one.pid) == ProcessIdentity.of(one.pid)
    assert ProcessIdentity.of(one.pid) != ProcessIdentity.of(other.pid)


def test_process_that_has_ended_has_no_identity(spawn: Spawn) -> None:
    process = spawn("pass")
    process.wait()
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(process.pid)


def test_a_process_that_ended_is_not_alive(spawn: Spawn) -> None:
    process = spawn()
    identity = ProcessIdentity.of(process.pid)
    process.kill()
    process.wait()
    assert identity.alive() is False
    assert not identity.kill()
    assert not identity.terminate()


def test_a_zombie_is_not_alive(spawn: Spawn) -> None:
    process = spawn()
    identity = ProcessIdentity.of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessIdentity.of(process.pid) == identity, "it can still be identified"
    assert identity.alive() is False
    assert not identity.kill()


def test_another_process_under_the_same_pid_is_not_it(spawn: Spawn) -> None:
    process = spawn()
    identity = ProcessIdentity.of(process.pid)
    boot, ticks = identity.start.rsplit(":", 1)
    earlier = replace(identity, start=f"{boot}:{int(ticks) - 1}")
    assert earlier.alive() is False
    assert not earlier.kill()
    assert not earlier.terminate()
    assert process.poll() is None


def test_a_process_of_another_host_is_unknown_and_left_alone(spawn: Spawn) -> None:
    process = spawn()
    elsewhere = replace(ProcessIdentity.of(process.pid), host="elsewhere.example")
    assert not elsewhere.here
    assert elsewhere.alive() is None
    assert not elsewhere.kill()
    assert process.poll() is None


def test_a_process_of_an_earlier_boot_is_gone(spawn: Spawn) -> None:
    process = spawn()
    identity = ProcessIdentity.of(process.pid)
    boot = identity.start.split("/", 1)[0]
    before = replace(identity, start=identity.start.replace(boot, "0" * len(boot)))
    assert not before.here
    assert before.alive() is False
    assert not before.kill()
    assert process.poll() is None


def test_a_process_of_another_container_is_unknown(spawn: Spawn) -> None:
    process = spawn()
    identity = ProcessIdentity.of(process.pid)
    namespace = os.readlink("/proc/self/ns/pid")[5:-1]
    other = replace(identity, start=identity.start.replace(f"/{namespace}:", "/1:"))
    assert other != identity
    assert not other.here
    assert other.alive() is None
    assert not other.kill()
    assert process.poll() is None


def test_without_proc_nothing_is_known(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = spawn()
    known = ProcessIdentity.of(process.pid)
    monkeypatch.setattr(module, "_PROC", tmp_path)
    identity = ProcessIdentity.of(process.pid)
    assert identity.start == ""
    for one in (identity, known):
        assert one.alive() is None
        assert not one.kill()
    assert process.poll() is None
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(2**22 + 1)


def test_a_process_that_is_hidden_is_unknown(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = ProcessIdentity.of(spawn().pid)
    monkeypatch.setattr(module, "_look", lambda pid: None)
    assert identity.alive() is None


def test_a_name_may_hold_anything(spawn: Spawn) -> None:
    name = ") Z 1 (\\n"
    code = f"open('/proc/self/comm', 'w').write('{name}'); print(flush=True); {SLEEP}"
    process = spawn(code, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    assert b") Z 1 (" in Path(f"/proc/{process.pid}/stat").read_bytes()
    assert ProcessIdentity.of(process.pid).alive() is True


def test_kill_takes_the_whole_group(spawn: Spawn) -> None:
    code = (
        "import subprocess, sys, time;"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]);"
        "print(child.pid, flush=True); time.sleep(300)"
    )
    process = spawn(code, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout
    child = ProcessIdentity.of(int(process.stdout.readline()))
    assert ProcessIdentity.of(process.pid).kill()
    assert process.wait() == -signal.SIGKILL
    wait_for("the child's end", lambda: child.alive() is False, 10)


def test_kill_spares_the_callers_group(spawn: Spawn) -> None:
    process, neighbour = spawn(), spawn()
    assert os.getpgid(process.pid) == os.getpgrp()
    assert ProcessIdentity.of(process.pid).kill()
    assert process.wait() == -signal.SIGKILL
    assert neighbour.poll() is None


def test_kill_spares_the_shell_and_the_siblings_of_one_that_leads_no_group() -> None:
    """As where a driver is started from a script, from cron or from a container's entrypoint."""
    script = "sleep 300 & echo $!; sleep 300 & echo $!; wait"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        assert shell.stdout
        driver, sibling = (ProcessIdentity.of(int(shell.stdout.readline())) for _ in range(2))
        try:
            assert driver.kill()
            wait_for("its end", lambda: driver.alive() is False, 10)
            assert sibling.alive() is True
            assert shell.poll() is None
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_terminate_asks_the_process_alone(spawn: Spawn) -> None:
    code = (
        "import signal, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]);"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7 if child.poll() is None else 8));"
        "print(child.pid, flush=True);"
        "signal.pause()"
    )
    process = spawn(code, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout
    child = ProcessIdentity.of(int(process.stdout.readline()))
    assert ProcessIdentity.of(process.pid).terminate()
    assert process.wait() == 7
    assert child.alive() is True
    assert child.kill()


def test_it_travels_as_json(spawn: Spawn) -> None:
    identity = ProcessIdentity.of(spawn().pid)
    document = json.loads(json.dumps(identity.to_json()))
    assert document.keys() == {"host", "pid", "start"}
    assert ProcessIdentity.read_json({**document, "newer": 1}) == identity
    with pytest.raises(ValueError, match="start"):
        ProcessIdentity.read_json({"host": "h", "pid": 1})
