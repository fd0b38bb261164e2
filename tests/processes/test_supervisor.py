"""Looks at a launch: what is asked of the store and what is told, on real files and processes."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.backends.base import Driver
from airflow_provider_lance.backends.launch import ClusterDriver, Launch, UnseenDriver
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.health import Limits, StreamState
from airflow_provider_lance.triggers.stop import end_launch
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig, SupervisionLoop
from airflow_provider_lance.triggers.supervision_outcome import Action
from airflow_provider_lance.triggers.supervisor import Supervisor
from tests.support.processes import wait_for
from tests.support.supervised import ME, CountingHook, Supervised, heartbeat, here, killed

from .conftest import AddConnection

S = StreamState
BEAT = "read launch/heartbeat.json"
LAST_WORD = "read launch/summary.json"
LIMITS = Limits(start=300, silence=120, stall=600)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def caught(name: str) -> Iterator[list[str]]:
    """Return what a logger is told."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


class Look:
    """A supervisor, the clock it reads and the hook that counts what it asks."""

    def __init__(self, launch: Launch) -> None:
        self.clock, self.hook = Clock(), CountingHook()
        self.supervisor = Supervisor(launch, self.hook, LIMITS, clock=self.clock)

    def __call__(self, after: float = 0.0) -> StreamState:
        self.clock.now += after
        self.health = self.supervisor.look()
        return self.health.state

    def asked(self) -> list[str]:
        """Return what was asked of the store since the last call."""
        asked, self.hook.asked = self.hook.asked, []
        return asked


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.end()


def test_look_reads_only_the_heartbeat_when_the_driver_is_idle(stand: Supervised) -> None:
    stand.plan(4, commit=True)
    stand.beat()
    look = Look(stand.launch(stand.local()))
    for _ in range(5):
        assert look(10) is S.IDLE
        assert look.asked() == [BEAT]
        stand.beat()


def test_look_reads_only_the_heartbeat_when_the_driver_works_starts_or_is_remote(
    stand: Supervised,
) -> None:
    look = Look(stand.launch(stand.local()))
    assert look() is S.STARTING
    stand.beat(busySince=heartbeat()["time"])
    assert look() is S.RUNNING
    far = Look(stand.launch(stand.remote()))
    assert far(119) is S.RUNNING
    assert look.asked() == [BEAT, BEAT]
    assert far.asked() == [BEAT]


def test_supervisor_reads_more_evidence_only_when_suspicious(stand: Supervised) -> None:
    stand.owner()
    stand.plan(4, commit=True)
    stand.beat()
    look = Look(stand.launch(stand.local()))
    look()
    look.asked()
    assert look(119) is S.NOT_RESPONDING
    assert look.asked() == [BEAT]
    assert look(1) is S.NOT_RESPONDING, "silent, but there, and no epoch in flight"
    evidence = ["open", "list commits", "list offsets", "read metadata"]
    assert look.asked() == [BEAT, LAST_WORD, *evidence]
    stand.beat()
    assert look() is S.IDLE
    assert look.asked() == [BEAT], "the suspicion is over"


def test_an_epoch_that_does_not_end(stand: Supervised) -> None:
    stand.plan(3, commit=True)
    stand.plan(4)
    since = datetime.now(UTC) - timedelta(seconds=590)
    stand.beat(busySince=since.isoformat(), epoch=3)
    look = Look(stand.launch(stand.local()))
    assert look() is S.RUNNING
    assert look(15) is S.STALLED
    assert re.search("epoch 4 .* 605 s", look.health.reason)
    assert look.health.restartable


def test_a_driver_that_hangs(stand: Supervised) -> None:
    stand.plan(4, commit=True)
    stand.beat()
    look = Look(stand.launch(stand.local()))
    look()
    assert look(599) is S.NOT_RESPONDING
    assert look(1) is S.STALLED
    far = Look(stand.launch(stand.remote()))
    assert far() is S.IDLE
    assert far(120) is S.DEAD


def test_a_checkpoint_that_is_missing(stand: Supervised) -> None:
    stand.beat()
    look = Look(stand.launch(stand.local()))
    look()
    assert look(599) is S.NOT_RESPONDING
    assert "list offsets" in look.asked()
    assert look(1) is S.STALLED
    assert "no heartbeat for 600 s" in look.health.reason, "no epoch is known to be in flight"


