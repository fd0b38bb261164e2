"""LanceStreamTrigger on an event loop, watching real files, datasets and processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest
from airflow.models.trigger import Trigger
from airflow.sdk import serde
from airflow.sdk.configuration import clear_secrets_backends_cache
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.module_loading import import_string
from airflow.serialization.decoders import smart_decode_trigger_kwargs

from airflow_provider_lance.backends.base import Driver
from airflow_provider_lance.backends.launch import ClusterDriver, Launch, UnseenDriver
from airflow_provider_lance.drivers.launch_request import StopSettings
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.protocol.model import StopNote
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.health import Limits, StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy
from airflow_provider_lance.triggers import stream
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import Action, SupervisionOutcome
from tests.support.launches import Launches, end_of
from tests.support.processes import wait_for
from tests.support.supervised import EARLIER_TRY, ME, Supervised, here, killed

from .conftest import SECRET, AddConnection, Shown

S = StreamState


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.end()


@pytest.fixture
def running(stand: Supervised) -> tuple[subprocess.Popen[bytes], LanceStreamTrigger]:
    """Return a driver that owns its query and has no keeper, and its trigger in a task."""
    process = stand.process()
    stand.owner(here(process))
    stand.beat()
    return process, in_task(trigger(stand.launch(stand.local(process))))


Running = tuple[subprocess.Popen[bytes], LanceStreamTrigger]


def order(launch: Launch, **changes: Any) -> SupervisionConfig:
    fields: dict[str, Any] = {
        "launch": launch,
        "task_key": ME,
        "policy": RestartPolicy(most=2, first=0.2, longest=0.2),
        "lance_conn_id": None,
        "poll_interval": 0.05,
        "stop_grace": 20.0,
    }
    return SupervisionConfig(**(fields | changes))


def trigger(launch: Launch, **changes: Any) -> LanceStreamTrigger:
    return LanceStreamTrigger(order=order(launch, **changes).to_json())


async def event_of(waiting: LanceStreamTrigger) -> dict[str, Any]:
    events = [event.payload async for event in waiting.run()]
    assert len(events) == 1, "one event, and then no more"
    json.dumps(events[0])
    return events[0]  # type: ignore[no-any-return]


def watched(
    waiting: LanceStreamTrigger, *meanwhile: Callable[[], object], seconds: float = 30
) -> dict[str, Any]:
    """Run a trigger to its event; before each of the acts it must not have fired."""

    async def run() -> dict[str, Any]:
        event = asyncio.ensure_future(event_of(waiting))
        for act in meanwhile:
            done, _ = await asyncio.wait([event], timeout=0.3)
            assert not done, "fired too early"
            await asyncio.to_thread(act)
        return await asyncio.wait_for(event, seconds)

    return asyncio.run(run())


def outcome(payload: dict[str, Any]) -> SupervisionOutcome:
    return SupervisionOutcome.from_json(payload["outcome"])


# --- Events ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "said", "state"),
    [
        (EndReason.FINISHED, {}, S.FINISHED),
        (EndReason.STOPPED, {"stopped_by": "somebody"}, S.STOPPED),
        (EndReason.FAILED, {"error": "SpecError", "message": "no such source"}, S.FAILED),
        (EndReason.FAILED, {"error": "FencedError", "message": "fenced"}, S.FENCED),
    ],
)
def test_ends_with_the_drivers_last_word(
    stand: Supervised, reason: EndReason, said: dict[str, Any], state: StreamState
) -> None:
    process = stand.process()
    stand.beat()
    made = trigger(stand.launch(stand.local(process)))

    def end() -> None:
        stand.say(reason, **said)
        killed(process)

    payload = watched(made, stand.beat, end)
    assert payload == {
        "outcome": payload["outcome"],
        "order": {**made.order, "rows": 6},
    }, "whoever resumes needs no memory of its own"
    found = outcome(payload)
    assert (found.action, found.state, found.timed_out) == (Action.END, state, False)
    assert found.ended
    assert found.ended["reason"] == reason.value
    assert found.ended["watermark"] == 4


@pytest.mark.parametrize("wait", [0.2, 2.0])
def test_a_lost_driver_is_to_be_replaced_after_a_wait(stand: Supervised, wait: float) -> None:
    process = stand.process()
    stand.beat()
    policy = RestartPolicy(most=2, first=wait, longest=wait)
    made = trigger(
        stand.launch(stand.local(process)),
        policy=policy,
        restarts=RestartHistory(total=3, fruitless=1, step=1, watermark=4),
    )
    since = 0.0

    def kill() -> None:
        nonlocal since
        since = time.monotonic()
        killed(process)

    found = outcome(watched(made, kill))
    took = time.monotonic() - since
    assert (found.action, found.state) == (Action.RESTART, S.DEAD)
    assert wait / 2 <= found.delay <= wait
    assert took >= found.delay, "the wait is over when the event is there"
    assert found.restarts == RestartHistory(total=4, fruitless=2, step=2, watermark=4)


@pytest.mark.parametrize("before", [0, 30])
def test_the_rows_of_a_lost_driver_are_not_forgotten(stand: Supervised, before: int) -> None:
    process = stand.process()
    stand.beat(totalRows=12)
    made = trigger(stand.launch(stand.local(process)), rows=before)
    payload = watched(made, lambda: killed(process))
    assert SupervisionConfig.from_json(payload["order"]).rows == before + 12


def test_not_for_ever(stand: Supervised) -> None:
    process = stand.process()
    stand.beat()
    made = trigger(
        stand.launch(stand.local(process)), restarts=RestartHistory(fruitless=2, watermark=4)
    )
    found = outcome(watched(made, lambda: killed(process)))
    assert (found.action, found.state) == (Action.END, S.DEAD)
    assert "2 restarts without progress" in found.reason


def test_a_stalled_driver_is_to_be_replaced(stand: Supervised) -> None:
    stand.plan(4)
    stand.beat(busySince=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    found = outcome(watched(trigger(stand.launch(stand.local()))))
    assert (found.action, found.state) == (Action.RESTART, S.STALLED)


def test_so_is_one_that_an_earlier_try_asked_to_stop(stand: Supervised) -> None:
    process = stand.process()
    stand.say(EndReason.STOPPED, stopped_by=EARLIER_TRY)
    made = trigger(
        stand.launch(stand.local(process)), policy=RestartPolicy(most=0, first=99, longest=99)
    )
    found = outcome(watched(made, lambda: killed(process)))
    assert (found.action, found.delay) == (Action.RESTART, 0.0)


def test_a_dataset_that_cannot_be_read_says_nothing(stand: Supervised) -> None:
    lance.dataset(stand.uri).update_config(
        {"spark.lance.streaming.owner.flights": json.dumps({"protocol": 99})}
    )
    process = stand.process()
    made = trigger(stand.launch(stand.local(process)))
    found = outcome(watched(made, lambda: killed(process)))
    assert (found.action, found.state) == (Action.RESTART, S.DEAD)


def test_a_connection_that_is_missing_ends_no_stream(
    stand: Supervised, add_connection: AddConnection, shown: Shown
) -> None:
    """Airflow says the same of a secrets backend that does not answer."""
    process = stand.process()
    made = trigger(stand.launch(stand.local(process)), lance_conn_id="warehouse")

    def end() -> None:
        stand.say()
        killed(process)

    def answer() -> None:
        add_connection("warehouse", conn_type="lance")

    assert outcome(watched(made, stand.beat, end, answer)).state is S.FINISHED
    text = shown()
    assert len(re.findall("cannot be observed .*error=SpecError", text)) == 1
    assert "'warehouse'" in text


def test_the_drivers_log_and_progress_are_shown(stand: Supervised, shown: Shown) -> None:
    process = stand.process()
    local = stand.local(process)
    stand.folder.driver_log.write_text("26/11/22 10:00:00 WARN A: shown before\n")
    stand.beat()
    made = trigger(stand.launch(local), tags={"dag_id": "d"})

    def go_on() -> None:
        with stand.folder.driver_log.open("a") as log:
            log.write("26/11/22 10:00:01 INFO A: of no interest\n")
            log.write("26/11/22 10:00:01 WARN A: now it says this\n")
        stand.beat(epoch=5)

    def end() -> None:
        stand.say()
        killed(process)

    watched(made, go_on, end)
    text = shown()
    assert text.count("driver | 26/11/22 10:00:01 WARN A: now it says this") == 1
    assert "shown before" not in text
    assert "of no interest" not in text
    assert "Epoch 5 committed" in text
    assert text.count("Stream idle") == 1, "a state is told once"
    assert text.count("Stream finished") == 1


# --- Travels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "cluster", "unknown"])
def test_serializes_all_it_needs_and_no_secret(
    stand: Supervised, add_connection: AddConnection, where: str
) -> None:
    add_connection("warehouse", conn_type="lance", password=SECRET)
    drivers: dict[str, Driver] = {
        "here": stand.remote(),
        "cluster": ClusterDriver("yarn", "application_1_2"),
        "unknown": UnseenDriver(),
    }
    launch = stand.launch(drivers[where])
    full = order(
        launch,
        limits=Limits(1, 2, 3),
        policy=RestartPolicy(7, 8, 9, 10),
        restarts=RestartHistory(1, 2, 3, 4),
        lance_conn_id="warehouse",
        deadline=datetime.now(UTC).isoformat(),
        tags={"dag_id": "d", "task_id": "t"},
        rows=11,
    )
    made = LanceStreamTrigger(order=full.to_json())
    path, kwargs = made.serialize()
    assert SECRET not in str(kwargs)
    # From the worker to the database, and from there to the triggerer, as Airflow sends it.
    sent = json.loads(json.dumps(serde.serialize(kwargs)))
    kept = Trigger(path, sent).kwargs
    read = {name: smart_decode_trigger_kwargs(value) for name, value in kept.items()}
    again = import_string(path)(**read)
    assert isinstance(again, LanceStreamTrigger)
    assert again.serialize() == (path, kwargs)
    assert SupervisionConfig.from_json(again.order) == full


# --- Patience --------------------------------------------------------------------------------


def test_slow_store_does_not_block_the_triggerer(
    stand: Supervised,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    add_connection: AddConnection,
) -> None:
    stand.beat()
    process = stand.process()
    made = trigger(stand.launch(stand.local(process)), lance_conn_id="warehouse")
    # The connection is read from a pipe, where every reader waits for the writer below.
    pipe, answered, over = tmp_path / "slow.json", threading.Event(), threading.Event()
    os.mkfifo(pipe)
    kwargs = json.dumps({"connections_file_path": str(pipe)})
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", kwargs)
    clear_secrets_backends_cache()

    def answer() -> None:
        while not over.wait(0.01):
            with suppress(OSError):  # nobody reads
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                time.sleep(0 if answered.is_set() else 2)
                os.write(writer, b'{"warehouse": {"conn_type": "lance"}}')
                os.close(writer)
                answered.set()

    async def longest_tick() -> float:
        event = asyncio.ensure_future(event_of(made))
        longest = 0.0
        while not answered.is_set():
            before = time.monotonic()
            await asyncio.sleep(0.02)
            longest = max(longest, time.monotonic() - before)
        stand.say()
        killed(process)
        await asyncio.wait_for(event, 30)
        return longest

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        assert asyncio.run(longest_tick()) < 1.5, "one tick took nearly as long as a look"
    finally:
        over.set()
        answering.join()


def test_a_store_that_does_not_answer_is_asked_again(stand: Supervised, shown: Shown) -> None:
    process = stand.process()
    made = trigger(stand.launch(stand.local(process)))
    stand.heartbeat_file.mkdir(parents=True)  # no read can succeed

    def answer() -> None:
        stand.heartbeat_file.rmdir()
        stand.beat()

    def end() -> None:
        stand.say()
        killed(process)

    found = outcome(watched(made, answer, end))
    assert found.state is S.FINISHED
    text = shown()
    assert text.count("cannot be observed") == 1
    assert text.count("visible again") == 1


def let_go(pipe: Path) -> None:
    """Answer all who wait for a pipe's writer with nothing; nobody waits there again."""
    gone = pipe.with_name("gone")
    pipe.rename(gone)
    deadline = time.monotonic() + 10
    quiet = 0
    while quiet < 10 and time.monotonic() < deadline:
        try:
            os.close(os.open(gone, os.O_WRONLY | os.O_NONBLOCK))
            quiet = 0
        except OSError:  # nobody reads
            quiet += 1
            time.sleep(0.01)


