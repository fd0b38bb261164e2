"""LanceStreamStopOperator against drivers that obey, have gone, or do neither."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.module_loading import import_string

from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.operators.stop import LanceStreamStopOperator
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.triggers.stop import LanceStopTrigger, Stopping
from tests.support.processes import wait_for
from tests.support.supervised import ELSEWHERE, CountingHook, Supervised, here, killed

from .conftest import SECRET, AddConnection, Shown, Stream, TaskInstance

CONTEXT: Any = {"ti": TaskInstance(try_number=3)}
BY = "dag/stream/run/-1#3"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.end()


def operator(uri: str, **changes: Any) -> LanceStreamStopOperator:
    arguments: dict[str, Any] = {
        "task_id": "stop",
        "uri": uri,
        "query_id": "flights",
        "lance_conn_id": None,
        "stop_grace": timedelta(seconds=30),
        "poll_interval": 0.05,
    }
    return LanceStreamStopOperator(**(arguments | changes))


def run(task: LanceStreamStopOperator) -> dict[str, Any]:
    return task.execute(CONTEXT)


async def event_of(trigger: LanceStopTrigger) -> dict[str, Any]:
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    return json.loads(json.dumps(events[0]))  # type: ignore[no-any-return]


def deferred(task: LanceStreamStopOperator) -> dict[str, Any]:
    """Run a task that may defer, as Airflow does: in a triggerer, then in a new process."""
    task.deferrable = True
    try:
        return task.execute(CONTEXT)
    except TaskDeferred as defer:
        path, kwargs = defer.trigger.serialize()
        trigger = import_string(path)(**json.loads(json.dumps(kwargs)))
        event = asyncio.run(asyncio.wait_for(event_of(trigger), 60))
        resumed = operator(task.uri, stop_grace=task.stop_grace)
        return getattr(resumed, defer.method_name)(CONTEXT, event=event)  # type: ignore[no-any-return]


both = pytest.mark.parametrize("run", [run, deferred])


def obey(committer: DriverSession) -> threading.Thread:
    """Play an idle driver that sees the request and releases."""

    def poll() -> None:
        wait_for("the request", lambda: committer.stop_requested(poll=True) is not None, 20)
        assert committer.release()

    thread = threading.Thread(target=poll)
    thread.start()
    return thread


# --- Nothing to stop -------------------------------------------------------------------------


@both
def test_a_dataset_that_does_not_exist_fails_the_task(tmp_path: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="DatasetNotFoundError"):
        run(operator(f"{tmp_path}/absent.lance"))
    assert not Path(tmp_path, "absent.lance").exists()


@both
def test_a_query_that_does_not_exist_fails_the_task(stand: Supervised, run: Run) -> None:
    stand.owner()
    before = lance.dataset(stand.uri).version
    with pytest.raises(AirflowFailException, match=r"^SpecError: .*'flihgts'.*\['flights'\]"):
        run(operator(stand.uri, query_id="flihgts"))
    assert lance.dataset(stand.uri).version == before
    assert stand.asked is None


def test_waits_for_a_query_that_is_missing_if_it_is_asked_to(
    tmp_path: Path, dataset: str, shown: Shown
) -> None:
    task = operator(dataset, on_missing="wait")
    streams: list[Stream] = []

    def begin() -> None:
        text = ""

        def waiting() -> bool:
            nonlocal text
            text += shown()
            return "Waiting for the query's first epoch." in text

        wait_for("the wait", waiting, 60)
        stream = Stream(dataset)
        stream.commit(0)
        stream.release()
        streams.append(stream)

    beginning = threading.Thread(target=begin)
    beginning.start()
    result = run(task)
    beginning.join()
    assert streams
    assert (result["state"], result["watermark"]) == ("released", 0)


def test_waits_in_the_triggerer_for_a_query_that_is_missing(dataset: str) -> None:
    task = operator(dataset, on_missing="wait", deferrable=True)
    with pytest.raises(TaskDeferred) as defer:
        task.execute(CONTEXT)
    assert defer.value.method_name == "execute_appeared"
    path, kwargs = defer.value.trigger.serialize()
    trigger = import_string(path)(**json.loads(json.dumps(kwargs)))
    stream = Stream(dataset)
    stream.commit(0)
    stream.release()
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 60))
    result = operator(dataset, on_missing="wait").execute_appeared(CONTEXT, event)
    assert (result["state"], result["watermark"]) == ("released", 0)


def test_a_wait_for_a_query_that_cannot_be_read_is_not_retried(dataset: str) -> None:
    event = {"status": "error", "error": "ProtocolVersionError", "message": "newer"}
    with pytest.raises(AirflowFailException, match="ProtocolVersionError"):
        operator(dataset).execute_appeared(CONTEXT, event)


@both
def test_a_query_that_is_released_already(stand: Supervised, run: Run) -> None:
    stand.owner().release()
    result = run(operator(stand.uri))
    assert (result["state"], result["watermark"]) == ("released", 0)


# --- The driver ends -------------------------------------------------------------------------


@both
def test_a_driver_that_obeys(stand: Supervised, run: Run) -> None:
    obeying = obey(stand.owner())
    try:
        result = run(operator(stand.uri))
    finally:
        obeying.join()
    assert (result["state"], result["token"], result["watermark"]) == ("released", 1, 0)
    assert result["version"] == lance.dataset(stand.uri).version
    owner = stand.state.owner
    assert owner
    assert owner.state is OwnerState.RELEASED


@both
def test_the_request_is_signed(stand: Supervised, run: Run) -> None:
    committer = stand.owner()
    seen = []

    def watch() -> None:
        wait_for("the request", lambda: stand.asked is not None, 20)
        seen.append(stand.asked)
        committer.release()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        run(operator(stand.uri))
    finally:
        watching.join()
    [note] = seen
    assert note
    assert (note.token, note.launch_id, note.by) == (1, "", BY)


@both
def test_a_driver_that_is_gone(stand: Supervised, run: Run) -> None:
    process = stand.process()
    stand.owner(here(process))
    killed(process)
    began = time.monotonic()
    result = run(operator(stand.uri, stop_grace=timedelta(minutes=1)))
    assert time.monotonic() - began < 50, "nobody is waited for"
    assert (result["state"], result["token"], result["watermark"]) == ("gone", 1, 0)
    assert stand.asked, "the request stands, in case it was only out of sight"


@both
def test_a_driver_out_of_sight_that_has_said_its_last_word(stand: Supervised, run: Run) -> None:
    """It ended without a release, as after an epoch that hung."""
    stand.owner(ELSEWHERE)
    stand.say(EndReason.STOPPED, released=False)
    began = time.monotonic()
    result = run(operator(stand.uri, stop_grace=timedelta(minutes=1)))
    assert time.monotonic() - began < 50, "nobody is waited for"
    assert (result["state"], result["token"]) == ("gone", 1)


@both
def test_a_driver_that_a_newer_one_fences(stand: Supervised, run: Run) -> None:
    process = stand.process()
    stand.owner(here(process))

    def fence() -> None:
        wait_for("the request", lambda: stand.asked is not None, 20)
        stand.owner(here(stand.process()), launch_id="next")

    fencing = threading.Thread(target=fence)
    fencing.start()
    began = time.monotonic()
    try:
        result = run(operator(stand.uri, stop_grace=timedelta(minutes=1)))
    finally:
        fencing.join()
    assert time.monotonic() - began < 50, "as soon as it is seen"
    assert (result["state"], result["token"]) == ("gone", 1)
    assert process.poll() is None, "who has been asked is not killed before its time"


@both
def test_a_driver_that_goes_while_it_is_waited_for(stand: Supervised, run: Run) -> None:
    process = stand.process()
    stand.owner(here(process))

    def die() -> None:
        wait_for("the request", lambda: stand.asked is not None, 20)
        killed(process)

    dying = threading.Thread(target=die)
    dying.start()
    try:
        assert run(operator(stand.uri))["state"] == "gone"
    finally:
        dying.join()


# --- The driver does not end -----------------------------------------------------------------

HURRIED = timedelta(seconds=0.5)


@both
def test_a_driver_here_is_killed_when_its_grace_is_over(
    stand: Supervised, shown: Shown, run: Run
) -> None:
    process = stand.process("sh", "-c", "sleep 300 & wait")
    stand.owner(here(process))
    began = time.monotonic()
    result = run(operator(stand.uri, stop_grace=HURRIED))
    assert time.monotonic() - began >= 0.5
    assert (result["state"], result["token"], result["watermark"]) == ("killed", 1, 0)
    assert process.wait(10) == -9
    assert f"killed. pid={process.pid}" in shown()


@both
def test_only_exactly_that_process_is_killed(stand: Supervised, run: Run) -> None:
    """The pid is another process's by now."""
    process = stand.process()
    stand.owner(replace(here(process), start=f"{here(process).start}0"))
    assert run(operator(stand.uri, stop_grace=HURRIED))["state"] == "gone"
    assert process.poll() is None


