"""One stream, several tries and processes: found again, launched anew, waited for elsewhere."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers import local as launch_module
from airflow_provider_lance.drivers.launch_request import HOST_SHUTDOWN
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.exceptions import LanceStreamError, TransientError
from airflow_provider_lance.operators import driver as driver_module
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, StopNote, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    new_launch_id,
    report_location,
    write_heartbeat,
    write_summary,
)
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.supervision.restart_policy import RestartHistory
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import Action, SupervisionOutcome
from tests.support.processes import wait_for
from tests.support.supervised import ELSEWHERE, heartbeat
from tests.support.supervised import summary as last_word

from .conftest import (
    SECRET,
    AddConnection,
    Shown,
    SparkOn,
    SparkSubmit,
    TaskInstance,
    supervised,
)


class Store:
    """Airflow's task state as a task sees it: plain values under keys."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.history: list[Any] = []

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        assert retention > timedelta(days=30)
        self.values[key] = json.dumps(value)
        self.history.append(self.get(key))


@pytest.fixture
def store() -> Store:
    return Store()


def operator(tmp_path: Path, **changes: Any) -> LanceStreamOperator:
    arguments = {
        "task_id": "stream",
        "uri": str(tmp_path / "flights.lance"),
        "query_id": "flights",
        "checkpoint_location": str(tmp_path / "checkpoint"),
        "source": {"format": "rate"},
        "trigger": "1 second",
        "deferrable": False,
        "lance_conn_id": None,
        "poll_interval": 0.05,
        "stop_grace": timedelta(seconds=1),
        "restart_delay": timedelta(milliseconds=50),
    }
    return LanceStreamOperator(**supervised(**(arguments | changes)))


def context(store: Store | None, try_number: int = 1, max_tries: int = 1) -> Any:
    given = {"ti": TaskInstance(try_number, max_tries)}
    return given if store is None else {**given, "task_state_store": store}


@contextmanager
def an_earlier_try(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store | None, **changes: Any
) -> Iterator[int]:
    """Leave a driver behind as a try does whose process is gone; yield the driver's pid."""
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={"watermark": 7}, hang=True)
    watcher = threading.Thread(
        target=lambda: operator(tmp_path, **changes).execute(context(store)), daemon=True
    )
    watcher.start()
    wait_for("the first driver", lambda: spark_submit.ran)
    try:
        yield spark_submit.notes["pid"]
    finally:
        spark_submit.let_go()
        watcher.join(30)
        assert not watcher.is_alive()


def test_a_retry_finds_the_driver_again(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store, shown: Shown
) -> None:
    with an_earlier_try(tmp_path, spark_submit, store) as pid:
        spark_submit.orders(summary={"watermark": 99})
        threading.Timer(0.5, spark_submit.let_go).start()
        summary = operator(tmp_path).execute(context(store, try_number=2))
    assert summary["watermark"] == 7, "the first driver's own summary"
    assert not spark_submit.ran, "no second driver"
    assert f"driver again. where=pid {pid}" in shown()


def test_a_driver_is_noted_before_it_is_started(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store
) -> None:
    """A try that dies right after the start has not lost its driver."""
    with an_earlier_try(tmp_path, spark_submit, store):
        noted = store.get("lance_stream")
        noted["launch"]["process"] = None  # what the store held in that moment
        store.set("lance_stream", noted, retention=timedelta(days=31))
        spark_submit.orders(summary={"watermark": 99})
        threading.Timer(0.5, spark_submit.let_go).start()
        assert operator(tmp_path).execute(context(store, 2))["watermark"] == 7


def own(tmp_path: Path, dataset: str, launched_by: str, launch_id: str) -> None:
    """Write the owner record that a launch's driver would have written."""
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"), "checkpoint-id")
    committer = DriverSession(open_dataset(dataset), "flights", checkpoint)
    committer.prepare()
    committer.identify(
        Driver(
            run_id="run",
            checkpoint_id="checkpoint-id",
            checkpoint_location=checkpoint.location,
            launch_id=launch_id,
            launched_by=launched_by,
        )
    )
    committer.claim(0)


