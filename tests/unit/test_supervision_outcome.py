"""From a stream's health to what its task does next."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_provider_lance.drivers.launch_request import HOST_SHUTDOWN
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.supervision.health import Health, StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
    decide_next,
)
from tests.support.supervised import EARLIER_TRY, ME, summary

S = StreamState
POLICY = RestartPolicy(most=2, first=10, longest=40, healthy=600)
DEAD = Health(S.DEAD, "gone", restartable=True)
SPENT = RestartHistory(total=7, fruitless=2, step=2, watermark=4)


def outcome(health: Health, **changes: Any) -> SupervisionOutcome | None:
    arguments: dict[str, Any] = {
        "task_key": ME,
        "restarts": RestartHistory(),
        "policy": POLICY,
        "watermark": 4,
        "lived": 30.0,
    }
    return decide_next(health, **(arguments | changes))


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.IDLE, S.STOPPING])
def test_a_stream_that_goes_on_is_left_alone(state: StreamState) -> None:
    assert outcome(Health(state, "all is well")) is None


@pytest.mark.parametrize(
    "health",
    [
        Health(S.FINISHED, "read all"),
        Health(S.FENCED, "another owns it"),
        Health(S.FAILED, "SpecError: no such source"),
    ],
)
def test_a_stream_that_is_over_ends_the_task(health: Health) -> None:
    ended = {"reason": "finished"}
    found = outcome(health, ended=ended)
    assert found
    assert (found.action, found.state, found.reason) == (Action.END, health.state, health.reason)
    assert (found.restartable, found.asked_by, found.ended) == (False, None, ended)
    assert (found.delay, found.timed_out) == (0.0, False)


@pytest.mark.parametrize("state", [S.DEAD, S.STALLED, S.FAILED])
def test_a_lost_driver_is_replaced_after_a_wait(state: StreamState) -> None:
    found = outcome(
        Health(state, "lost", restartable=True), restarts=RestartHistory(step=1, total=1)
    )
    assert found
    assert (found.action, found.state, found.restartable) == (Action.RESTART, state, True)
    assert 10 <= found.delay <= 20, "the second wait"
    assert found.restarts == RestartHistory(total=2, fruitless=1, step=2, watermark=4)


def test_a_lost_driver_is_not_replaced_for_ever() -> None:
    found = outcome(DEAD, restarts=SPENT)
    assert found
    assert (found.action, found.state, found.restartable) == (Action.END, S.DEAD, True)
    assert re.match("gone; .*: 2 restarts", found.reason)
    assert found.restarts == SPENT


@pytest.mark.parametrize("changes", [{"watermark": 5}, {"lived": 600.0}])
def test_progress_allows_further_restarts(changes: dict[str, Any]) -> None:
    found = outcome(DEAD, restarts=SPENT, **changes)
    assert found
    assert found.action is Action.RESTART
    assert (found.restarts.total, found.restarts.fruitless) == (8, 1)


def test_restarts_may_be_forbidden() -> None:
    found = outcome(DEAD, policy=RestartPolicy(most=0))
    assert found
    assert (found.action, found.reason) == (Action.END, "gone"), "nothing was restarted, nor said"
    assert found.restartable


@pytest.mark.parametrize(
    ("asked_by", "task_key"),
    [(EARLIER_TRY, ME), (ME.replace("#2", "#9"), ME.replace("#2", "#10"))],
    ids=["the try before", "by number, not by letter"],
)
@pytest.mark.parametrize("state", [S.STOPPED, S.STALLED])
def test_an_earlier_try_asked_for_its_successor(
    asked_by: str, task_key: str, state: StreamState
) -> None:
    for policy in (POLICY, RestartPolicy(most=0)):
        found = outcome(
            Health(state, "asked to", asked_by=asked_by),
            task_key=task_key,
            restarts=SPENT,
            policy=policy,
            lived=9e9,
        )
        assert found
        assert (found.action, found.state) == (Action.RESTART, state)
        assert found.delay == 0.0, "at once"
        assert found.restarts == SPENT, "and uncounted"


@pytest.mark.parametrize("asked_by", [HOST_SHUTDOWN, f"{HOST_SHUTDOWN} worker-1"])
@pytest.mark.parametrize("state", [S.STOPPED, S.STALLED])
def test_the_shutdown_of_a_host_is_a_loss_like_any_other(asked_by: str, state: StreamState) -> None:
    health = Health(state, "asked to", asked_by=asked_by)
    found = outcome(health, ended={"reason": "stopped"})
    assert found
    assert (found.action, found.state, found.ended) == (Action.RESTART, S.DEAD, None)
    assert 5 <= found.delay <= 10
    assert found.restarts == RestartHistory(total=1, fruitless=1, step=1, watermark=4)
    for further in ({"restarts": SPENT}, {"policy": RestartPolicy(most=0)}):
        found = outcome(health, ended={"reason": "stopped"}, **further)
        assert found
        assert (found.action, found.state, found.restartable) == (Action.END, S.DEAD, True)
        assert (found.asked_by, found.ended) == (None, None), "Airflow's retry takes over"


@pytest.mark.parametrize(
    "asked_by",
    [
        ME,
        ME.replace("#2", "#3"),
        ME.replace("#2", "#12"),
        "",
        "somebody",
        "dag/stream/other/-1#1",
        "dag/stream/run/0#1",
        "dag/other/run/-1#1",
        f"somebody's {HOST_SHUTDOWN}",
    ],
)
@pytest.mark.parametrize("state", [S.STOPPED, S.STALLED, S.DEAD])
def test_requested_stop_ends_the_task_without_a_restart(asked_by: str, state: StreamState) -> None:
    ended = summary(EndReason.STOPPED).to_json()
    found = outcome(Health(state, "asked to", asked_by=asked_by), ended=ended)
    assert found
    assert (found.action, found.state) == (Action.END, S.STOPPED), "whatever became of it since"
    assert (found.asked_by, found.restartable, found.ended) == (asked_by, False, ended)


@pytest.mark.parametrize(
    "found",
    [
        SupervisionOutcome(Action.RESTART, S.DEAD, "gone", True, delay=7.5, restarts=SPENT),
        SupervisionOutcome(Action.END, S.STOPPED, "asked", asked_by="", ended=summary().to_json()),
        SupervisionOutcome(Action.END, S.STOPPING, "timed out", timed_out=True),
    ],
)
def test_supervision_outcome_is_the_same_after_json(found: SupervisionOutcome) -> None:
    assert SupervisionOutcome.from_json(json.loads(json.dumps(found.to_json()))) == found