def test_a_checkpoint_of_a_store_that_nobody_here_can_read(stand: Supervised) -> None:
    launch = stand.launch(stand.local(), checkpoint_location="nosuchstore://bucket/checkpoint")
    look = Look(launch)
    assert look() is S.STARTING
    assert look(300) is S.RUNNING, "nobody may kill it for what only we cannot see"
    assert look.asked() == ["open"]


def test_a_checkpoint_without_a_readable_id_says_nothing(stand: Supervised) -> None:
    """That is for the driver to refuse."""
    stand.plan(4)
    Path(stand.checkpoint, "metadata").write_text("{}")
    stand.beat()
    look = Look(stand.launch(stand.remote()))
    assert look() is S.IDLE
    look.asked()
    assert look(120) is S.DEAD
    assert "read metadata" in look.asked()
    near = Look(stand.launch(stand.local()))
    assert near() is S.IDLE
    assert near(120) is S.NOT_RESPONDING
    assert near(480) is S.STALLED


@pytest.mark.parametrize("state", ["running", "stopping"])
def test_a_last_word_counts_whatever_the_last_heartbeat_says(stand: Supervised, state: str) -> None:
    """That one is written if it can be; of a driver on another host nothing else tells."""
    stand.owner()
    stand.beat(state=state)
    look = Look(stand.launch(stand.remote()))
    look()
    stand.say(EndReason.STOPPED, stopped_by="x")
    look(119)
    assert look(1) is S.STOPPED
    assert look.health.asked_by == "x"


def test_a_dataset_that_is_not_there_yet(stand: Supervised) -> None:
    look = Look(stand.launch(stand.local(), uri=f"{stand.uri}-absent"))
    assert look() is S.STARTING
    assert look(300) is S.STALLED
    assert "open" in look.asked()


# --- The process is gone ---------------------------------------------------------------------


def test_a_driver_that_is_gone_without_a_word(stand: Supervised) -> None:
    process = stand.process()
    stand.plan(4)
    stand.beat()
    look = Look(stand.launch(stand.local(process)))
    assert look() is S.IDLE
    killed(process)
    assert look() is S.DEAD
    assert "epoch 4 in flight" in look.health.reason
    assert "watermark 4" in look.health.reason
    stand.folder.write_exit(-9)
    assert look() is S.DEAD
    assert "signal 9" in look.health.reason


def test_the_exit_status_of_one_whose_summary_is_out_of_reach(stand: Supervised) -> None:
    process = stand.process()
    look = Look(stand.launch(stand.local(process)))
    stand.folder.write_exit(0)
    assert look() is S.STARTING, "while it runs, nothing else counts"
    killed(process)
    assert look() is S.FINISHED


@pytest.mark.parametrize(
    ("status", "state"), [(0, S.FINISHED), (-9, S.DEAD), (None, S.DEAD)], ids=str
)
def test_a_keeper_that_has_not_noted_the_end_yet(
    stand: Supervised, status: int | None, state: StreamState
) -> None:
    process, keeper = stand.process(), stand.process()
    local = replace(stand.local(process), keeper=here(keeper))
    stand.beat(state="ended")
    look = Look(stand.launch(local))
    killed(process)
    assert look() is S.IDLE, "how it ended is known in a moment"
    if status is None:
        killed(keeper)
    else:
        stand.folder.write_exit(status)
    assert look() is state


def test_a_summary_needs_no_keeper(stand: Supervised) -> None:
    process, keeper = stand.process(), stand.process()
    look = Look(stand.launch(replace(stand.local(process), keeper=here(keeper))))
    stand.say()
    killed(process)
    assert look() is S.FINISHED


class Dying(LocalDriver):
    """A driver that writes its summary and ends just after it was looked at."""

    def alive(self) -> bool | None:
        before = super().alive()
        self.last_words()
        return before

    last_words: Any = staticmethod(lambda: None)