@both
@pytest.mark.parametrize(
    "place", [ELSEWHERE, ProcessIdentity("", 0, "")], ids=["another host", "an older record"]
)
def test_a_driver_out_of_reach_fails_the_task(
    stand: Supervised, run: Run, place: ProcessIdentity
) -> None:
    stand.owner(place)
    with pytest.raises(TransientError) as raised:
        run(operator(stand.uri, stop_grace=HURRIED))
    text = str(raised.value)
    assert f"pid {place.pid} on host {place.host!r}" in text
    assert "token 1" in text
    assert stand.asked, "the request stands"


@pytest.mark.parametrize(
    ("end", "state"), [("release", "released"), ("fence", "gone"), ("die", "gone")]
)
def test_a_driver_that_came_to_its_end_while_the_task_waited_for_a_worker(
    stand: Supervised, end: str, state: str
) -> None:
    process = stand.process()
    committer = stand.owner(here(process))
    task = operator(stand.uri, stop_grace=HURRIED, deferrable=True)
    with pytest.raises(TaskDeferred) as defer:
        task.execute(CONTEXT)
    trigger = defer.value.trigger
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 60))
    assert event["state"] == "overdue"
    match end:
        case "release":
            committer.release()
        case "fence":
            stand.owner(here(stand.process()), launch_id="next")
    killed(process)
    assert task.execute_complete(CONTEXT, event)["state"] == state


