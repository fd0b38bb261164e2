from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.drivers.run_directory import RunDirectory, forget_old_launches
from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.supervision.driver_reports import new_launch_id
from airflow_provider_lance.supervision.process import ProcessIdentity

LAUNCH = "20261120T120000000Z-0123abcd"
SPEC = '{"secret": "hush"}'


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "home" / "streams", "flights", LAUNCH)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_run_directory_is_found_by_root_query_and_launch(
    folder: RunDirectory, tmp_path: Path
) -> None:
    assert folder.path == tmp_path / "home" / "streams" / "flights" / LAUNCH
    assert RunDirectory.at(folder.path) == RunDirectory.at(str(folder.path)) == folder
    assert not folder.root.exists()


@pytest.mark.usefixtures("no_umask")
def test_the_folder_is_private(folder: RunDirectory) -> None:
    folder.make()
    folder.make()
    assert [mode(path) for path in (folder.root, folder.path.parent, folder.path)] == [0o700] * 3


@pytest.mark.usefixtures("no_umask")
def test_every_file_is_private(folder: RunDirectory) -> None:
    folder.make()
    assert folder.write_spec(SPEC) == folder.spec_file
    folder.publish({"error": "none"})
    folder.write_exit(0)
    folder.open_keeper_log().close()
    assert {path.name: mode(path) for path in folder.path.iterdir()} == dict.fromkeys(
        ["spec.json", "driver.json", "exit.json", "keeper.log"], 0o600
    )
    assert folder.spec_file.read_text() == SPEC


@pytest.mark.usefixtures("no_umask")
def test_the_spec_is_private_from_its_first_byte_on(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()
    seen: list[int] = []

    def look(descriptor: int, *arguments: Any, **further: Any) -> Any:
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        return fdopen(descriptor, *arguments, **further)

    fdopen = os.fdopen
    monkeypatch.setattr(os, "fdopen", look)
    folder.write_spec(SPEC)
    assert seen == [0o600]


def test_a_spec_is_never_written_over(folder: RunDirectory) -> None:
    folder.make()
    folder.write_spec(SPEC)
    with pytest.raises(SpecError, match="already exists"):
        folder.write_spec("{}")
    assert folder.spec_file.read_text() == SPEC


def test_a_spec_is_not_written_through_a_link(folder: RunDirectory, tmp_path: Path) -> None:
    folder.make()
    folder.spec_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError):
        folder.write_spec(SPEC)
    assert not (tmp_path / "elsewhere").exists()


def test_removing_a_spec_twice(folder: RunDirectory) -> None:
    folder.make()
    folder.write_spec(SPEC)
    folder.remove_spec()
    folder.remove_spec()
    assert not folder.spec_file.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "x" * 129, "a\n"])
def test_an_id_is_a_plain_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="queryId"):
        RunDirectory(tmp_path, name, LAUNCH)
    with pytest.raises(SpecError, match="launch id"):
        RunDirectory(tmp_path, "flights", name)


def test_the_first_to_publish_decides(folder: RunDirectory) -> None:
    folder.make()
    assert folder.read_driver() is None
    assert folder.publish({"error": "a"})
    assert not folder.publish({"error": "b"})
    assert folder.read_driver() == {"error": "a"}


def test_exit_status_of_a_driver_is_read_back(folder: RunDirectory) -> None:
    folder.make()
    assert folder.read_exit() is None
    folder.write_exit(-9)
    document = folder.read_exit()
    assert document
    assert document["status"] == -9
    assert document["time"].endswith("+00:00")


@pytest.mark.parametrize("content", [b"", b'{"driver": {', b"[1]", b"7", b"\xff"])
def test_what_is_half_written_is_not_there(folder: RunDirectory, content: bytes) -> None:
    folder.make()
    for name in ("driver.json", "exit.json"):
        (folder.path / name).write_bytes(content)
    assert folder.read_driver() is None
    assert folder.read_exit() is None


