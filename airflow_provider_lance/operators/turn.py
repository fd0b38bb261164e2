"""A task's turn among its runs: its initial value, and when the wait for it fails the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_lance.compat import AirflowTaskTimeout
from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.turns import Turn

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["refuse_to_wait", "turn_of"]


def turn_of(order: SupervisionConfig, context: Context) -> Turn:
    """Return the turn of a task that is about to launch a driver; no other run was read yet."""
    return Turn(
        task_key=order.task_key,
        rank=_rank(context.get("dag_run")),
        uri=order.launch.uri,
        query_id=order.launch.query_id,
        lance_conn_id=order.lance_conn_id,
        silence=order.limits.silence,
        poll_interval=order.poll_interval,
        deadline=order.deadline,
    )


def _rank(run: Any) -> str:
    """Return a run's logical date; without one, when it was to run."""
    moment = getattr(run, "logical_date", None) or getattr(run, "run_after", None)
    return moment.isoformat() if moment else ""


def refuse_to_wait(turn: Turn) -> None:
    """Raise if the wait has lasted too long.

    :raises AirflowTaskTimeout: the task's time is up.
    :raises TransientError: the same run has been waited for a whole day.
    """
    if turn.is_over:
        raise AirflowTaskTimeout(
            f"query {turn.query_id!r}: timed out at {turn.deadline}, waiting for {turn.waits_for}"
        )
    if turn.is_too_long:
        raise TransientError(
            f"query {turn.query_id!r}: waited since {turn.since} for {turn.waits_for}, and it does "
            "not end. Look at that run; stop it with a LanceStreamStopOperator, or mark its task "
            "failed. A retry waits again"
        )
