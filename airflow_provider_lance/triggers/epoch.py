"""Wait for a query's epoch watermark in the triggerer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.exceptions import TerminalError, TransientError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.model import Watermark
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.poll import Teller, subscribe
from airflow_provider_lance.triggers.watermark_follower import OnMissing, describe, seen

__all__ = ["LanceEpochTrigger"]


class LanceEpochTrigger(BaseTrigger):
    """
    Fire once when a query's epoch watermark meets a condition.

    The event is ``{"status": "met", "watermark": {"epoch", "version", "committedAt"}}``, or
    ``{"status": "error", "error", "message"}`` for an error that waiting cannot solve. A store that
    does not answer is asked again. All triggers that watch one dataset share one poll.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI.
    :param query_id: The streaming query.
    :param condition: The condition, as ``EpochCondition.to_json`` makes it.
    :param lance_conn_id: The Lance connection; its secrets are read where the trigger runs.
    :param on_missing: ``wait`` or ``fail`` while dataset or query does not exist.
    :param poll_interval: The longest time between two polls, in seconds.
    """

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
        condition: dict[str, Any],
        lance_conn_id: str | None = LanceHook.default_conn_name,
        on_missing: str = OnMissing.WAIT,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.uri = uri
        self.query_id = query_id
        self.condition = condition
        self.lance_conn_id = lance_conn_id
        self.on_missing = on_missing
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "uri": self.uri,
                "query_id": self.query_id,
                "condition": self.condition,
                "lance_conn_id": self.lance_conn_id,
                "on_missing": str(self.on_missing),
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            watermark = await self._wait()
        except TerminalError as error:
            yield TriggerEvent(
                {"status": "error", "error": type(error).__name__, "message": str(error)}
            )
        else:
            yield TriggerEvent({"status": "met", "watermark": seen(watermark)})

    async def _wait(self) -> Watermark:
        condition = EpochCondition.from_json(self.condition)
        on_missing = OnMissing.parse(self.on_missing)
        teller = Teller(self.log)
        with subscribe(
            self.uri, self.query_id, lance_conn_id=self.lance_conn_id, interval=self.poll_interval
        ) as looks:
            while True:
                try:
                    watermark = (await looks.next()).judge(on_missing)
                except TransientError as error:
                    teller.say(
                        type(error),
                        logging.WARNING,
                        "The store did not answer; asking again. error=%s",
                        error,
                    )
                    continue
                found = describe(watermark)
                teller.say(found, logging.INFO, "Waiting for %s. %s", condition, found)
                if watermark and condition.is_met(watermark, datetime.now(UTC)):
                    return watermark
