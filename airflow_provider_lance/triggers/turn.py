"""Wait in the triggerer until another run of the same task has streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.triggers.threads import Pool, in_thread
from airflow_provider_lance.triggers.turns import Turn

__all__ = ["LanceTurnTrigger"]


class LanceTurnTrigger(BaseTrigger):
    """
    Fire once no other run that was seen streams the query, or the wait has lasted too long.

    The event is ``{"turn"}``; the task looks once more before it launches a driver.

    :param turn: Whose turn it is to be, as :meth:`.Turn.to_json` makes it.
    """

    def __init__(self, *, turn: dict[str, Any]) -> None:
        super().__init__()
        self.turn = turn

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"turn": self.turn}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        turn, trouble = Turn.from_json(self.turn), ""
        while not (turn.is_over or turn.is_too_long):
            await asyncio.sleep(turn.poll_interval)
            try:
                # A new hook each time: its credentials may have been replaced meanwhile.
                whom = await in_thread(Pool.LOOKS, turn.look, LanceHook(turn.lance_conn_id))
            except Exception as error:  # whatever it is, to wait on does no harm
                if str(error) != trouble:
                    self.log.warning("Cannot tell whose turn it is; asking again. error=%s", error)
                trouble = str(error)
                continue
            if not whom:
                break
            if whom != turn.waits_for:
                self.log.info("Waiting for %s.", whom)
            turn = turn.waiting_for(whom)
        yield TriggerEvent({"turn": turn.to_json()})