@pytest.mark.parametrize(
    ("launched_by", "found"),
    [("dag/stream/run/-1#1", True), ("dag/stream/another run/-1#1", False)],
)
def test_without_task_state_the_owner_record_tells(
    launched_by: str, found: bool, tmp_path: Path, dataset: str, spark_submit: SparkSubmit
) -> None:
    with an_earlier_try(tmp_path, spark_submit, None, query_id="flights"):
        own(tmp_path, dataset, launched_by, spark_submit.notes["spec"]["launchId"])
        spark_submit.orders(summary={"watermark": 99})
        threading.Timer(0.5, spark_submit.let_go).start()
        summary = operator(tmp_path).execute(context(None, try_number=2))
    assert summary["watermark"] == (7 if found else 99)
    assert spark_submit.ran is not found


@pytest.mark.parametrize(
    ("changes", "max_tries", "why"),
    [({}, 2, "was cleared"), ({"sql": "SELECT 1"}, 1, "its arguments changed")],
)
def test_a_clear_or_a_change_replaces_the_driver(
    changes: dict[str, Any],
    max_tries: int,
    why: str,
    tmp_path: Path,
    spark_submit: SparkSubmit,
    store: Store,
    shown: Shown,
) -> None:
    spark_submit.orders(heartbeats=[{"state": "running"}], summary=None, hang=True)
    first = threading.Thread(target=_quietly(operator(tmp_path), context(store)), daemon=True)
    first.start()
    wait_for("the first driver", lambda: spark_submit.ran)
    pid = spark_submit.notes["pid"]
    spark_submit.orders(summary={"watermark": 99})
    again = operator(tmp_path, **changes)
    # This one ignores the request and is killed after its grace: an unasked end, so a restart.
    summary = again.execute(context(store, 2, max_tries))
    assert summary["watermark"] == 99
    assert not Path(f"/proc/{pid}").exists()
    assert why in shown()
    first.join(30)


def _quietly(task: LanceStreamOperator, given: Any) -> Any:
    def execute() -> None:
        with suppress(LanceStreamError, AirflowFailException):
            task.execute(given)

    return execute


def test_a_successful_task_that_is_cleared_streams_on(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store
) -> None:
    operator(tmp_path).execute(context(store))
    spark_submit.orders(summary={"watermark": 8})
    assert operator(tmp_path).execute(context(store, 2, 2))["watermark"] == 8
    assert spark_submit.ran


def test_a_dead_driver_is_replaced_within_bounds(
    tmp_path: Path, spark_submit: SparkSubmit, shown: Shown
) -> None:
    spark_submit.orders(summary=None, exit=1)
    with pytest.raises(TransientError, match="2 restarts without progress"):
        operator(tmp_path, max_restarts=2).execute(context(None))
    said = shown()
    assert said.count("Launched.") == 3
    assert "restart=2 of at most 2 without progress" in said


def test_a_bounded_stream_leaves_restarts_to_airflow(
    tmp_path: Path, spark_submit: SparkSubmit, shown: Shown
) -> None:
    spark_submit.orders(summary=None, exit=1)
    with pytest.raises(TransientError):
        operator(tmp_path, trigger="availableNow").execute(context(None))
    assert shown().count("Launched.") == 1


def test_a_terminal_error_is_not_restarted(tmp_path: Path, spark_submit: SparkSubmit) -> None:
    ended = {"reason": "failed", "error": "CheckpointMismatchError", "message": "another one"}
    spark_submit.orders(summary=ended, exit=1)
    with pytest.raises(AirflowFailException, match="CheckpointMismatchError: another one"):
        operator(tmp_path).execute(context(None))


def deferred(task: LanceStreamOperator, given: Any) -> LanceStreamTrigger:
    with pytest.raises(TaskDeferred) as waiting:
        task.execute(given)
    assert waiting.value.method_name == "execute_complete"
    assert isinstance(waiting.value.trigger, LanceStreamTrigger)
    return waiting.value.trigger


