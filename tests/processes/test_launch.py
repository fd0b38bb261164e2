from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_lance.drivers import local as launch_module
from airflow_provider_lance.drivers import run_directory as folder_module
from airflow_provider_lance.drivers.local import LocalDriver, find
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError, TransientError
from tests.support.launches import Launches, end_of, keeper_said, output
from tests.support.processes import finish, python, wait_for


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    made = Launches(tmp_path / "streams")
    yield made
    made.end()


def test_who_runs_is_known_at_once(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    assert driver.alive() is True
    assert driver.keeper.alive() is True
    assert driver.exit_status() is None
    assert driver.folder == str(launches.folder().path)
    command = Path(f"/proc/{driver.driver.pid}/cmdline").read_bytes().split(b"\0")
    assert command[:2] == [b"sh", b"-c"]
    assert b"airflow_provider_lance.drivers.driver_wrapper" in (
        Path(f"/proc/{driver.keeper.pid}/cmdline").read_bytes()
    )


@pytest.mark.parametrize("status", [0, 1, 137])
def test_the_exit_status(launches: Launches, status: int) -> None:
    assert end_of(launches.shell(f"exit {status}")) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_the_signal_that_ended_it(launches: Launches, number: signal.Signals) -> None:
    assert end_of(launches.shell(f"kill -{int(number)} $$")) == -number


def test_kill_ends_the_group(launches: Launches) -> None:
    driver = launches.shell("sleep 300 & echo $!; wait")
    wait_for("the child", lambda: output(driver).endswith("\n"), 10)
    child = Path(f"/proc/{int(output(driver))}")
    assert child.exists()
    assert driver.kill()
    assert end_of(driver) == -signal.SIGKILL
    wait_for("the child's end", lambda: not child.exists(), 10)
    assert not driver.kill()
    assert not driver.stop("a test")


def test_the_environment_is_the_one_given(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_HERE", "yes")
    folder = launches.folder()
    driver = launch_module.launch(
        folder,
        command=["env"],
        environment={"PATH": os.environ["PATH"], "ODD": "ü\n\udcff"},
        redact=[],
        grace=1,
        stop=None,
    )
    assert end_of(driver) == 0
    said = folder.driver_log.read_bytes()
    assert "ODD=ü\n".encode() + b"\xff" in said
    assert b"ONLY_HERE" not in said


def test_the_keeper_has_no_more_of_the_environment_than_its_driver(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_HERE", "yes")
    monkeypatch.setenv("ODD", "the keeper's own")
    driver = launch_module.launch(
        launches.folder(),
        command=["sleep", "300"],
        environment={"PATH": os.environ["PATH"], "ODD": "the driver's", "NEW": "yes"},
        redact=[],
        grace=1,
        stop=None,
    )
    seen = set(Path(f"/proc/{driver.keeper.pid}/environ").read_bytes().split(b"\0"))
    assert seen == {f"PATH={os.environ['PATH']}".encode(), b"ODD=the keeper's own", b""}
    driver.kill()
    end_of(driver)


def test_stop_file_is_replaced_whole_for_its_readers(launches: Launches) -> None:
    """A keeper that read half of it would take it for a shutdown of its host."""
    folder = launches.folder()
    folder.make()
    folder.write_stop("the first who asks, with a long name")
    with (folder.path / "stop.json").open("rb", buffering=0) as reading:
        begun = reading.read(5)
        folder.write_stop("another")
        assert json.loads(begun + reading.read()) == {"by": "the first who asks, with a long name"}
    assert folder.read_stop() == "another"
    assert [path.name for path in folder.path.iterdir()] == ["stop.json"], "nothing is left over"


def test_two_launches_at_once(launches: Launches) -> None:
    one = launches.shell("echo one; sleep 300", launch_id="a")
    other = launches.shell("echo other; sleep 300", launch_id="b")
    assert one.driver != other.driver
    assert one.keeper != other.keeper
    assert one.kill()
    end_of(one)
    assert other.alive() is True
    wait_for("its output", lambda: output(other) == "other\n", 10)


def test_a_launch_id_serves_once(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    with pytest.raises(SpecError, match=f"{launches.folder().path} .*launch id"):
        launches.shell("true")
    assert driver.alive() is True


def test_a_driver_is_found_again(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    again = find(launches.root, "flights", "launch")
    assert again == driver
    assert again
    assert again.kill()
    assert end_of(driver) == -signal.SIGKILL
    assert find(launches.root, "flights", "launch") == driver, "and after its end"


def test_nothing_is_found_where_nothing_was_started(launches: Launches) -> None:
    assert find(launches.root, "flights", "launch") is None
    with pytest.raises(FileNotFoundError):
        launches.start("no-such-command")
    assert find(launches.root, "flights", "launch") is None


def test_a_driver_travels_as_json(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    document = json.loads(json.dumps(driver.to_json()))
    assert LocalDriver.from_json(document) == driver


def test_a_relative_root_is_no_riddle(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    launches.root.mkdir()
    monkeypatch.chdir(launches.root.parent)
    root, launches.root = launches.root, Path("streams")
    driver = launches.shell("true")
    assert driver.folder == str(root / "flights" / "launch")
    assert end_of(driver) == 0


LAUNCHER = """
import os, signal, sys
from pathlib import Path
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.drivers.local import launch

driver = launch(
    RunDirectory(Path(sys.argv[1]), "flights", "launch"),
    command=["sh", "-c", "until [ -e $GO ]; do sleep 0.05; done; exit 5"],
    environment={**os.environ, "GO": sys.argv[2]}, redact=[], grace=1, stop=None,
)
print(os.getsid(driver.keeper.pid) != os.getsid(0), flush=True)
heavy = {"airflow", "lance", "pyarrow", "pyspark"} & set(sys.modules)
print(heavy or "light", flush=True)
"""


def test_a_driver_outlives_a_launcher_that_is_killed(launches: Launches, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = LAUNCHER + "os.killpg(0, signal.SIGKILL)"
    status, said = finish(python("-c", code, str(launches.root), str(go)))
    assert (status, said.split()) == (-signal.SIGKILL, ["True", "light"])
    driver = find(launches.root, "flights", "launch")
    assert driver
    assert driver.alive() is True
    go.touch()
    assert end_of(driver) == 5


def test_the_launcher_has_no_children_and_no_warnings(launches: Launches, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = LAUNCHER + (
        "try:\n    print(os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n    print('childless', flush=True)\n"
        "del driver\nimport gc; gc.collect()"
    )
    status, said = finish(
        python("-W", "error", "-X", "dev", "-c", code, str(launches.root), str(go))
    )
    go.touch()
    assert (status, said.split()) == (0, ["True", "light", "childless"])
    driver = find(launches.root, "flights", "launch")
    assert driver
    assert end_of(driver) == 5


def test_a_missing_command_is_named(launches: Launches) -> None:
    folder = launches.folder()
    folder.make()
    folder.write_spec("{}")
    with pytest.raises(FileNotFoundError, match="PATH") as caught:
        launches.start("spark-submit-9", "--master", "local")
    assert caught.value.filename == "spark-submit-9"
    assert not folder.spec_file.exists()
    assert not folder.driver_log.exists()


def test_the_path_is_the_drivers_own(launches: Launches, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'sh'"):
        launches.shell("true", PATH=str(tmp_path))


def test_a_command_that_cannot_be_run(launches: Launches, tmp_path: Path) -> None:
    command = tmp_path / "spark-submit"
    command.write_text("#!/bin/sh\n")
    with pytest.raises(SpecError, match="Permission denied") as caught:
        launches.start(str(command))
    assert str(launches.folder().path) in str(caught.value)
    command.write_text("\0")
    command.chmod(stat.S_IRWXU)
    with pytest.raises(SpecError, match="Exec format error"):
        launches.start(str(command), launch_id="b")
    with pytest.raises(SpecError, match="null byte"):
        launches.start("sh", "\0", launch_id="c")


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_keeper_that_is_late(launches: Launches, tmp_path: Path, seconds: float) -> None:
    marker = tmp_path / "ran"
    folder = launches.folder()
    folder.make()
    folder.write_spec("{}")
    with pytest.raises(TransientError, match=f"within {seconds:g} s"):
        launches.shell(f"touch {marker}", seconds=seconds)
    assert not folder.spec_file.exists()
    assert set(folder.read_driver() or ()) == {"error"}
    assert find(launches.root, "flights", "launch") is None
    assert not marker.exists()


def test_a_keeper_that_is_detached_and_late(launches: Launches) -> None:
    # It cannot say that the driver runs, and so must not leave it running.
    (launches.folder().path / "driver.json").mkdir(parents=True)
    with pytest.raises(TransientError, match="Killed the driver"):
        launches.start("sleep", "271.828", seconds=2)
    wait_for("its end", lambda: not running(b"271.828"), 10)


def running(argument: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument in path.read_bytes().split(b"\0"):
                return True
    return False


def test_a_launch_that_is_interrupted_leaves_nothing(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = launches.folder()

    def interrupt(*_: object) -> None:
        wait_for("the driver", lambda: folder.read_driver() is not None, 10)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch_module, "_started", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launches.shell("sleep 300")
    driver = find(launches.root, "flights", "launch")
    assert driver
    assert end_of(driver) == -signal.SIGKILL


def test_a_keeper_that_fails_says_why(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_KEEPER", "airflow_provider_lance.drivers.no_such_module")
    with pytest.raises(TransientError, match="No module named"):
        launches.shell("true", seconds=10)


def test_the_workers_folder_is_not_imported_from(
    launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logging.py").write_text("raise SystemExit('shadowed')")
    driver = launches.shell("pwd")
    assert end_of(driver) == 0
    assert output(driver).strip() == str(tmp_path)


def test_where_there_is_no_room_nothing_is_started(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    launches.root.write_text("a file")
    with pytest.raises(SpecError, match=str(launches.root)):
        launches.shell(f"touch {marker}")
    launches.root.unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "keeper.log")

    monkeypatch.setattr(folder_module.os, "open", full)
    with pytest.raises(StorageUnavailableError, match=str(launches.folder().path)):
        launches.shell(f"touch {marker}")
    assert not marker.exists()


def test_a_driver_that_ended_at_once_was_still_started(launches: Launches) -> None:
    driver = launches.start(sys.executable, "-c", "print('so quick')")
    assert end_of(driver) == 0
    assert output(driver) == "so quick\n"
    assert "Ended. status=0" in keeper_said(driver)
    assert not RunDirectory.at(driver.folder).spec_file.exists()