# --- What may go wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_id": "not a query id"}, "queryId 'not a query id'"),
        ({"uri": ""}, "uri must be"),
        ({"uri": "relative"}, "relative name"),
        ({"stop_grace": timedelta(0)}, "stop_grace must be"),
        ({"stop_grace": 60}, "stop_grace must be .*60"),
        ({"poll_interval": 0}, "poll_interval must be"),
        ({"on_missing": "ignore"}, "on_missing must be 'wait' or 'fail'"),
    ],
)
def test_a_mistake_is_told_when_the_dag_is_parsed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        operator(**({"uri": "/data/flights.lance"} | changes))


@both
@pytest.mark.parametrize("changes", [{"query_id": "not a query id"}, {"uri": "relative"}])
def test_a_template_that_makes_a_mistake_is_not_retried(
    stand: Supervised, changes: dict[str, Any], run: Run
) -> None:
    task = operator(stand.uri)
    for name, value in changes.items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException, match="SpecError"):
        run(task)


@both
def test_a_dataset_of_a_newer_protocol_is_not_retried(stand: Supervised, run: Run) -> None:
    lance.dataset(stand.uri).update_config(
        {"spark.lance.streaming.owner.flights": json.dumps({"protocol": 99})}
    )
    with pytest.raises(AirflowFailException, match="ProtocolVersionError"):
        run(operator(stand.uri))


def test_what_the_trigger_could_not_mend_is_not_retried(stand: Supervised) -> None:
    stand.owner(here(stand.process()))
    with pytest.raises(TaskDeferred) as defer:
        operator(stand.uri, deferrable=True).execute(CONTEXT)
    lance.dataset(stand.uri).update_config(
        {"spark.lance.streaming.owner.flights": json.dumps({"protocol": 99})}
    )
    trigger = defer.value.trigger
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 60))
    assert event["error"] == "ProtocolVersionError"
    with pytest.raises(AirflowFailException, match="ProtocolVersionError"):
        operator(stand.uri).execute_complete(CONTEXT, event)