def test_waits_in_the_triggerer_once_the_driver_has_started(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store
) -> None:
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={}, hang=True)
    trigger = deferred(operator(tmp_path, deferrable=True), context(store))
    order = SupervisionConfig.from_json(json.loads(json.dumps(trigger.serialize()[1]["order"])))
    assert order.launch.driver.alive()
    assert order.launch == Launch.from_json(store.get("lance_stream")["launch"])
    spark_submit.let_go()
    wait_for("its end", lambda: not order.launch.driver.alive())


def test_a_driver_that_refuses_at_its_start_fails_in_the_worker(
    tmp_path: Path, spark_submit: SparkSubmit
) -> None:
    ended = {"reason": "failed", "error": "SpecError", "message": "no such source"}
    spark_submit.orders(summary=ended, exit=1)
    with pytest.raises(AirflowFailException, match="SpecError: no such source"):
        operator(tmp_path, deferrable=True).execute(context(None))


def test_the_triggerers_verdict_is_carried_out(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store
) -> None:
    task = operator(tmp_path, deferrable=True)
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={}, hang=True)
    order = deferred(task, context(store)).order
    first = SupervisionConfig.from_json(order).launch
    restarts = RestartHistory(total=1, fruitless=1, step=1)
    restart = SupervisionOutcome(
        Action.RESTART, StreamState.STALLED, "epoch 3 hangs", restarts=restarts
    )
    event = {"outcome": restart.to_json(), "order": order}
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={"watermark": 9}, hang=True)
    with pytest.raises(TaskDeferred) as waiting:
        task.execute_complete(context(store), event)
    assert not first.driver.alive(), "a stalled driver is killed, by its exact identity"
    after = SupervisionConfig.from_json(waiting.value.trigger.order)
    assert after.launch.launch_id != first.launch_id
    assert after.restarts.total == 1
    spark_submit.let_go()
    wait_for("its end", lambda: not after.launch.driver.alive())
    over = {"outcome": end(asked_by="on-call"), "order": after.to_json()}
    assert task.execute_complete(context(store), over)["restarts"] == 1


@pytest.mark.parametrize(
    ("by", "launched"),
    [
        ("on-call", False),
        ("dag/stream/run/-1#1", True),
        ("dag/stream/run/-1#2", False),
        ("dag/stream/run/-1#3", False),
        (f"{HOST_SHUTDOWN} worker-1", True),
    ],
)
def test_a_stop_that_comes_during_the_back_off_counts(
    by: str, launched: bool, tmp_path: Path, dataset: str, spark_submit: SparkSubmit
) -> None:
    """The driver is dead and cannot obey; its successor would take the request for an old one."""
    order = SupervisionConfig.from_json(planned(tmp_path))
    own(tmp_path, dataset, order.task_key, order.launch.launch_id)
    request_stop(open_dataset(dataset), "flights", by=by)
    restart = SupervisionOutcome(Action.RESTART, StreamState.DEAD, "killed")
    here = replace(order, launch=replace(order.launch, uri=dataset))
    event = {"outcome": restart.to_json(), "order": here.to_json()}
    result = operator(tmp_path).execute_complete(context(None, try_number=2), event)
    assert spark_submit.ran is launched
    assert result["reason"] == ("finished" if launched else "stopped")


def planned(tmp_path: Path) -> dict[str, Any]:
    launch = Launch(
        "20261120T000000000Z-00000000", "flights", "/x", "/c", "2026-11-20T00:00:00+00:00"
    )
    return SupervisionConfig(launch, task_key="dag/stream/run/-1#1").to_json()


def end(**changes: Any) -> dict[str, Any]:
    outcome = {"action": Action.END, "state": StreamState.STOPPED, "reason": "asked to"}
    return SupervisionOutcome(**(outcome | changes)).to_json()


def test_the_end_emits_the_assets_event(tmp_path: Path, spark_submit: SparkSubmit) -> None:
    ours, other = Asset("lance:///data/flights.lance"), Asset("s3://bucket/other")
    task = operator(tmp_path, outlets=[ours, other])
    events = {ours: SimpleNamespace(extra={}), other: SimpleNamespace(extra={})}
    spark_submit.orders(summary={"watermark": 9, "version": 12, "rows": 70})
    task.execute({**context(None), "outlet_events": events})
    assert events[ours].extra == {
        "epoch": 9,
        "version": 12,
        "rows": 70,
        "epochs": 2,
        "queryId": "flights",
        "uri": str(tmp_path / "flights.lance"),
    }
    assert events[other].extra == {}


