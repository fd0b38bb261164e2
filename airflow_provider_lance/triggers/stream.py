"""Supervise a long-running stream in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.triggers.stop import end_launch
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig, SupervisionLoop
from airflow_provider_lance.triggers.supervision_outcome import Action
from airflow_provider_lance.triggers.threads import Pool, in_thread

__all__ = ["LanceStreamTrigger"]

_ENDED = {"success", "failed", "skipped", "removed", "upstream_failed"}
_ON_KILL_PATIENCE = (1.0, 2.0, 4.0)
"""Seconds between attempts; Airflow gives a trigger's on_kill 30 in total."""


class LanceStreamTrigger(BaseTrigger):
    """
    Watch a driver until its stream is over or a new driver is needed.

    While the driver is healthy, a poll is one small read, of the heartbeat. The event is
    ``{"outcome", "order"}``: a :class:`.supervision_outcome.SupervisionOutcome` as JSON, and the
    config that was watched. If the outcome is ``restart``, the event comes after the back-off. The
    driver keeps running whatever happens to the triggerer; only a user who ends or clears the task
    stops it.

    :param order: What to watch and how, as ``SupervisionConfig.to_json`` makes it.
    """

    def __init__(self, *, order: dict[str, Any]) -> None:
        super().__init__()
        self.order = order

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"order": self.order}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        order = SupervisionConfig.from_json(self.order)
        watch = SupervisionLoop(order, self.log, whole_log=False)
        while True:
            if outcome := await in_thread(Pool.LOOKS, watch.step):
                break
            await asyncio.sleep(order.poll_interval)
        await in_thread(Pool.LOOKS, watch.conclude, outcome)
        if outcome.action is Action.RESTART:
            await asyncio.sleep(outcome.delay)
        ended = replace(order, rows=order.rows + watch.rows)
        yield TriggerEvent({"outcome": outcome.to_json(), "order": ended.to_json()})

    async def on_kill(self) -> None:
        order = SupervisionConfig.from_json(self.order)
        for patience in _ON_KILL_PATIENCE:
            try:
                if not await in_thread(Pool.STOPS, self._was_ended_by_user):
                    # Another triggerer took it over, or a new try will: both look after the driver.
                    self.log.info("Another process now runs this task; its driver keeps running.")
                    return
                hook = LanceHook(order.lance_conn_id)
                result = await in_thread(Pool.STOPS, end_launch, order.launch, hook, order.task_key)
            except Exception as error:  # any error: this is the last chance to try again
                self.log.warning("The driver could not be asked to stop yet. error=%s", error)
                await asyncio.sleep(patience)
            else:
                self.log.info("The driver: %s. where=%s", result, order.launch.driver.where())
                return
        self.log.error(
            "The driver was not asked to stop and keeps running. Stop it with a "
            "LanceStreamStopOperator. where=%s",
            order.launch.driver.where(),
        )

    def _was_ended_by_user(self) -> bool:
        """Ask Airflow whether the task has ended; raise if it does not answer.

        Airflow cancels a trigger that moves to another triggerer in the same way.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti = self.task_instance
        if ti is None:
            return True
        runs = RuntimeTaskInstance.get_task_states(
            dag_id=ti.dag_id,
            task_ids=[ti.task_id],
            run_ids=[ti.run_id],
            map_index=ti.map_index,
        )
        states = {str(state) for tasks in runs.values() for state in tasks.values()}
        return states <= _ENDED  # no state at all: its run was deleted