Failing = Callable[[int], None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    def fail(number: int) -> None:
        def refuse(path: Any, *arguments: Any, **further: Any) -> Any:
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(Path, "mkdir", refuse)
        monkeypatch.setattr(os, "open", refuse)

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_folder_without_permission_is_a_spec_error_with_the_folder(
    folder: RunDirectory, failing: Failing, number: int
) -> None:
    failing(number)
    for step in (folder.make, lambda: folder.write_spec(SPEC), folder.open_keeper_log):
        with pytest.raises(SpecError, match=os.strerror(number)) as caught:
            step()
        assert str(folder.path) in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_is_a_transient_error_with_the_folder(
    folder: RunDirectory, failing: Failing, number: int
) -> None:
    failing(number)
    for step in (folder.make, lambda: folder.write_spec(SPEC), folder.open_keeper_log):
        with pytest.raises(StorageUnavailableError, match=os.strerror(number)) as caught:
            step()
        assert str(folder.path) in str(caught.value)


def test_file_in_place_of_the_drivers_folder_is_refused(folder: RunDirectory) -> None:
    folder.root.parent.mkdir()
    folder.root.write_text("")
    with pytest.raises(SpecError, match=str(folder.root)):
        folder.make()


def test_a_spec_that_does_not_fit_leaves_nothing(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()

    def full(descriptor: int, *arguments: Any, **further: Any) -> Any:
        os.close(descriptor)
        return Path("/dev/full").open("w")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(StorageUnavailableError, match="No space left"):
        folder.write_spec(SPEC)
    assert list(folder.path.iterdir()) == []


class Launches:
    """Folders of one query; what happened to each is told by its files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0
        self.alive = ProcessIdentity.of(os.getpid())
        self.dead = replace(self.alive, start=f"{self.alive.start.rpartition(':')[0]}:1")
        self.elsewhere = ProcessIdentity("elsewhere.example", 1, "boot/1:1")

    def add(
        self,
        driver: ProcessIdentity | None = None,
        keeper: ProcessIdentity | None = None,
        *,
        started: bool = True,
        ended: bool = False,
    ) -> RunDirectory:
        self._count += 1
        name = f"20261120T{self._count:09}Z-{self._count:08x}"
        folder = RunDirectory(self._root, "flights", name)
        folder.make()
        folder.write_spec(SPEC)
        if started:
            document = {"driver": driver or self.dead, "keeper": keeper or self.dead}
            folder.publish({name: one.to_json() for name, one in document.items()})
        if ended:
            folder.write_exit(0)
        return folder

    def names(self) -> list[str]:
        return sorted(path.name for path in (self._root / "flights").iterdir())


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    return Launches(tmp_path)


def test_the_newest_launches_stay(launches: Launches, tmp_path: Path) -> None:
    made = [launches.add().path.name for _ in range(25)]
    forget_old_launches(tmp_path, "flights")
    assert launches.names() == made[5:]
    forget_old_launches(tmp_path, "flights", keep=2)
    assert launches.names() == made[-2:]


def test_a_launch_that_may_run_stays(launches: Launches, tmp_path: Path) -> None:
    stay = [
        launches.add(driver=launches.alive),
        launches.add(keeper=launches.alive),
        launches.add(driver=launches.alive, ended=True),
        launches.add(driver=launches.elsewhere, keeper=launches.elsewhere),
    ]
    launches.add(driver=launches.elsewhere, keeper=launches.elsewhere, ended=True)
    launches.add(started=False)
    forget_old_launches(tmp_path, "flights", keep=0)
    assert launches.names() == [folder.path.name for folder in stay]
    assert all(folder.spec_file.exists() for folder in stay)


def test_no_secret_stays_of_a_launch_that_is_over(launches: Launches, tmp_path: Path) -> None:
    over, failed = launches.add(), launches.add(started=False)
    failed.publish({"error": "no such command"})
    running, starting = launches.add(driver=launches.alive), launches.add(started=False)
    forget_old_launches(tmp_path, "flights")
    assert [f.spec_file.exists() for f in (over, failed, running, starting)] == [
        False,
        False,
        True,
        True,
    ]


def test_files_that_are_no_launch_are_kept(launches: Launches, tmp_path: Path) -> None:
    names = ["notes", "20261120", f"{LAUNCH}.old", "20261120T120000000Z-XYZ", "mine.txt"]
    for name in names:
        (tmp_path / "flights" / name).mkdir(parents=True)
    launches.add()
    forget_old_launches(tmp_path, "flights", keep=0)
    assert launches.names() == sorted(names)


def test_names_that_the_package_makes_are_known(tmp_path: Path) -> None:
    RunDirectory(tmp_path, "flights", new_launch_id()).make()
    forget_old_launches(tmp_path, "flights", keep=0)
    assert list((tmp_path / "flights").iterdir()) == []


def test_other_queries_are_not_touched(launches: Launches, tmp_path: Path) -> None:
    launches.add()
    other = RunDirectory(tmp_path, "other", LAUNCH)
    other.make()
    forget_old_launches(tmp_path, "flights", keep=0)
    forget_old_launches(tmp_path, "nobody's", keep=0)
    assert other.path.exists()


def test_damaged_notes_do_not_keep_a_folder(launches: Launches, tmp_path: Path) -> None:
    for document in ({"driver": None}, {"driver": {"pid": "x"}}, {"driver": [1]}):
        launches.add(started=False).publish(json.loads(json.dumps(document)))
    forget_old_launches(tmp_path, "flights", keep=0)
    assert launches.names() == []
