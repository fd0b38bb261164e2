"""From a stream's health to the task's next action: one pure function, for every supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from airflow_provider_lance.backends.launch import same_task
from airflow_provider_lance.drivers.launch_request import HOST_SHUTDOWN
from airflow_provider_lance.protocol.decoding import Reader, whole_text
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.supervision.driver_reports import Summary
from airflow_provider_lance.supervision.health import Health, StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy

__all__ = ["Action", "SupervisionOutcome", "decide_next", "stop_has_no_requester"]


class Action(StrEnum):
    """The next action of a supervising task."""

    END = "end"
    """The stream is over: the task ends with its result."""
    RESTART = "restart"
    """End what is left of the driver and launch another one."""


def _summary(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a readable summary unchanged."""
    Summary.read_json(given)
    return given


@dataclass(frozen=True, slots=True)
class SupervisionOutcome(JsonRecord):
    """What to do, why, and after how many seconds; travels as a trigger's event.

    ``ended`` is the driver's summary as JSON, if it left one. ``error`` is the class of the error
    that ended it without a summary, if that is known.
    """

    action: Action
    state: StreamState
    reason: str
    restartable: bool = False
    asked_by: str | None = None
    delay: float = 0.0
    restarts: RestartHistory = field(default_factory=RestartHistory)
    ended: Mapping[str, Any] | None = None
    timed_out: bool = False
    error: str = ""

    json_name = "an outcome of supervision"
    json_readers: ClassVar[Mapping[str, Reader]] = {"ended": _summary}


def decide_next(
    health: Health,
    *,
    task_key: str,
    restarts: RestartHistory,
    policy: RestartPolicy,
    watermark: int | None,
    lived: float,
    ended: Mapping[str, Any] | None = None,
) -> SupervisionOutcome | None:
    """Return what to do about a stream's health, ``None`` while there is nothing to do.

    :param task_key: the ``launchedBy`` text of the task try that asks.
    :param restarts: those of this task try so far.
    :param watermark: the highest epoch watermark seen of this driver.
    :param lived: seconds since its launch.
    """
    if not (health.state.ended or health.state.lost):
        return None
    state, reason = health.state, health.reason
    if health.asked_by is not None and health.asked_by.startswith(HOST_SHUTDOWN):
        # No requester wanted the stream's end, so it counts as any other loss of a driver.
        health = Health(StreamState.DEAD, reason, restartable=True)
        state, ended = health.state, None
    if health.asked_by is not None:
        if _asked_by_earlier_try(health.asked_by, task_key):
            return SupervisionOutcome(Action.RESTART, state, reason, restarts=restarts, ended=ended)
        return SupervisionOutcome(
            Action.END, StreamState.STOPPED, reason, asked_by=health.asked_by, ended=ended
        )
    history = restarts.lost(policy, watermark=watermark, lived=lived)
    if health.restartable and history.may_restart(policy):
        return SupervisionOutcome(
            Action.RESTART,
            state,
            reason,
            restartable=True,
            delay=history.delay(policy),
            restarts=history.next(),
            ended=ended,
        )
    if health.restartable and policy.most:
        reason = f"{reason}; not restarted again: {history.fruitless} restarts without progress"
    return SupervisionOutcome(
        Action.END,
        state,
        reason,
        health.restartable,
        restarts=history,
        ended=ended,
        error=health.error,
    )


def stop_has_no_requester(asked_by: str, task_key: str) -> bool:
    """Return whether a stop should not end the stream: host shutdown, or an earlier try asked."""
    return asked_by.startswith(HOST_SHUTDOWN) or _asked_by_earlier_try(asked_by, task_key)


def _asked_by_earlier_try(asked_by: str, task_key: str) -> bool:
    """Return whether an earlier try of this task asked; its successor launches a new driver."""
    return same_task(asked_by, task_key) and _try(asked_by) < _try(task_key)


def _try(launched_by: str) -> int:
    number = launched_by.rpartition("#")[2]
    try:
        return whole_text(number)
    except ValueError:
        return 0