def test_a_summary_that_was_written_just_before_the_end(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = stand.process()
    local = stand.local(process)
    stand.beat()

    def last_words() -> None:
        stand.say(EndReason.FINISHED)
        killed(process)

    monkeypatch.setattr(Dying, "last_words", staticmethod(last_words))
    look = Look(stand.launch(Dying(local.folder, local.driver, local.keeper)))
    first = look()
    monkeypatch.undo()
    assert [first, look()] == [S.IDLE, S.FINISHED], "seen alive or finished, never dead"
    assert look.supervisor.summary


def test_a_summary_between_the_two_reads(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is looked at before the summary: gone means that there is none to come."""
    process = stand.process()
    stand.beat()
    look = Look(stand.launch(stand.local(process)))
    original = look.hook.note

    def note(question: str) -> None:
        if question == BEAT:  # after the process, before the summary
            stand.say()
            killed(process)
            monkeypatch.setattr(look.hook, "note", original)
        original(question)

    monkeypatch.setattr(look.hook, "note", note)
    assert look() is S.IDLE
    assert look() is S.FINISHED


def test_the_last_word_of_a_driver_that_is_still_there(stand: Supervised) -> None:
    look = Look(stand.launch(stand.local()))
    stand.beat(state="ended")
    assert look() is S.IDLE
    assert look.asked() == [BEAT, LAST_WORD]
    stand.say(EndReason.STOPPED, stopped_by="x")
    assert look() is S.STOPPED
    assert look.health.asked_by == "x"


# --- Heartbeats ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", '{"time": "2026', "[]", "null"])
def test_a_heartbeat_that_is_being_written(stand: Supervised, content: str) -> None:
    stand.beat()
    look = Look(stand.launch(stand.local()))
    assert look() is S.IDLE
    stand.heartbeat_file.write_text(content)
    assert look(60) is S.NOT_RESPONDING
    assert look.supervisor.silent == 60, "no sign of life"
    assert look.supervisor.heartbeat
    assert look.supervisor.heartbeat.watermark == 4, "the last one counts"
    stand.beat()
    assert look(60) is S.IDLE
    assert look.supervisor.silent == 0


def test_unchanged_heartbeat_is_no_sign_of_life(stand: Supervised) -> None:
    stand.beat()
    look = Look(stand.launch(stand.local()))
    look()
    look(30)
    look(30)
    assert look.supervisor.silent == 60
    assert look.asked() == [BEAT] * 3


def test_the_age_counts_from_the_launch(stand: Supervised) -> None:
    before = (datetime.now(UTC) - timedelta(seconds=290)).isoformat()
    look = Look(stand.launch(stand.local(), launched_at=before))
    assert look() is S.STARTING
    assert look(20) is S.STALLED
    assert 310 <= look.supervisor.age < 330


def test_a_launch_of_a_host_whose_clock_is_ahead(stand: Supervised) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    look = Look(stand.launch(stand.local(), launched_at=ahead))
    assert look(10) is S.STARTING
    assert look.supervisor.age == 10
    assert look(290) is S.STALLED


# --- A store that does not answer ------------------------------------------------------------


def test_a_store_that_does_not_answer_is_no_verdict(stand: Supervised) -> None:
    process = stand.process()
    stand.beat()
    look = Look(stand.launch(stand.local(process)))
    look()
    look.hook.down = True
    killed(process)
    for _ in range(3):
        with pytest.raises(TransientError):
            look(30)
    stand.say()
    look.hook.down = False
    assert look() is S.FINISHED


def test_a_driver_that_is_gone_counts_as_dead_when_the_store_stays_away(
    stand: Supervised,
) -> None:
    process = stand.process()
    stand.beat()
    look = Look(stand.launch(stand.local(process)))
    look()
    look.hook.down = True
    killed(process)
    for _ in range(11):
        with pytest.raises(TransientError):
            look(10)
    assert look(10) is S.DEAD


def test_a_last_word_counts_without_the_heartbeat_beside_it(stand: Supervised) -> None:
    stand.say()
    look = Look(stand.launch(gone(stand)))
    stand.heartbeat_file.mkdir(parents=True)
    assert look() is S.FINISHED


def test_the_stores_silence_does_not_count_while_a_driver_starts(stand: Supervised) -> None:
    """It could not have written its first heartbeat."""
    look = Look(stand.launch(stand.local()))
    assert look() is S.STARTING
    look.hook.down = True
    for _ in range(100):
        with pytest.raises(TransientError):
            look(5)
    look.hook.down = False
    assert look(5) is S.STARTING
    assert look(300) is S.STALLED


def test_a_store_that_is_really_broken_is_no_verdict(stand: Supervised) -> None:
    look = Look(stand.launch(stand.local()))
    stand.heartbeat_file.mkdir(parents=True)
    with pytest.raises(TransientError):
        look(300)
    stand.heartbeat_file.rmdir()
    stand.beat()
    assert look() is S.IDLE


@pytest.mark.parametrize("remote", [False, True])
def test_the_stores_silence_is_not_the_drivers(stand: Supervised, remote: bool) -> None:
    """The driver could write no more than its watcher could read."""
    stand.beat()
    look = Look(stand.launch(stand.remote() if remote else stand.local()))
    look()
    look.hook.down = True
    for _ in range(200):
        with pytest.raises(TransientError):
            look(5)
    look.hook.down = False
    assert look(5) is S.IDLE, "it gets as long as ever to write its next heartbeat"
    assert look.supervisor.silent < 30
    assert look(115 if remote else 595) is (S.DEAD if remote else S.STALLED)


def test_nor_does_a_slow_answer_count(stand: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.beat()
    look = Look(stand.launch(stand.remote()))
    look()
    look.hook.down = True
    original = look.hook.note

    def note(question: str) -> None:
        look.clock.now += 500  # until the client gives up
        original(question)

    monkeypatch.setattr(look.hook, "note", note)
    with pytest.raises(TransientError):
        look()
    monkeypatch.undo()
    look.hook.down = False
    assert look() is S.IDLE


def test_a_store_that_answers_half_is_no_verdict(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat is there, and the evidence that is asked for on suspicion is not."""
    stand.owner()
    stand.beat()
    process = stand.process()
    look = Look(stand.launch(stand.local(process)))
    look()
    killed(process)
    versions = Path(stand.uri, "_versions")
    manifests = {path: path.read_bytes() for path in versions.iterdir()}
    for path in manifests:
        path.write_bytes(b"not a manifest")
    with pytest.raises(TransientError):
        look()
    for path, content in manifests.items():
        path.write_bytes(content)
    assert look() is S.DEAD


# --- Whose query it is -----------------------------------------------------------------------


def test_a_query_that_another_driver_owns(stand: Supervised) -> None:
    stand.owner()
    stand.beat(token=1)
    look = Look(stand.launch(stand.local()))
    assert look() is S.IDLE
    stand.owner(launch_id="other", launched_by="dag/next/run/-1#1")
    assert look(1) is S.IDLE, "while it beats, its own fence tells it"
    assert look(600) is S.FENCED
    assert re.search("dag/next/run/-1#1 .* token 2", look.health.reason)


@pytest.mark.parametrize(
    ("named", "token", "state"),
    [
        ("launch", 1, S.STOPPED),
        ("", 1, S.STOPPED),
        ("launch", None, S.STOPPED),
        ("", None, S.DEAD),
        ("", 7, S.DEAD),
    ],
    ids=["by name", "by token", "before its claim", "nobody we know", "another token"],
)
def test_a_driver_that_was_asked_to_stop_and_killed(
    stand: Supervised, named: str, token: int | None, state: StreamState
) -> None:
    process = stand.process()
    port = stand.owner(here(process)).port
    assert request_stop(port, "flights", by=ME, launch_id=named) == 1
    stand.beat(token=token)
    look = Look(stand.launch(stand.local(process)))
    killed(process)
    assert look() is state
    assert look.health.asked_by == (ME if state is S.STOPPED else None)


def gone(stand: Supervised) -> LocalDriver:
    """Return a driver that has ended."""
    process = stand.process()
    local = stand.local(process)
    killed(process)
    return local


def test_stop_token_without_a_note_is_a_stop_request(stand: Supervised) -> None:
    """The bare token, without a note of who asked, is a request like any other."""
    stand.owner()
    stand.beat(token=1)
    lance.dataset(stand.uri).update_config({"spark.lance.streaming.stop.flights": "1"})
    look = Look(stand.launch(gone(stand)))
    assert look() is S.STOPPED
    assert look.health.asked_by == ""


def test_a_stop_that_was_meant_for_another_launch(stand: Supervised) -> None:
    stand.owner(launch_id="other").release()
    port = stand.owner(launch_id="next").port
    assert request_stop(port, "flights", by="x", launch_id="next") == 2
    stand.beat(token=2)  # as if it shared the token
    look = Look(stand.launch(gone(stand)))
    assert look() is S.DEAD


# --- In a cluster ----------------------------------------------------------------------------


class Cluster(ClusterDriver):
    """A driver whose cluster says that it is gone, and counts how often it is asked."""

    questions = 0

    def alive(self) -> bool | None:
        type(self).questions += 1
        return False


def test_a_cluster_is_not_asked_while_the_driver_beats(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "questions", 0)
    launch = stand.launch(Cluster("yarn", "application_1_2"))
    look = Look(launch)
    stand.beat()
    look()
    assert Cluster.questions == 1, "before the first heartbeat nobody else can tell"
    for _ in range(6):
        stand.beat()
        assert look(10) is S.IDLE
    assert look(19) is S.IDLE
    assert Cluster.questions == 1
    assert look(1) is S.DEAD, "its heartbeat is late, and the cluster says why"
    assert Cluster.questions == 2


def test_what_is_seen_can_be_shown(stand: Supervised) -> None:
    look = Look(stand.launch(stand.local()))
    assert look() is S.STARTING
    assert look.supervisor.heartbeat is None
    stand.beat(uiAddress="http://here:4040")
    look()
    assert look.supervisor.heartbeat
    assert look.supervisor.heartbeat.ui_address == "http://here:4040"
    assert json.dumps(look.supervisor.heartbeat_json)


# --- From look to look -----------------------------------------------------------------------


def watch(launch: Launch, **changes: Any) -> SupervisionLoop:
    fields: dict[str, Any] = {"launch": launch, "task_key": ME, "lance_conn_id": None}
    return SupervisionLoop(SupervisionConfig(**(fields | changes)), logging.getLogger("watch"))


def test_no_error_ends_a_watch(stand: Supervised) -> None:
    """Not even one that nobody foresaw, such as over a summary in a form that is yet to come."""
    stand.beat(state="ended")
    summary = stand.heartbeat_file.with_name("summary.json")
    watching = watch(stand.launch(stand.local()))
    with caught("watch") as said:
        for content in ('{"reason": "eaten"}', '{"reason": "eaten"}', '{"launchId": "x"}'):
            summary.write_text(content)
            assert watching.step() is None
        assert ["cannot be observed" in line for line in said] == [True, True], "once a change"
        assert "SpecError: summary.json of launch" in said[0]
        assert said[0] != said[1]
        stand.say()
        found = watching.step()
        assert found
        assert (found.action, found.state) == (Action.END, S.FINISHED)
        assert "visible again" in said[2]


def test_invalid_summary_of_a_dead_driver_is_an_error_before_it_is_dead(
    stand: Supervised,
) -> None:
    process = stand.process()
    stand.beat()
    look = Look(stand.launch(stand.local(process)))
    look()
    stand.heartbeat_file.with_name("summary.json").write_text('{"reason": "eaten"}')
    killed(process)
    for _ in range(11):
        with pytest.raises(SpecError, match="launchId is"):
            look(10)
    assert look(10) is S.DEAD


def test_no_error_counts_as_the_drivers_silence(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.beat()
    look = Look(stand.launch(stand.remote()))
    look()

    def broken(question: str) -> None:
        raise OverflowError(question)

    with monkeypatch.context() as patch:
        patch.setattr(look.hook, "note", broken)
        for _ in range(20):
            with pytest.raises(OverflowError):
                look(10)
    assert look() is S.IDLE


@pytest.fixture
def moved(stand: Supervised, add_connection: AddConnection) -> Launch:
    """Return a launch whose place is only known to a connection, which leads astray."""
    astray = Path(stand.checkpoint).with_name("astray")
    Path(f"{astray}/checkpoint.reports/launch/heartbeat.json").mkdir(parents=True)
    add_connection("warehouse", conn_type="lance", extra={"base_uri": str(astray)})
    return stand.launch(stand.remote(), uri="flights.lance", checkpoint_location="checkpoint")


def test_connection_is_read_again_when_the_store_cannot_be_read(
    stand: Supervised, moved: Launch, add_connection: AddConnection
) -> None:
    watching = watch(moved, lance_conn_id="warehouse")
    for _ in range(2):
        assert watching.step() is None
        assert watching.health is None, "nothing is to be seen with these"
    stand.beat()
    base = str(Path(stand.checkpoint).parent)
    add_connection("warehouse", conn_type="lance", extra={"base_uri": base})
    wait_for("a look with the new ones", lambda: not watching.step() and bool(watching.health), 5)
    assert watching.health
    assert watching.health.state is S.IDLE


def test_so_are_those_that_ask_it_to_stop(
    stand: Supervised, moved: Launch, add_connection: AddConnection
) -> None:
    stand.owner()
    watching = watch(moved, lance_conn_id="warehouse", deadline=heartbeat()["time"])
    assert watching.step() is None
    assert stand.asked is None
    base = str(Path(stand.checkpoint).parent)
    add_connection("warehouse", conn_type="lance", extra={"base_uri": base})
    wait_for("the request", lambda: not watching.step() and stand.asked is not None, 5)


def test_a_driver_that_could_not_be_asked_at_the_deadline_is_asked_again(
    stand: Supervised, tmp_path: Path
) -> None:
    """It had not made its dataset yet."""
    later = tmp_path / "later.lance"
    stand.beat(token=None)
    launch = stand.launch(stand.remote(), uri=str(later))
    watching = watch(launch, deadline=heartbeat()["time"])
    for _ in range(2):
        assert watching.step() is None
    assert not later.exists()
    Path(stand.uri).rename(later)
    stand.uri = str(later)
    assert watching.step() is None
    assert stand.asked
    assert (stand.asked.token, stand.asked.launch_id) == (1, "launch"), "before its claim"


def test_a_driver_that_stops_for_ever_is_killed(stand: Supervised) -> None:
    process = stand.process()
    stand.beat(state="stopping")
    watching = watch(stand.launch(stand.local(process)), stop_grace=0.3)
    began = time.monotonic()
    while time.monotonic() - began < 10 and not (found := watching.step()):
        time.sleep(0.02)
    assert time.monotonic() - began >= 0.6, "it has twice its grace"
    assert process.wait(10) == -signal.SIGKILL
    assert found
    assert found.state is S.DEAD


def test_one_that_does_not_stop_is_left_alone(stand: Supervised) -> None:
    process = stand.process()
    stand.beat(state="running")
    watching = watch(stand.launch(stand.local(process)), stop_grace=0.1)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        assert watching.step() is None
    assert process.poll() is None


def test_stop_grace_starts_again_when_the_driver_runs_on(stand: Supervised) -> None:
    process = stand.process()
    watching = watch(stand.launch(stand.local(process)), stop_grace=0.3)
    began = time.monotonic()
    states = iter(["stopping", "running"] * 1000)
    while time.monotonic() - began < 1.0:
        stand.beat(state=next(states))
        watching.step()
    assert process.poll() is None


# --- Where nobody can be asked ---------------------------------------------------------------


class Killed(Cluster):
    """A driver in a cluster that can be ended through its API."""

    def kill(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("driver", "dataset", "told"),
    [
        (Killed("yarn", "application_1_2"), False, "killed"),
        (Killed("yarn", "application_1_2"), True, "asked to stop"),
        (UnseenDriver(), False, "found no driver"),
        (UnseenDriver(), True, "asked to stop"),
    ],
)
def test_who_cannot_be_asked_is_killed_in_a_cluster(
    stand: Supervised, driver: Driver, dataset: bool, told: str
) -> None:
    """A query without an owner, too, has a driver that waits for its first rows."""
    uri = stand.uri if dataset else f"{stand.uri}-absent"
    launch = stand.launch(driver, uri=uri)
    assert end_launch(launch, CountingHook(), ME).startswith(told)
    assert (stand.asked is not None) is dataset
