from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.drivers.launch_request import HOST_SHUTDOWN, LaunchRequest, StopSettings
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.drivers.rotating_log import Redactor, RotatingLog, pump
from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import Driver, StopNote
from airflow_provider_lance.protocol.session import DriverSession
from tests.support.launches import Launches, end_of, keeper_said, output
from tests.support.processes import REPOSITORY, wait_for

from .conftest import ROWS

SECRET = "hush/hush+hush"
IGNORES = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    made = Launches(tmp_path / "streams")
    yield made
    made.end()


def own(uri: str, launch_id: str = "launch") -> DriverSession:
    """Make the dataset's query belong to a launch, as its driver would."""
    checkpoint = Checkpoint("/checkpoint", "checkpoint-id")
    committer = DriverSession(open_dataset(uri), "flights", checkpoint)
    committer.prepare()
    committer.identify(Driver("run", "checkpoint-id", "/checkpoint", launch_id=launch_id))
    committer.claim(0)
    return committer


def stop_order(uri: str, **options: str) -> StopSettings:
    return StopSettings(uri, "flights", "launch", storage_options=options)


def asked(uri: str) -> StopNote | None:
    try:
        port = open_dataset(uri)
    except DatasetNotFoundError:
        return None
    return decode_query(port.config, "flights", port.version).stop_note


def said(driver: LocalDriver, words: str, seconds: float = 30) -> None:
    wait_for(f"the keeper's {words!r}", lambda: words in keeper_said(driver), seconds)


def ready(driver: LocalDriver) -> None:
    log = Path(driver.folder) / "driver.log"
    wait_for("the driver", lambda: log.exists() and "ready" in log.read_text(), 30)


# How the driver lives


