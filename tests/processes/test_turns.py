"""Bounded streams of one query take turns among the runs of their task."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.turns import XCOM_KEY, LanceTurnTrigger, Turn, take_turn
from tests.support.processes import wait_for
from tests.support.supervised import QUERY, Supervised, here
from tests.support.turns import Noting, OtherRuns

from .conftest import Shown, SparkSubmit, TaskInstance, supervised

OTHER = "dag/stream/other/-1#1"


def turn(run_id: str = "mine", rank: str = "2026-01-02", **changes: Any) -> Turn:
    arguments = {"uri": "/none.lance", "query_id": QUERY, "poll_interval": 0.01}
    return Turn(f"dag/stream/{run_id}/-1#1", rank, **(arguments | changes))


def note(going: bool, rank: str = "2026-01-01", uri: str = "/none.lance") -> dict[str, Any]:
    return {"query": [uri, QUERY], "going": going, "rank": rank}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> OtherRuns:
    runs = OtherRuns(monkeypatch)
    runs.add("mine")
    return runs


@pytest.fixture
def hook() -> LanceHook:
    return LanceHook(None)


def test_a_run_alone_goes_at_once_and_says_so(runs: OtherRuns, hook: LanceHook) -> None:
    taken = take_turn(turn(), Noting(runs, "mine"), hook)
    assert (taken.waits_for, taken.going) == ("", True)
    assert runs.notes["mine"] == note(True, "2026-01-02")
    assert runs.asked == ["count", "count"], "the task's whole history is not read"


@pytest.mark.parametrize(
    ("state", "of_it", "waits"),
    [
        ("running", note(True), True),
        ("deferred", note(True), True),
        ("queued", note(True), True),
        ("running", note(True, "2026-01-03"), True),
        ("deferred", note(False), True),
        ("deferred", note(False, "2026-01-03"), False),
        ("success", note(True), False),
        ("failed", note(True), False),
        ("up_for_retry", note(True), False),
        ("running", note(True, uri="/another.lance"), False),
        ("running", {}, False),
    ],
)
def test_waits_for_those_that_stream_and_those_before_it(
    state: str, of_it: dict[str, Any], waits: bool, runs: OtherRuns, hook: LanceHook
) -> None:
    runs.add("other", state, **of_it)
    runs.add("third")
    taken = take_turn(turn(), Noting(runs, "mine"), hook)
    assert bool(taken.waits_for) is waits
    assert taken.going is not waits
    if waits:
        assert taken.waits_for.startswith("run other, which ")
        assert taken.since is not None
        runs.states["other"] = "success"
        assert not taken.look(hook)
        assert not take_turn(taken, Noting(runs, "mine"), hook).waits_for


def test_of_two_that_start_at_once_the_later_date_gives_way(
    runs: OtherRuns, hook: LanceHook
) -> None:
    """Neither has noted anything when the other looks first."""
    runs.add("other")
    late, early = turn(rank="2026-01-02"), turn("other", rank="2026-01-01")
    # `late` looked and noted that it goes; before it looks again, so did `early`.
    late = late.noted(Noting(runs, "mine"), going=True)
    early = early.noted(Noting(runs, "other"), going=True)
    early = take_turn(early, Noting(runs, "other"), hook)
    assert early.waits_for, "it cannot know yet that the other one gives way"
    late = take_turn(late, Noting(runs, "mine"), hook)
    assert late.waits_for
    assert runs.notes["mine"]["going"] is False
    assert not take_turn(early, Noting(runs, "other"), hook).waits_for


class Steps:
    """Lets one thread at a time go on to its next question, in an order that is drawn."""

    def __init__(self, order: Iterator[int]) -> None:
        self._order = order
        self._turn = threading.Condition()
        self._waiting: dict[str, bool] = {}
        self._alive: set[str] = set()

    def start(self, names: list[str]) -> None:
        self._alive = set(names)

    def step(self) -> None:
        name = threading.current_thread().name
        if name not in self._alive:
            return
        with self._turn:
            self._waiting[name] = False
            self._choose()
            assert self._turn.wait_for(lambda: self._waiting.get(name), 30)
            del self._waiting[name]

    def end(self) -> None:
        with self._turn:
            self._alive.discard(threading.current_thread().name)
            self._choose()

    def _choose(self) -> None:
        if self._alive and self._waiting.keys() == self._alive:
            names = sorted(self._waiting)
            self._waiting[names[next(self._order) % len(names)]] = True
            self._turn.notify_all()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(0, 5), min_size=200, max_size=200), st.integers(2, 4))
def test_one_at_a_time_whatever_the_order_of_their_questions(order: list[int], number: int) -> None:
    hook = LanceHook(None)
    with pytest.MonkeyPatch.context() as patch:
        runs = OtherRuns(patch)
        names = [f"run{n}" for n in range(number)]
        steps = Steps(iter([*order, *(n % 7 for n in range(100_000))]))
        inside: list[str] = []
        most, done = [0], []

        def live(name: str, rank: str) -> None:
            mine, ti = turn(name, rank), Noting(runs, name)
            try:
                while (mine := take_turn(mine, ti, hook)).waits_for:
                    while mine.look(hook):
                        pass
                inside.append(name)
                most[0] = max(most[0], len(inside))
                for _ in range(3):
                    steps.step()
                inside.remove(name)
                runs.states[name] = "success"
                done.append(name)
            finally:
                steps.end()

        for name in names:
            runs.add(name)
        runs.before_look = steps.step
        steps.start(names)
        threads = [
            threading.Thread(target=live, args=(name, f"2026-01-0{n % 2}"), name=name, daemon=True)
            for n, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(done) == names
    assert most[0] == 1


# --- The operator ------------------------------------------------------------------------------


class Task(TaskInstance):
    """A task instance among others."""

    run_id = "mine"

    def __init__(self, runs: OtherRuns, try_number: int = 1) -> None:
        super().__init__(try_number)
        self._runs = runs

    def xcom_push(self, key: str, value: Any) -> None:
        super().xcom_push(key, value)
        if key == XCOM_KEY:
            self._runs.notes[self.run_id] = value


def operator(tmp_path: Path, **changes: Any) -> LanceStreamOperator:
    arguments: dict[str, Any] = {
        "task_id": "stream",
        "uri": str(tmp_path / "flights.lance"),
        "query_id": QUERY,
        "checkpoint_location": str(tmp_path / "checkpoint"),
        "source": {"format": "rate"},
        "lance_conn_id": None,
        "deferrable": False,
        "poll_interval": 0.05,
    }
    return LanceStreamOperator(**supervised(**(arguments | changes)))


def context(runs: OtherRuns, try_number: int = 1) -> Any:
    run = SimpleNamespace(logical_date=datetime(2026, 1, 2, tzinfo=UTC), run_after=None)
    return {"ti": Task(runs, try_number), "dag_run": run}


@pytest.fixture
def busy(tmp_path: Path, spark_submit: SparkSubmit, runs: OtherRuns) -> OtherRuns:
    """Let another run stream."""
    runs.add("other", "deferred", **note(True, uri=str(tmp_path / "flights.lance")))
    return runs


def test_a_task_waits_in_the_worker_and_launches_when_its_turn_has_come(
    tmp_path: Path, spark_submit: SparkSubmit, busy: OtherRuns, shown: Shown
) -> None:
    def end_after_some_questions() -> None:
        if len(busy.asked) == 12:
            assert not spark_submit.ran
            assert busy.notes["mine"]["going"] is False
            busy.states["other"] = "success"

    busy.before_look = end_after_some_questions
    assert operator(tmp_path).execute(context(busy))["reason"] == "finished"
    assert spark_submit.ran
    assert busy.notes["mine"]["going"] is True
    said = shown()
    assert len(re.findall(f"run other, .*'{QUERY}'", said)) == 1
    assert "turn has come" in said


def test_a_deferrable_task_waits_in_the_triggerer(
    tmp_path: Path, spark_submit: SparkSubmit, busy: OtherRuns
) -> None:
    task = operator(tmp_path, deferrable=True, execution_timeout=timedelta(hours=1))
    with pytest.raises(TaskDeferred) as waiting:
        task.execute(context(busy))
    assert isinstance(waiting.value.trigger, LanceTurnTrigger)
    assert waiting.value.method_name == "execute_complete"
    assert not spark_submit.ran
    waited = Turn.from_json(waiting.value.trigger.turn)
    assert waited.place == ("2026-01-02T00:00:00+00:00", "mine")
    busy.states["other"] = "success"
    spark_submit.orders(heartbeats=[{"state": "running"}], summary={}, hang=True)
    with pytest.raises(TaskDeferred) as streaming:
        task.execute_complete(context(busy), {"turn": fire(waited).to_json()})
    order = SupervisionConfig.from_json(streaming.value.trigger.order)
    assert order.deadline == waited.deadline, "the wait counts towards the task's time"
    assert spark_submit.ran
    spark_submit.let_go()
    wait_for("its end", lambda: not order.launch.driver.alive())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"deadline": 0}, AirflowTaskTimeout, "timed out at .* run other"),
        ({"since": -24}, TransientError, "waited since .* run other.*LanceStreamStopOperator"),
    ],
)
def test_a_wait_that_is_too_long_fails_the_task_and_says_for_whom(
    changes: dict[str, int],
    error: type[Exception],
    words: str,
    tmp_path: Path,
    busy: OtherRuns,
    spark_submit: SparkSubmit,
) -> None:
    with pytest.raises(TaskDeferred) as waiting:
        operator(tmp_path, deferrable=True).execute(context(busy))
    hours = {
        name: (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        for name, hours in changes.items()
    }
    event = {"turn": fire(replace(Turn.from_json(waiting.value.trigger.turn), **hours)).to_json()}
    with pytest.raises(error, match=words):
        operator(tmp_path, deferrable=True).execute_complete(context(busy), event)
    assert not spark_submit.ran


def test_a_stream_that_goes_on_takes_no_turns(
    tmp_path: Path, spark_submit: SparkSubmit, busy: OtherRuns
) -> None:
    operator(tmp_path, trigger="1 second").execute(context(busy))
    assert spark_submit.ran
    assert not busy.asked
    assert "mine" not in busy.notes


def test_retry_reattaches_to_its_own_driver_before_other_waiting_runs(
    tmp_path: Path, spark_submit: SparkSubmit, runs: OtherRuns
) -> None:
    # The heartbeat says that the first try's driver lives; its owner record, whose it is.
    owned = Supervised(tmp_path)
    task_key = "dag/stream/mine/-1#1"
    owned.owner(here(owned.process()), launched_by=task_key)
    owned.beat(time=utc_now())
    runs.add("other", "running", **note(False, uri=owned.uri))
    task = operator(tmp_path, uri=owned.uri, checkpoint_location=owned.checkpoint, deferrable=True)
    with pytest.raises(TaskDeferred) as watching:
        task.execute(context(runs, try_number=2))
    assert isinstance(watching.value.trigger, LanceStreamTrigger)
    assert not spark_submit.ran
    assert runs.notes["mine"]["going"] is True, "the others see that it streams"
    owned.end()


# --- The owner in the dataset ------------------------------------------------------------------


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Supervised]:
    owned = Supervised(tmp_path)
    yield owned
    owned.end()


def by_owner(owned: Supervised, hook: LanceHook, **changes: Any) -> str:
    return turn(uri=owned.uri, **changes).look(hook)


def test_waits_for_a_living_driver_of_another_run(
    owned: Supervised, hook: LanceHook, runs: OtherRuns
) -> None:
    process = owned.process()
    committer = owned.owner(here(process), launched_by=OTHER)
    owned.beat(time=utc_now())
    assert by_owner(owned, hook).startswith("the driver of run other,")
    committer.release()
    assert not by_owner(owned, hook)


def test_takes_over_from_a_driver_that_is_gone(owned: Supervised, hook: LanceHook) -> None:
    process = owned.process()
    owned.owner(here(process), launched_by=OTHER)
    owned.beat(time=utc_now())
    process.kill()
    process.wait()
    assert not by_owner(owned, hook)


def test_takes_over_from_a_driver_elsewhere_that_reports_no_more(
    owned: Supervised, hook: LanceHook
) -> None:
    owned.owner(launched_by=OTHER)
    assert not by_owner(owned, hook), "it never gave a heartbeat"
    owned.beat(time=utc_now())
    assert by_owner(owned, hook)
    owned.beat(time=(datetime.now(UTC) - timedelta(seconds=121)).isoformat())
    assert not by_owner(owned, hook)


def test_takes_over_from_a_driver_that_lives_and_hangs(owned: Supervised, hook: LanceHook) -> None:
    owned.owner(here(owned.process()), launched_by=OTHER)
    owned.beat(time=(datetime.now(UTC) - timedelta(seconds=121)).isoformat())
    assert not by_owner(owned, hook)


@pytest.mark.parametrize(
    "by", ["dag/stream/mine/-1#1", "dag/second/other/-1#1", "another/stream/other/-1#1", "a hand"]
)
def test_waits_for_no_driver_of_its_own_or_of_another_job(
    by: str, owned: Supervised, hook: LanceHook
) -> None:
    owned.owner(here(owned.process()), launched_by=by)
    owned.beat(time=utc_now())
    assert not by_owner(owned, hook)


# --- The trigger -------------------------------------------------------------------------------


def fire(waiting: Turn) -> Turn:
    trigger = LanceTurnTrigger(turn=json.loads(json.dumps(waiting.to_json())))
    assert LanceTurnTrigger(**trigger.serialize()[1]).turn == trigger.turn

    async def first() -> Any:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 30)

    return Turn.from_json(json.loads(json.dumps(asyncio.run(first()).payload))["turn"])


def test_the_trigger_fires_when_the_other_one_is_over(runs: OtherRuns, hook: LanceHook) -> None:
    runs.add("other", "deferred", **note(True))
    waiting = take_turn(turn(), Noting(runs, "mine"), hook)
    looks = []

    def after_some_looks() -> None:
        looks.append(1)
        if len(looks) == 4:
            raise RuntimeError("no answer")
        if len(looks) > 8:
            runs.states["other"] = "success"

    runs.before_look = after_some_looks
    fired = fire(waiting)
    assert len(looks) > 8
    assert (fired.waits_for, fired.since) == (waiting.waits_for, waiting.since)


@pytest.mark.parametrize("changes", [{"deadline": 0}, {"since": -24}])
def test_the_trigger_gives_up(changes: dict[str, int], runs: OtherRuns, hook: LanceHook) -> None:
    runs.add("other", "deferred", **note(True))
    waiting = take_turn(turn(), Noting(runs, "mine"), hook)
    moments = {
        name: (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        for name, hours in changes.items()
    }
    fired = fire(replace(waiting, **moments))
    assert fired.is_over or fired.is_too_long


@pytest.mark.parametrize("changes", [{"others": "text"}, {"taskKey": 7}, {"since": "soon"}])
def test_a_turn_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="^a turn must"):
        Turn.from_json(turn().to_json() | changes)