def test_killed_after_being_asked_is_a_stop(tmp_path: Path, spark_submit: SparkSubmit) -> None:
    event = {"outcome": end(asked_by="on-call"), "order": planned(tmp_path)}
    result = operator(tmp_path).execute_complete(context(None), event)
    assert (result["reason"], result["released"]) == ("stopped", False)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (end(timed_out=True), AirflowTaskTimeout),
        (end(state=StreamState.FENCED), AirflowFailException),
        (end(state=StreamState.DEAD), TransientError),
    ],
)
def test_a_bad_end_fails_the_task(
    outcome: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    task = operator(tmp_path)
    with pytest.raises(error):
        task.execute_complete(context(None), {"order": planned(tmp_path), "outcome": outcome})


def test_no_secret_is_in_what_a_driver_leaves_on_its_host(
    tmp_path: Path, spark_submit: SparkSubmit, add_connection: AddConnection, shown: Shown
) -> None:
    add_connection("warehouse", conn_type="lance", password=SECRET)
    warning = "26/11/22 10:00:00 WARN Store: connecting with"
    spark_submit.orders(say=[f"{warning} {SECRET}"], summary={})
    operator(tmp_path, lance_conn_id="warehouse").execute(context(None))
    wait_for("the keeper's end", lambda: bool(list((tmp_path / "drivers").rglob("exit.json"))))
    left = [path for path in (tmp_path / "drivers").rglob("*") if path.is_file()]
    assert any(path.name == "driver.log" for path in left)
    for path in left:
        assert SECRET.encode() not in path.read_bytes(), path
    assert f"driver | {warning} ***" in shown()


# --- A driver on another host ----------------------------------------------------------------


def elsewhere(tmp_path: Path, store: Store, **beat: Any) -> Launch:
    """Let an earlier try have noted a driver that another host runs, and that was heard."""
    place = LocalDriver("/elsewhere/flights/launch", ELSEWHERE, ELSEWHERE)
    launch = Launch(
        launch_id=new_launch_id(),
        query_id="flights",
        uri=str(tmp_path / "flights.lance"),
        checkpoint_location=str(tmp_path / "checkpoint"),
        launched_at=utc_now(),
        launched_by="dag/stream/run/-1#1",
        driver=place,
    )
    note = {"launch": launch.to_json(), "tries": [1, 1], "over": False}
    store.set("lance_stream", note, retention=timedelta(days=31))
    write_heartbeat(reports(tmp_path), launch.launch_id, heartbeat(**beat))
    return launch


def reports(tmp_path: Path) -> Any:
    return open_files(report_location(str(tmp_path / "checkpoint")))


def leave(tmp_path: Path, launch_id: str, **said: Any) -> None:
    """Write what a driver writes at its end."""
    write_summary(reports(tmp_path), last_word(launch_id=launch_id, **said))
    write_heartbeat(reports(tmp_path), launch_id, heartbeat(state="ended"))


def asked(dataset: str) -> StopNote | None:
    port = open_dataset(dataset)
    return decode_query(port.config, "flights", port.version).stop_note


@pytest.mark.parametrize("owns", [False, True], ids=["by its heartbeat", "by the owner record"])
def test_a_driver_of_a_dead_host_is_waited_for_once(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, store: Store, owns: bool
) -> None:
    """Its heartbeat stays, an hour old or not: to whoever comes new it looks as if it lived."""
    launch = elsewhere(tmp_path, store)
    if owns:
        own(tmp_path, dataset, launch.launched_by, launch.launch_id)
    spark_submit.orders(summary={"watermark": 99})
    bounded = {"trigger": "availableNow", "heartbeat_timeout": timedelta(seconds=0.3)}
    with pytest.raises(TransientError, match="not visible"):
        operator(tmp_path, **bounded).execute(context(store, try_number=2))
    assert not spark_submit.ran
    assert operator(tmp_path, **bounded).execute(context(store, 3))["watermark"] == 99


@pytest.mark.parametrize("predecessor", [None, "dead"])
def test_one_elsewhere_that_has_not_claimed_yet_is_replaced_in_order(
    predecessor: str | None, tmp_path: Path, dataset: str, spark_submit: SparkSubmit, store: Store
) -> None:
    if predecessor:
        own(tmp_path, dataset, "dag/other/run/-1#1", predecessor)
    launch = elsewhere(tmp_path, store, token=None)
    spark_submit.orders(summary={"watermark": 99})
    seen: list[StopNote] = []

    def obey() -> None:
        wait_for("the request", lambda: asked(dataset) is not None, 20)
        note = asked(dataset)
        assert note
        seen.append(note)
        leave(tmp_path, launch.launch_id, reason=EndReason.STOPPED, stopped_by=note.by)

    obeying = threading.Thread(target=obey)
    obeying.start()
    try:
        summary = operator(tmp_path).execute(context(store, 2, max_tries=2))
    finally:
        obeying.join()
    assert (seen[0].launch_id, seen[0].by) == (launch.launch_id, launch.launched_by)
    assert seen[0].token == (2 if predecessor else 1)
    assert summary["watermark"] == 99


def test_a_good_end_elsewhere_is_not_waited_for(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store, shown: Shown
) -> None:
    launch = elsewhere(tmp_path, store)
    over = last_word(launch_id=launch.launch_id)
    order = replace(SupervisionConfig.from_json(planned(tmp_path)), launch=launch)
    finished = end(state=StreamState.FINISHED, ended=over.to_json())
    began = time.monotonic()
    event = {"outcome": finished, "order": order.to_json()}
    assert operator(tmp_path).execute_complete(context(store), event)["reason"] == "finished"
    assert time.monotonic() - began < 5
    assert launch.driver.where() not in shown(), "nothing is left of it to end"


def test_who_is_fenced_by_its_own_task_watches_that_driver(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit, store: Store
) -> None:
    """It was taken for lost while it waited for its first rows, and was only out of sight."""
    order = SupervisionConfig.from_json(planned(tmp_path))
    fenced = replace(
        order.launch,
        uri=dataset,
        checkpoint_location=str(tmp_path / "checkpoint"),
        launched_by=order.task_key,
    )
    own(tmp_path, dataset, order.task_key, "the-other")
    leave(tmp_path, "the-other", watermark=7)
    ended = last_word(EndReason.FAILED, error="FencedError", message="token 1")
    event = {
        "outcome": end(state=StreamState.FENCED, ended=ended.to_json()),
        "order": replace(order, launch=fenced, rows=5).to_json(),
    }
    summary = operator(tmp_path).execute_complete(context(store, 2), event)
    assert (summary["launchId"], summary["watermark"]) == ("the-other", 7)
    assert not spark_submit.ran
    noted = [(note["launch"]["launchId"], note["over"]) for note in store.history]
    assert noted == [("the-other", False), ("the-other", True)], "a later try finds that one"


def test_who_is_fenced_by_another_task_has_failed(
    tmp_path: Path, dataset: str, spark_submit: SparkSubmit
) -> None:
    order = SupervisionConfig.from_json(planned(tmp_path))
    own(tmp_path, dataset, "dag/another/run/-1#1", "the-other")
    fenced = replace(order.launch, uri=dataset, launched_by=order.task_key)
    event = {
        "outcome": end(state=StreamState.FENCED),
        "order": replace(order, launch=fenced).to_json(),
    }
    with pytest.raises(AirflowFailException, match="FencedError"):
        operator(tmp_path).execute_complete(context(None, 2), event)


# --- Restarts --------------------------------------------------------------------------------


def test_a_driver_may_be_replaced_without_end(
    tmp_path: Path, spark_submit: SparkSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[int] = []

    def start_driver(spec: Any, *_: Any) -> LocalDriver:
        """Play a driver that ended at once: its predecessor's try had asked it to."""
        depths.append(len(inspect.stack(0)))
        how = EndReason.STOPPED if len(depths) < 5 else EndReason.FINISHED
        by = "dag/stream/run/-1#1" if how is EndReason.STOPPED else None
        over = last_word(how, launch_id=spec.launch_id, stopped_by=by)
        write_summary(reports(tmp_path), over)
        return LocalDriver(str(tmp_path), gone, gone)

    gone = replace(ProcessIdentity.of(1), start="0/0:1")  # of an earlier boot
    monkeypatch.setattr(driver_module, "start_driver", start_driver)
    assert operator(tmp_path).execute(context(None, 2))["reason"] == "finished"
    assert len(depths) == 5
    assert max(depths) - min(depths) <= 1, "no restart stands on the one before"


def test_exit_status_0_without_a_summary_is_an_error_when_the_driver_was_running(
    tmp_path: Path, spark_submit: SparkSubmit
) -> None:
    """As spark-submit tells of a driver in a cluster that ran out of memory."""
    spark_submit.orders(heartbeats=[{"state": "running"}], summary=None, exit=0)
    with pytest.raises(TransientError, match=r"exit status 0\) .*no summary"):
        operator(tmp_path, max_restarts=0).execute(context(None))


def test_a_shutdown_of_the_host_leaves_a_bounded_stream_to_airflow(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store
) -> None:
    task = operator(tmp_path, trigger="availableNow")
    spark_submit.orders(summary={"reason": "stopped", "stoppedBy": f"{HOST_SHUTDOWN} worker-1"})
    with pytest.raises(TransientError, match=HOST_SHUTDOWN):
        task.execute(context(store))
    spark_submit.orders(summary={"watermark": 8})
    assert task.execute(context(store, 2))["watermark"] == 8


def test_the_assets_event_counts_the_rows_of_all_drivers(
    tmp_path: Path, spark_submit: SparkSubmit
) -> None:
    ours = Asset("lance:///data/flights.lance")
    given = {**context(None), "outlet_events": {ours: SimpleNamespace(extra={})}}
    beat = {"state": "running", "sink": {"totalRows": 5}}
    spark_submit.orders(heartbeats=[beat], beat_seconds=0.5, summary=None, exit=1)
    task = operator(tmp_path, outlets=[ours], restart_delay=timedelta(seconds=1))
    running = threading.Thread(target=task.execute, args=(given,))
    running.start()
    wait_for("the first driver", lambda: spark_submit.ran)
    spark_submit.orders(summary={"rows": 70})
    running.join(30)
    assert not running.is_alive()
    assert given["outlet_events"][ours].extra["rows"] == 75


# --- Starts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [False, True])
def test_a_start_that_failed_is_not_waited_for(
    forgets: bool,
    tmp_path: Path,
    spark_submit: SparkSubmit,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(launch_module, "_KEEPER", "airflow_provider_lance.drivers.no_such_module")
        with pytest.raises(TransientError, match="No module named"):
            operator(tmp_path).execute(context(store))
    noted = store.get("lance_stream")
    assert noted["over"], "the note says so"
    if forgets:  # as if the worker had died just then: the folder says so
        store.set("lance_stream", {**noted, "over": False}, retention=timedelta(days=31))
    began = time.monotonic()
    late = operator(tmp_path, start_timeout=timedelta(seconds=40))
    assert late.execute(context(store, 2))["reason"] == "finished"
    assert time.monotonic() - began < 30


class Forgetful(Store):
    """A task state that fails once it has kept this many notes."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.left = kept

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        if self.left == 0:
            raise ConnectionError("the API server is being restarted")
        self.left -= 1
        super().set(key, value, retention=retention)


def test_a_driver_that_runs_is_watched_though_airflow_keeps_no_note_of_it(
    tmp_path: Path, spark_submit: SparkSubmit, shown: Shown
) -> None:
    forgetful = Forgetful(kept=1)
    assert operator(tmp_path).execute(context(forgetful))["reason"] == "finished"
    assert forgetful.get("lance_stream")["launch"]["launchId"], "enough to find it again"
    assert "did not keep" in shown()


def test_nothing_is_started_that_airflow_takes_no_note_of(
    tmp_path: Path, spark_submit: SparkSubmit
) -> None:
    with pytest.raises(ConnectionError):
        operator(tmp_path).execute(context(Forgetful(kept=0)))
    assert not spark_submit.ran


def test_a_try_that_cannot_go_on_leaves_no_driver_unwatched(
    tmp_path: Path, spark_submit: SparkSubmit, store: Store, add_connection: AddConnection
) -> None:
    """Airflow says of a secrets backend that is away that the connection is missing."""
    spark_submit.orders(heartbeats=[{"state": "running"}], summary=None, hang=True)
    first = threading.Thread(target=_quietly(operator(tmp_path), context(store)), daemon=True)
    first.start()
    wait_for("the first driver", lambda: spark_submit.ran)
    pid = spark_submit.notes["pid"]
    with pytest.raises(AirflowFailException, match="no connection 'warehouse'"):
        operator(tmp_path, lance_conn_id="warehouse").execute(context(store, 2))
    wait_for("its end, after its grace", lambda: not Path(f"/proc/{pid}").exists(), 30)
    spark_submit.orders(summary={})
    first.join(30)


# --- Ended by a user while it starts ---------------------------------------------------------


def test_killed_task_stops_a_driver_that_is_being_submitted(
    tmp_path: Path, dataset: str, spark_on: SparkOn, add_connection: AddConnection
) -> None:
    spark_submit = spark_on("yarn")
    address = {"yarn_resourcemanager_webapp_address": "http://127.0.0.1:1"}
    add_connection("tracked", conn_type="spark", host="yarn", extra=address)
    spark_submit.orders(summary=None, hang=True, exit=1)
    task = operator(tmp_path, spark_conn_id="tracked", deploy_mode="cluster")
    executing = threading.Thread(target=_quietly(task, context(None)), daemon=True)
    executing.start()
    try:
        wait_for("spark-submit", lambda: spark_submit.ran)
        began = time.monotonic()
        task.on_kill()
        assert time.monotonic() - began < 5
        note = asked(dataset)
        assert note
        launch_id = spark_submit.notes["spec"]["launchId"]
        assert (note.token, note.launch_id, note.by) == (1, launch_id, "dag/stream/run/-1#1")
    finally:
        spark_submit.let_go()
        executing.join(30)
    assert not executing.is_alive()


class Hasty(LanceStreamOperator):
    """Is ended by its user in the moment in which it starts its driver."""

    def submission(self) -> Any:
        self.on_kill()
        return super().submission()


def test_killed_task_stops_a_driver_that_was_just_started(
    tmp_path: Path, spark_submit: SparkSubmit
) -> None:
    spark_submit.orders(summary=None, hang=True)
    task = operator(tmp_path)
    task.__class__ = Hasty
    with pytest.raises(AirflowException, match="asked to stop"):
        task.execute(context(None))
    [folder] = (tmp_path / "drivers" / "flights").iterdir()
    wait_for("its end, after its grace", (folder / "exit.json").exists, 30)
    assert json.loads((folder / "stop.json").read_text()) == {"by": "dag/stream/run/-1#1"}


# --- Secrets ---------------------------------------------------------------------------------


def test_a_secret_of_several_lines_stays_one(
    tmp_path: Path, spark_submit: SparkSubmit, add_connection: AddConnection, shown: Shown
) -> None:
    lines = ["-----BEGIN+(KEY)-----", "TWFueSBoYW5kcy4=", "bWFrZSBsaWdodA=="]
    add_connection("warehouse", conn_type="lance", password="\n".join(lines))
    warning = "26/11/22 10:00:00 WARN Store: key:"
    spark_submit.orders(say=[f"{warning} {line}" for line in lines], summary={})
    operator(tmp_path, lance_conn_id="warehouse").execute(context(None))
    wait_for("the keeper's end", lambda: bool(list((tmp_path / "drivers").rglob("exit.json"))))
    [log] = (tmp_path / "drivers").rglob("driver.log")
    assert log.read_text() == f"{warning} ***\n" * 3
    text = shown()
    assert text.count(f"driver | {warning} ***") == 3
    assert not [line for line in lines if line in text]