@both
def test_a_store_that_is_away_when_it_is_to_be_asked(stand: Supervised, run: Run) -> None:
    stand.owner()
    for path in Path(stand.uri, "_versions").iterdir():
        path.write_bytes(b"not a manifest")
    with pytest.raises(TransientError):
        run(operator(stand.uri))


def test_a_store_that_is_away_while_it_is_waited_for(stand: Supervised, shown: Shown) -> None:
    committer = stand.owner(here(stand.process()))
    task, hook = operator(stand.uri), CountingHook()
    task.hook = hook
    failures = 0
    original = hook.note

    def note(question: str) -> None:
        nonlocal failures
        if stand.asked and failures < 3:
            failures += 1
            hook.down = failures < 3
            if failures == 3:
                committer.release()
        original(question)

    hook.note = note  # type: ignore[method-assign]
    assert run(task)["state"] == "released"
    assert shown().count("did not answer") == 2


def test_the_trigger_asks_a_store_that_is_away_again(stand: Supervised) -> None:
    committer = stand.owner(here(stand.process()))
    with pytest.raises(TaskDeferred) as defer:
        operator(stand.uri, deferrable=True).execute(CONTEXT)
    versions = Path(stand.uri, "_versions")
    manifests = {path: path.read_bytes() for path in versions.iterdir()}
    for path in manifests:
        path.write_bytes(b"not a manifest")
    trigger = defer.value.trigger

    async def wait() -> dict[str, Any]:
        event = asyncio.ensure_future(event_of(trigger))
        done, _ = await asyncio.wait([event], timeout=0.3)
        assert not done
        for path, content in manifests.items():
            path.write_bytes(content)
        await asyncio.to_thread(committer.release)
        return await asyncio.wait_for(event, 30)

    assert asyncio.run(wait())["state"] == "released"


def test_the_trigger_does_not_block(stand: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.owner(here(stand.process()))
    with pytest.raises(TaskDeferred) as defer:
        operator(stand.uri, deferrable=True, stop_grace=HURRIED).execute(CONTEXT)
    trigger = defer.value.trigger
    threads = set()
    look = Stopping.look

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return look(*arguments)

    monkeypatch.setattr(Stopping, "look", noted)
    assert asyncio.run(asyncio.wait_for(event_of(trigger), 30))["state"] == "overdue"
    assert threads
    assert threading.main_thread() not in threads


def test_a_task_that_is_ended_leaves_the_request(stand: Supervised) -> None:
    process: subprocess.Popen[bytes] = stand.process()
    stand.owner(here(process))
    task = operator(stand.uri, poll_interval=60)

    def end() -> None:
        with suppress(AssertionError):
            wait_for("the request", lambda: stand.asked is not None, 20)
        task.on_kill()

    ending = threading.Thread(target=end)
    ending.start()
    began = time.monotonic()
    try:
        with pytest.raises(AirflowException, match="request stands"):
            run(task)
    finally:
        ending.join()
    assert time.monotonic() - began < 30, "within the wait, not after it"
    assert stand.asked
    assert process.poll() is None


def test_serializes_no_secret(stand: Supervised, add_connection: AddConnection) -> None:
    add_connection("warehouse", conn_type="lance", password=SECRET)
    stand.owner(here(stand.process()))
    task = operator(stand.uri, lance_conn_id="warehouse", deferrable=True, poll_interval=7.0)
    with pytest.raises(TaskDeferred) as defer:
        task.execute(CONTEXT)
    path, kwargs = defer.value.trigger.serialize()
    assert SECRET not in str(kwargs)
    assert kwargs["stopping"]["lanceConnId"] == "warehouse"
    assert kwargs["poll_interval"] == 7.0
    again = import_string(path)(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == (path, kwargs)
