"""``airflow lance clear-task``: clear one task instance, so that the stream that it runs starts."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_lance.cli.output import Exit, Output, Plan
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.commands import clear_task_line

__all__ = ["run"]


def run(arguments: Namespace, output: Output) -> int:
    """Clear exactly one task instance; Airflow's own `tasks clear` takes no run and no map index.

    :raises SpecError: Airflow is not installed here, or its database has no such task instance.
    """
    try:
        from airflow.models.dag import DagModel
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from airflow.utils.session import create_session
        from sqlalchemy import select
    except ImportError as error:
        raise SpecError(f"Airflow is not installed here: {error}. Type this on its host") from error
    dag, run_id, task, index = (
        arguments.dag_id,
        arguments.run_id,
        arguments.task_id,
        arguments.map_index,
    )
    index = -1 if index is None else index
    mapped = f", map index {index}" if index >= 0 else ""
    what = f"task {task} of DAG {dag}, run {run_id}{mapped}"
    with create_session() as session:
        found = session.scalar(
            select(TaskInstance).where(
                TaskInstance.dag_id == dag,
                TaskInstance.run_id == run_id,
                TaskInstance.task_id == task,
                TaskInstance.map_index == index,
            )
        )
        if found is None:
            raise SpecError(f"Airflow's database has no {what}. Correct the names")
        was = found.state or "not started"
        plan = Plan(
            [f"clear {what}, which is {was}: Airflow runs it again"],
            clear_task_line(dag, run_id, task, index),
        )
        if not arguments.yes:
            return plan.refuse(output)
        plan.show(output)
        clear_task_instances([found], session)
        paused = session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag))
    note = f". DAG {dag} is paused: it runs once you unpause it" if paused else ""
    sentence = f"cleared {what}, which was {was}{note}"
    if output.json:
        output.document({"done": True, "was": str(was), "paused": bool(paused)})
    else:
        output.say(f"{sentence[0].upper()}{sentence[1:]}.")
    return Exit.HEALTHY