def test_the_driver_stands_alone(launches: Launches) -> None:
    code = (
        "import os, signal; print(os.readlink('/proc/self/fd/0'), os.getpid() == os.getpgid(0) =="
        " os.getsid(0), sorted(os.listdir('/proc/self/fd'))[:3], signal.pthread_sigmask("
        "signal.SIG_BLOCK, []))"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        driver = launches.python(code)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert end_of(driver) == 0
    assert output(driver) == "/dev/null True ['0', '1', '2'] set()\n"


def test_the_keeper_stands_alone(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    proc = Path(f"/proc/{driver.keeper.pid}")
    parent = int(proc.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()
    assert os.getsid(driver.keeper.pid) not in (os.getsid(0), os.getsid(driver.driver.pid))
    assert os.readlink(proc / "fd" / "0") == "/dev/null"
    for number in "12":
        assert os.readlink(proc / "fd" / number) == str(launches.folder().keeper_log)


def test_the_keeper_waits_without_the_heavy_libraries(launches: Launches) -> None:
    driver = launches.shell("sleep 300")
    maps = Path(f"/proc/{driver.keeper.pid}/maps").read_text()
    assert "libpython" in maps or "python" in maps
    assert "/lance/" not in maps
    assert "/pyarrow/" not in maps


def test_a_driver_that_talks_outlives_its_keeper(launches: Launches, tmp_path: Path) -> None:
    count = tmp_path / "count"
    driver = launches.shell(
        f"n=0; while :; do n=$((n+1)); echo line $n; echo $n > {count}; sleep 0.02; done"
    )

    def reached(number: int) -> bool:
        text = count.read_text().strip() if count.exists() else ""
        return text.isdigit() and int(text) >= number

    wait_for("the driver", lambda: reached(1), 10)
    os.kill(driver.keeper.pid, signal.SIGKILL)
    wait_for("the keeper's end", lambda: driver.keeper.alive() is False, 10)
    before = int(count.read_text().strip() or 0)
    wait_for("ten more lines", lambda: reached(before + 10), 10)
    assert driver.alive() is True
    assert not driver.stop("a test"), "nobody is there to be told"
    assert driver.kill()
    wait_for("its end", lambda: driver.alive() is False, 10)
    assert driver.exit_status() is None, "and nobody noted it"


def test_what_a_driver_leaves_behind_ends_with_it(launches: Launches, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    driver = launches.shell(f"sleep 300 > /dev/null 2>&1 & echo $! > {pid}; echo ready; wait")
    ready(driver)
    os.kill(driver.driver.pid, signal.SIGKILL)
    assert end_of(driver) == -signal.SIGKILL
    wait_for("its child's end", lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), 10)


def test_the_last_words_are_kept(launches: Launches) -> None:
    driver = launches.shell("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; done; printf end")
    assert end_of(driver) == 0
    assert output(driver).split() == [*map(str, range(1, 2001)), "end"]


# How it is stopped


def test_a_driver_is_asked_through_its_dataset(launches: Launches, dataset: str) -> None:
    own(dataset)
    # Plays the driver that obeys.
    code = f"""
import time
from airflow_provider_lance.protocol.dataset import open_dataset
print("ready", flush=True)
while not (found := [v for k, v in open_dataset({dataset!r}).config.items() if ".stop." in k]):
    time.sleep(0.1)
raise SystemExit(int(found[0]))
"""
    driver = launches.python(code, stop=stop_order(dataset), grace=120)
    ready(driver)
    assert driver.stop("dag/task/run/-1#2")
    assert end_of(driver, 120) == 1, "the token that was asked for"
    note = asked(dataset)
    assert note
    assert (note.token, note.launch_id, note.by) == (1, "launch", "dag/task/run/-1#2")
    assert "asked, token=1" in keeper_said(driver)
    assert "killed" not in keeper_said(driver)


def test_sigterm_without_a_stop_note_is_a_shutdown_of_the_host(
    launches: Launches, dataset: str
) -> None:
    own(dataset)
    driver = launches.shell(IGNORES, stop=stop_order(dataset), grace=60)
    os.kill(driver.keeper.pid, signal.SIGTERM)
    wait_for("the request", lambda: asked(dataset) is not None, 60)
    note = asked(dataset)
    assert note
    assert note.by.startswith(HOST_SHUTDOWN)


def test_a_driver_that_does_not_obey_is_killed(launches: Launches, dataset: str) -> None:
    own(dataset)
    driver = launches.shell(IGNORES, stop=stop_order(dataset), grace=10)
    neighbour = launches.shell("sleep 300", launch_id="neighbour")
    ready(driver)
    assert driver.stop("a test")
    assert end_of(driver, 60) == -signal.SIGKILL
    assert "Still running after 10 s: killed." in keeper_said(driver)
    assert asked(dataset)
    assert neighbour.alive() is True


def test_another_launch_is_not_asked(launches: Launches, dataset: str) -> None:
    own(dataset, "newer")
    driver = launches.shell(IGNORES, stop=stop_order(dataset), grace=60)
    ready(driver)
    assert driver.stop("a test")
    said(driver, "asked, token=")
    port = open_dataset(dataset)
    state = decode_query(port.config, "flights", port.version)
    assert state.owner is not None
    assert state.stop_note is not None
    assert state.stop_note.launch_id != state.owner.driver.launch_id
    assert state.stop_token == state.owner.token + 1, "what this launch would get"


def test_a_driver_that_has_no_dataset_yet(launches: Launches, tmp_path: Path) -> None:
    uri = str(tmp_path / "later.lance")
    driver = launches.shell(IGNORES, stop=stop_order(uri), grace=60)
    ready(driver)
    assert driver.stop("a test")
    said(driver, "DatasetNotFoundError")
    assert driver.alive() is True
    lance.write_dataset(ROWS, uri)
    own(uri)
    wait_for("the request", lambda: asked(uri) is not None, 30)
    assert keeper_said(driver).count("DatasetNotFoundError") == 1, "once is enough"


def test_a_driver_that_ends_by_itself_is_not_killed(launches: Launches, tmp_path: Path) -> None:
    go = tmp_path / "go"
    driver = launches.shell(
        f"trap '' TERM; echo ready; until [ -e {go} ]; do sleep 0.05; done; exit 5", grace=60
    )
    ready(driver)
    assert driver.stop("a test")
    said(driver, "Stopping")
    go.touch()
    assert end_of(driver) == 5
    assert "killed" not in keeper_said(driver)


def test_a_second_sigterm_changes_nothing(launches: Launches) -> None:
    driver = launches.shell(IGNORES, grace=2)
    ready(driver)
    assert driver.stop("a test")
    said(driver, "Stopping")
    stopped = os.stat(Path(driver.folder) / "keeper.log").st_mtime
    for _ in range(5):
        assert driver.stop("another test")
    assert driver.alive() is True
    assert end_of(driver) == -signal.SIGKILL
    noted = driver_ended(driver)
    assert 1.9 < noted - stopped < 10
    assert keeper_said(driver).count("Stopping") == 1


def driver_ended(driver: LocalDriver) -> float:
    return os.stat(Path(driver.folder) / "exit.json").st_mtime


def test_the_log_goes_on_while_the_driver_is_asked(launches: Launches, tmp_path: Path) -> None:
    uri = f"s3://bucket/{tmp_path.name}.lance"  # and nobody answers there
    order = stop_order(
        uri,
        access_key_id="id",
        secret_access_key=SECRET,
        region="us-east-1",
        endpoint="http://127.0.0.1:9",
        allow_http="true",
    )
    script = "trap '' TERM; echo ready; n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done"
    driver = launches.shell(script, stop=order, grace=3, redact=[SECRET])
    ready(driver)
    assert driver.stop("a test")
    said(driver, "Stopping")
    lines = output(driver).count("\n")
    wait_for("more lines", lambda: output(driver).count("\n") > lines + 20, 20)
    assert end_of(driver, 60) == -signal.SIGKILL
    assert SECRET not in keeper_said(driver)


# What it must not do


def test_no_secret_is_left_anywhere(launches: Launches, tmp_path: Path) -> None:
    go = tmp_path / "go"
    folder = launches.folder()
    folder.make()
    folder.write_spec(json.dumps({"storageOptions": {"key": SECRET}}))
    code = """
import json, os, sys, time, urllib.parse
secret = os.environ["SECRET"]
print(secret, file=sys.stderr, flush=True)
print("key=%s&" % urllib.parse.quote(secret, safe=""), json.dumps({"k": secret}), flush=True)
sys.stdout.write("no end: " + secret)
sys.stdout.flush()
print(" ready", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""
    driver = launches.python(
        code,
        stop=stop_order(str(tmp_path / "none.lance"), secret_access_key=SECRET),
        redact=[SECRET],
        SECRET=SECRET,
        GO=str(go),
    )
    ready(driver)
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            shown = (proc / "cmdline").read_bytes()
        except OSError:
            continue
        assert SECRET.encode() not in shown
    assert SECRET.encode() not in Path(f"/proc/{driver.keeper.pid}/environ").read_bytes()
    go.touch()
    assert end_of(driver) == 0
    assert output(driver) == '***\nkey=***& {"k": "***"}\nno end: *** ready\n'
    names = sorted(path.name for path in folder.path.iterdir())
    assert names == ["driver.json", "driver.log", "exit.json", "keeper.log"]
    for path in folder.path.iterdir():
        assert SECRET not in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_command_that_cannot_be_started_shows_no_secret(launches: Launches) -> None:
    with pytest.raises(Exception, match=r"\*\*\*") as caught:
        launches.start(f"/proc/version/{SECRET}", redact=[SECRET])
    assert SECRET not in str(caught.value)
    for path in launches.folder().path.iterdir():
        assert SECRET not in path.read_text()


def test_a_full_disk_does_not_hold_the_driver_up(launches: Launches) -> None:
    folder = launches.folder()
    folder.make()
    folder.driver_log.symlink_to("/dev/full")
    driver = launches.python("for _ in range(50_000): print('x' * 100)")
    assert end_of(driver) == 0


def test_a_chatty_driver_fills_no_disk(launches: Launches) -> None:
    driver = launches.python(
        "import sys\nfor n in range(700_000): sys.stdout.write(f'{n:099}\\n')", grace=1
    )
    assert end_of(driver, 120) == 0
    files = sorted(launches.folder().path.glob("driver.log*"))
    assert [path.name for path in files] == [
        "driver.log",
        *[f"driver.log.{n}" for n in range(1, 5)],
    ]
    assert all(path.stat().st_size <= 10 * 1024 * 1024 for path in files)
    assert int(files[0].read_text().splitlines()[-1]) == 699_999
    lines = "".join(path.read_text() for path in reversed(files)).splitlines()
    numbers = [int(line) for line in lines]
    assert numbers == list(range(numbers[0], 700_000))


def by_hand(launches: Launches, order: str) -> subprocess.CompletedProcess[str]:
    launches.folder().make()
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "airflow_provider_lance.drivers.driver_wrapper",
            str(launches.folder().path),
        ],
        input=order,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )


def order_for(*command: str) -> str:
    return LaunchRequest(command, dict(os.environ), [SECRET], 1, None).dumps()


def test_a_launch_that_was_given_up_is_not_started(launches: Launches, tmp_path: Path) -> None:
    launches.folder().make()
    launches.folder().publish({"error": "the launch was given up"})
    ran = by_hand(launches, order_for("touch", str(tmp_path / "ran")))
    assert ran.returncode == 0
    log = launches.folder().keeper_log
    wait_for("its word", lambda: "Started nothing" in log.read_text(), 10)
    assert not (tmp_path / "ran").exists()


def test_half_an_order_is_no_order(launches: Launches, tmp_path: Path) -> None:
    text = order_for("touch", str(tmp_path / "ran"))
    for length in (0, 1, len(text) // 2, len(text) - 1):
        ran = by_hand(launches, text[:length])
        assert ran.returncode == 1
        assert SECRET not in ran.stderr
    assert launches.folder().read_driver() is None
    assert not (tmp_path / "ran").exists()


def test_an_order_comes_as_it_went() -> None:
    stop = StopSettings("s3://a/b", "q", "l", "me", {"k": SECRET})
    for order in (
        LaunchRequest(["a", "b"], {"A": "ü\udcff"}, [SECRET], 1.5, stop),
        LaunchRequest(["a"], {}, [], 60, None),
    ):
        assert LaunchRequest.loads(order.dumps()) == order
        assert SECRET not in repr(order)


# How output becomes a log


def test_secrets_are_masked_the_longest_first() -> None:
    clean = Redactor(["hush", "hush-hush", "abc", "", "   "]).text
    assert clean("a hush-hush b hush c abc") == "a *** b *** c abc"
    assert Redactor([]).text("as it is") == "as it is"


def test_a_secret_of_many_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN KEY-----\n  first line\nsecond\n}\n-----END KEY-----\n"
    assert Redactor([key]).text(f"<{key}>") == "<***\n  ***\n***\n}\n***\n>"
    assert Redactor([key]).text(json.dumps({"k": key})) == '{"k": "***"}'
    assert Redactor([key.strip()]).text(json.dumps({"k": key.strip()})) == '{"k": "***"}'


def test_a_secret_with_quotes_is_masked_as_json() -> None:
    secret = 'a"b\\c-secret'
    assert Redactor([secret]).text(json.dumps([secret])) == '["***"]'


def test_a_secret_that_is_no_utf_8() -> None:
    secret = os.fsdecode(b"\xff\xfe-hush")
    assert Redactor([secret]).clean(b"a \xff\xfe-hush b") == b"a *** b"


def copied(tmp_path: Path, pieces: list[bytes], secrets: list[str]) -> bytes:
    path = tmp_path / "x.log"
    path.unlink(missing_ok=True)
    source, target = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(target, piece)
        os.close(target)

    writer = threading.Thread(target=write)
    writer.start()
    pump(source, RotatingLog(path), Redactor(secrets))
    writer.join()
    os.close(source)
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("before", [65_536 * 2 - 10, 65_536 * 3 - 4, 200_000])
def test_a_line_without_an_end_hides_its_secrets(tmp_path: Path, before: int) -> None:
    content = b"x" * before + b"hush-hush-hush" + b"y" * 200_000
    pieces = [content[n : n + 40_000] for n in range(0, len(content), 40_000)]
    made = copied(tmp_path, pieces, ["hush-hush-hush", "hush"])
    assert made == b"x" * before + b"***" + b"y" * 200_000


@given(
    lines=st.lists(st.sampled_from([b"hush-hush", b"hush-", b"ab", b"\n", b"\xff", b" "])),
    at=st.lists(st.integers(0, 200), max_size=5),
)
def test_pieces_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], at: list[int]
) -> None:
    content = b"".join(lines)
    cuts = [0, *sorted(at), len(content)]
    pieces = [content[a:b] for a, b in pairwise(cuts) if content[a:b]]
    made = copied(tmp_path_factory.mktemp("log"), pieces, ["hush-hush"])
    assert made == content.replace(b"hush-hush", b"***")


def test_a_log_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.symlink_to("/dev/full")
    log = RotatingLog(path)
    log.write(b"lost\n")
    log.write(b"lost too\n")
    path.unlink()
    log.write(b"kept\n")
    log.close()
    assert re.fullmatch(r"\n\(14 bytes .*\)\nkept\n", path.read_text())


def test_a_log_whose_folder_is_gone_takes_nothing_and_says_nothing(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "none" / "x.log")
    log.write(b"lost\n")
    log.close()
    log.close()


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for text in (b"aaaa\n", b"bbbb\n", b"cccc\n"):
        log = RotatingLog(path, size=10, files=2)
        log.write(text)
        log.close()
    assert path.read_text() + Path(f"{path}.1").read_text() == "cccc\naaaa\nbbbb\n"
    assert not Path(f"{path}.2").exists()


def test_a_log_that_cannot_be_rotated_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RotatingLog(tmp_path / "x.log", size=10, files=2)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    for _ in range(10):
        log.write(b"12345\n")
    log.close()
    assert (tmp_path / "x.log").stat().st_size <= 10