def test_looks_that_hang_hold_up_neither_airflow_nor_a_user(
    stand: Supervised, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow writes each trigger's log in asyncio's few threads, before it sends its event."""
    tell_states(monkeypatch, "failed")
    pipe = stand.heartbeat_file
    pipe.unlink()
    os.mkfifo(pipe)
    made = [trigger(stand.launch(stand.local()), poll_interval=600) for _ in range(32)]

    async def run() -> None:
        looks = [asyncio.ensure_future(event_of(each)) for each in made]
        try:
            done, _ = await asyncio.wait(looks, timeout=0.5)
            assert not done
            async with asyncio.timeout(15):
                await asyncio.to_thread(int)
                await running[1].on_kill()
            assert_asked(stand, by=ME)
        finally:
            for look in looks:
                look.cancel()
            let_go(pipe)
            await asyncio.gather(*looks, return_exceptions=True)

    asyncio.run(run())


# --- A deadline ------------------------------------------------------------------------------


def soon(seconds: float = 0.5) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_past_its_deadline_a_stream_is_asked_to_stop(stand: Supervised) -> None:
    process = stand.process()
    stand.owner(here(process))
    stand.beat()
    made = trigger(stand.launch(stand.local(process)), deadline=soon())

    def obey() -> None:
        """Play a driver that sees the request."""
        wait_for("the request", lambda: stand.asked is not None, 20)
        stand.say(EndReason.STOPPED, stopped_by=stand.asked.by if stand.asked else "nobody")
        killed(process)

    found = outcome(watched(made, obey))
    assert_asked(stand, by=ME)
    assert (found.action, found.timed_out) == (Action.END, True)
    assert found.state is S.STOPPED
    assert "timed out at" in found.reason


def test_one_that_does_not_obey_has_its_grace(stand: Supervised) -> None:
    process = stand.process()
    stand.owner(here(process))
    stand.beat()
    made = trigger(stand.launch(stand.local(process)), deadline=soon(0), stop_grace=1.0)
    began = time.monotonic()
    found = outcome(watched(made))
    assert time.monotonic() - began >= 1.0
    assert (found.action, found.timed_out) == (Action.END, True)
    assert process.poll() is None, "whoever resumes kills it"
    assert_asked(stand, by=ME)


def test_a_deadline_that_is_not_over_means_nothing(stand: Supervised) -> None:
    process = stand.process()
    stand.owner(here(process))
    stand.beat()
    made = trigger(stand.launch(stand.local(process)), deadline=soon(600))
    found = outcome(watched(made, lambda: killed(process)))
    assert (found.action, found.timed_out) == (Action.RESTART, False)
    assert stand.asked is None


def test_past_its_deadline_nothing_is_restarted(stand: Supervised) -> None:
    process = stand.process()
    local = stand.local(process)
    killed(process)
    found = outcome(watched(trigger(stand.launch(local), deadline=soon(0))))
    assert (found.action, found.state, found.timed_out) == (Action.END, S.DEAD, True)


def test_a_store_that_is_away_at_the_deadline_is_asked_again(stand: Supervised) -> None:
    process = stand.process()
    stand.owner(here(process))
    stand.beat()
    versions = Path(stand.uri, "_versions")
    manifests = {path: path.read_bytes() for path in versions.iterdir()}
    for path in manifests:
        path.write_bytes(b"not a manifest")

    def answer() -> None:
        for path, content in manifests.items():
            path.write_bytes(content)

    def obey() -> None:
        wait_for("the request", lambda: stand.asked is not None, 10)
        stand.say(EndReason.STOPPED, stopped_by=ME)
        killed(process)

    made = trigger(stand.launch(stand.local(process)), deadline=soon(0))
    assert outcome(watched(made, answer, obey)).state is S.STOPPED
    assert_asked(stand, by=ME)


def test_a_stream_that_finished_in_time_did_not_time_out(stand: Supervised) -> None:
    """Nobody looked at it for long, as when the triggerer was down."""
    process = stand.process()
    local = stand.local(process)
    stand.say()
    killed(process)
    found = outcome(watched(trigger(stand.launch(local), deadline=soon(0))))
    assert (found.state, found.timed_out) == (S.FINISHED, False)


# --- The user ends the task ------------------------------------------------------------------


def assert_asked(stand: Supervised, *, by: str) -> None:
    """Look for a request to exactly this launch, as it stands in the dataset's config."""
    config = lance.dataset(stand.uri).config()
    assert config["spark.lance.streaming.stop.flights"] == "1"
    note = json.loads(config["spark.lance.streaming.stopNote.flights"])
    assert (note["token"], note["launchId"], note["by"]) == (1, stand.launch_id, by)
    assert stand.asked == StopNote(1, stand.launch_id, by, note["time"])


def assert_not_asked(stand: Supervised) -> None:
    config = lance.dataset(stand.uri).config()
    assert not [key for key in config if "streaming.stop" in key]


def in_task(made: LanceStreamTrigger) -> LanceStreamTrigger:
    made.task_instance = SimpleNamespace(  # type: ignore[assignment]
        dag_id="dag", task_id="stream", run_id="run", map_index=-1
    )
    return made


def tell_states(monkeypatch: pytest.MonkeyPatch, *states: str) -> list[dict[str, Any]]:
    """Let Airflow answer with these states of the task; return what it was asked."""
    questions: list[dict[str, Any]] = []

    def get_task_states(**which: Any) -> dict[str, dict[str, str]]:
        questions.append(which)
        return {"run": {f"stream_{number}": state for number, state in enumerate(states)}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    return questions


def killed_by_user(made: LanceStreamTrigger, *, on_kill: bool = True, cleanup: bool = True) -> None:
    """Cancel a running trigger the way Airflow's triggerer does."""

    async def run() -> None:
        running = asyncio.ensure_future(event_of(made))
        await asyncio.wait([running], timeout=0.3)
        assert not running.done()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        if on_kill:
            await asyncio.wait_for(made.on_kill(), 30)
        if cleanup:
            await made.cleanup()

    asyncio.run(run())


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "upstream_failed"])
def test_a_user_who_ends_the_task_stops_its_driver(
    stand: Supervised, running: Running, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    process, made = running
    questions = tell_states(monkeypatch, state)
    killed_by_user(made)
    assert_asked(stand, by=ME)
    assert process.poll() is None, "asked, not killed"
    assert questions == [
        {"dag_id": "dag", "task_ids": ["stream"], "run_ids": ["run"], "map_index": -1}
    ]


@pytest.mark.parametrize(
    "states",
    [
        ["deferred"],
        ["scheduled"],
        ["queued"],
        ["running"],
        ["restarting"],
        ["up_for_retry"],
        ["up_for_reschedule"],
        ["None"],
        ["deferred", "failed"],
    ],
    ids="-".join,
)
def test_a_task_that_goes_on_keeps_its_driver(
    stand: Supervised,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    shown: Shown,
    states: list[str],
) -> None:
    """Another triggerer, the worker that it fired for, or the next try sees to the driver."""
    tell_states(monkeypatch, *states)
    killed_by_user(running[1])
    assert_not_asked(stand)
    assert running[0].poll() is None
    assert "driver keeps running" in shown()


def test_a_task_whose_run_was_deleted_has_ended(
    stand: Supervised, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_states(monkeypatch)
    killed_by_user(running[1])
    assert_asked(stand, by=ME)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ON_KILL_PATIENCE", (0.05, 0.1, 0.2))


def test_an_airflow_that_does_not_answer_is_asked_again(
    stand: Supervised, running: Running, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    questions = tell_states(monkeypatch, "failed")
    answer, missed = RuntimeTaskInstance.get_task_states, []

    def get_task_states(**which: Any) -> Any:
        if len(missed) < 2:
            missed.append(which)
            raise ConnectionError("the API server is being restarted")
        return answer(**which)

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    killed_by_user(running[1])
    assert (len(missed), len(questions)) == (2, 1)
    assert_asked(stand, by=ME)


def test_an_airflow_that_never_answers_ends_no_stream(
    stand: Supervised, running: Running, impatient: None, shown: Shown
) -> None:
    killed_by_user(running[1])  # there is no Airflow to ask
    assert_not_asked(stand)
    text = shown()
    assert text.count("could not be asked") == 3
    assert "was not asked" in text
    assert str(stand.folder.path) in text, "it says where the driver is"


def test_a_trigger_that_ends_with_its_triggerer_asks_nothing(
    stand: Supervised, running: Running
) -> None:
    killed_by_user(running[1], on_kill=False)
    assert_not_asked(stand)
    assert running[0].poll() is None


def test_another_launch_is_never_asked(
    stand: Supervised, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new try may have its own driver before the old try's trigger is told of its end."""
    tell_states(monkeypatch, "failed")
    following = stand.owner(launch_id="next", launched_by=ME)
    killed_by_user(running[1])
    assert stand.asked
    assert stand.asked.launch_id == stand.launch_id, "nobody else is named"
    assert following.stop_requested(poll=True) is None
    assert running[0].poll() is None


def test_a_keeper_is_told_where_there_is_one(
    stand: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_states(monkeypatch, "failed")
    launches = Launches(tmp_path / "streams")
    try:
        driver = launches.shell(
            "sleep 300", grace=5.0, stop=StopSettings(stand.uri, "flights", "launch")
        )
        stand.owner(driver.driver)
        stand.beat()
        killed_by_user(in_task(trigger(stand.launch(driver))))
        wait_for("the request", lambda: stand.asked is not None, 20)
        assert_asked(stand, by=ME)
        assert end_of(driver) == -9, "its grace is seen to, after the trigger is gone"
    finally:
        launches.end()


def test_a_store_that_is_away_does_not_raise(
    stand: Supervised,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    impatient: None,
    shown: Shown,
) -> None:
    tell_states(monkeypatch, "failed")
    for path in Path(stand.uri, "_versions").iterdir():
        path.write_bytes(b"not a manifest")
    killed_by_user(running[1])
    text = shown()
    assert "could not be asked" in text
    assert str(stand.folder.path) in text, "it says where the driver is"


def test_a_driver_that_has_made_no_dataset_has_nothing_to_be_asked(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    tell_states(monkeypatch, "failed")
    stand.beat()
    absent = stand.launch(stand.remote(), uri=f"{stand.uri}-absent")
    killed_by_user(in_task(trigger(absent)))
    assert not Path(absent.uri).exists()
    assert "found no driver" in shown()


def test_a_driver_without_a_place_is_asked_too(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_states(monkeypatch, "failed")
    stand.owner()
    stand.beat()
    killed_by_user(in_task(trigger(stand.launch())))
    assert_asked(stand, by=ME)


def test_a_driver_that_waits_for_its_first_rows_is_asked_too(
    stand: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in a cluster, the query's last driver is dead, and no keeper can be told."""
    tell_states(monkeypatch, "failed")
    stand.owner(launch_id="dead")
    stand.beat(token=None)
    killed_by_user(in_task(trigger(stand.launch(stand.remote()))))
    assert stand.asked
    assert (stand.asked.token, stand.asked.launch_id, stand.asked.by) == (2, "launch", ME)


def test_the_driver_here_is_a_local_one(stand: Supervised) -> None:
    """What the tests above stand on: no keeper, and a driver that is seen."""
    local = stand.local()
    assert isinstance(local, LocalDriver)
    assert local.alive() is True
    assert local.keeper.alive() is False
