"""A bounded stream's wait for the other runs of its task, before it launches a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_lance.compat import AirflowTaskTimeout
from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.turns import LanceTurnTrigger, Turn, take_turn

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_lance.operators.stream import LanceStreamOperator

__all__ = ["await_turn", "new_turn"]


def new_turn(config: SupervisionConfig, context: Context) -> Turn:
    """Return the turn of a task that is about to launch a driver; no other run was read yet."""
    run = context.get("dag_run")
    moment = getattr(run, "logical_date", None) or getattr(run, "run_after", None)
    return Turn(
        task_key=config.task_key,
        rank=moment.isoformat() if moment else "",
        uri=config.launch.uri,
        query_id=config.launch.query_id,
        lance_conn_id=config.lance_conn_id,
        silence=config.limits.silence,
        poll_interval=config.poll_interval,
        deadline=config.deadline,
    )


def await_turn(
    turn: Turn, operator: LanceStreamOperator, context: Context, pause: Callable[[float], None]
) -> bool:
    """Return when the turn has come, and whether it was waited for; or defer.

    :raises AirflowTaskTimeout: the task's time is up.
    :raises TransientError: the same run has been waited for a whole day.
    """
    hook, log, waited = operator.hook, operator.log, bool(turn.waits_for)
    while (turn := take_turn(turn, context["ti"], hook)).waits_for:
        _refuse_to_wait(turn)
        log.info("Waiting for %s.", turn.waits_for)
        if operator.deferrable:
            operator.defer(
                trigger=LanceTurnTrigger(turn=turn.to_json()), method_name="execute_complete"
            )
        waited = True
        while turn.look(hook) == turn.waits_for:
            _refuse_to_wait(turn)
            pause(turn.poll_interval)
    if waited:
        log.info("Its turn has come. query=%s", turn.query_id)
    return waited


def _refuse_to_wait(turn: Turn) -> None:
    if turn.is_over:
        raise AirflowTaskTimeout(
            f"query {turn.query_id!r}: timed out at {turn.deadline}, waiting for {turn.waits_for}"
        )
    if turn.is_too_long:
        raise TransientError(
            f"query {turn.query_id!r}: waited since {turn.since} for {turn.waits_for}, which does "
            "not end. Check that run; stop it with a LanceStreamStopOperator, or mark its task "
            "failed. A retry waits again"
        )
