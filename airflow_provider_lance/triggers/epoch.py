"""Wait for a query's epoch watermark, or for a consumer, in the triggerer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.exceptions import TerminalError, TransientError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.consumer_state import ConsumerCondition, ConsumerReader
from airflow_provider_lance.triggers.poll import Teller, subscribe
from airflow_provider_lance.triggers.threads import Pool, in_thread
from airflow_provider_lance.triggers.watermark_follower import (
    DATASET,
    OnMissing,
    WatermarkSnapshot,
    describe,
    seen,
)

__all__ = ["LanceEpochTrigger"]

_Seen = tuple[EpochCondition | ConsumerCondition, str, dict[str, Any]]
"""What is waited for, what was seen, and the event if the wait is over."""
_Look = Callable[[WatermarkSnapshot], Awaitable[_Seen]]


class LanceEpochTrigger(BaseTrigger):
    """
    Fire once when a query's epoch watermark, or a consumer's position, meets a condition.

    The event is ``{"status": "met", "watermark": {"epoch", "version", "committedAt"}}``; for a
    consumer ``{"status": "met", "position": {"version", "index", "snapshot", "writtenAt",
    "newestVersion"}}``; or ``{"status": "error", "error", "message"}`` for an error that waiting
    cannot solve. A store that does not answer is asked again. All triggers that watch one dataset
    share one poll.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI.
    :param query_id: The streaming query that writes the dataset; not with ``consumer_id``.
    :param condition: The condition, as ``EpochCondition.to_json`` makes it; for a consumer as
        ``ConsumerCondition.to_json`` does.
    :param consumer_id: The consumer, a streaming query that reads the dataset.
    :param lance_conn_id: The Lance connection; its secrets are read where the trigger runs.
    :param on_missing: ``wait`` or ``fail`` while dataset or query does not exist.
    :param poll_interval: The longest time between two polls, in seconds.
    """

    def __init__(
        self,
        *,
        uri: str,
        query_id: str | None = None,
        condition: dict[str, Any],
        consumer_id: str | None = None,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        on_missing: str = OnMissing.WAIT,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.uri = uri
        self.query_id = query_id
        self.condition = condition
        self.consumer_id = consumer_id
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
                "consumer_id": self.consumer_id,
                "lance_conn_id": self.lance_conn_id,
                "on_missing": str(self.on_missing),
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            met = await self._wait()
        except TerminalError as error:
            yield TriggerEvent(
                {"status": "error", "error": type(error).__name__, "message": str(error)}
            )
        else:
            yield TriggerEvent({"status": "met", **met})

    async def _wait(self) -> dict[str, Any]:
        if self.consumer_id is None:
            look, watched = self._look_for_epoch(), require_query_id(self.query_id)
        else:
            look, watched = self._look_for_consumer(self.consumer_id), DATASET
        teller = Teller(self.log)
        with subscribe(
            self.uri, watched, lance_conn_id=self.lance_conn_id, interval=self.poll_interval
        ) as looks:
            while True:
                try:
                    condition, found, met = await look(await looks.next())
                except TransientError as error:
                    teller.say(
                        type(error),
                        logging.WARNING,
                        "The store did not answer; asking again. error=%s",
                        error,
                    )
                    continue
                teller.say(found, logging.INFO, "Waiting for %s. %s", condition, found)
                if met:
                    return met

    def _look_for_epoch(self) -> _Look:
        condition = EpochCondition.from_json(self.condition)
        on_missing = OnMissing.parse(self.on_missing)

        async def look(snapshot: WatermarkSnapshot) -> _Seen:
            watermark = snapshot.judge(on_missing)
            is_met = watermark and condition.is_met(watermark, datetime.now(UTC))
            met = {"watermark": seen(watermark)} if watermark and is_met else {}
            return condition, describe(watermark), met

        return look

    def _look_for_consumer(self, consumer_id: str) -> _Look:
        condition = ConsumerCondition.from_json(self.condition)
        reader = ConsumerReader(consumer_id, OnMissing.parse(self.on_missing))

        async def look(snapshot: WatermarkSnapshot) -> _Seen:
            nonlocal condition
            state = await in_thread(Pool.LOOKS, reader.read, snapshot)
            condition = condition.at(state)
            met = {"position": state.shown()} if condition.is_met(state) else {}
            return condition, str(state), met

        return look
