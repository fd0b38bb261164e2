"""Ask one launch to stop, wherever it runs; wait until a driver that was asked has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    TerminalError,
    TransientError,
)
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.decoding import Reader, moment
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import Owner, OwnerState
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.supervision.liveness import observe_owner
from airflow_provider_lance.triggers.threads import Pool, in_thread

__all__ = ["LanceStopTrigger", "StopState", "Stopping", "ask_to_stop", "end_launch"]


def ask_to_stop(launch: Launch, hook: LanceHook, by: str) -> bool:
    """Ask exactly this launch to stop after its current epoch; return whether it could be asked.

    On the driver's own host, this asks its driver wrapper, which returns at once, asks through the
    dataset, and kills the driver when its grace has run out. Elsewhere this asks through the
    dataset directly: blocks.

    :param by: who asks, for the driver's summary and its readers.
    :raises TransientError: the store did not answer.
    """
    if launch.driver.stop(by):
        return True
    try:
        port = hook.open(launch.uri)
    except DatasetNotFoundError:
        return False
    return request_stop(port, launch.query_id, by=by, launch_id=launch.launch_id) is not None


def end_launch(launch: Launch, hook: LanceHook, by: str) -> str:
    """Ask a launch to stop, or kill it if it cannot be asked; return what was done, as text.

    :raises TransientError: the store did not answer.
    """
    if ask_to_stop(launch, hook, by):
        return "asked to stop"
    # There is no dataset to ask through, so the driver cannot be in the middle of a commit.
    if launch.driver.kill():
        return "killed"
    return "found no driver to ask"


class StopState(StrEnum):
    """The progress of a stop."""

    WAITING = "waiting"
    RELEASED = "released"
    """The driver has ended in order."""
    GONE = "gone"
    """Its process has exited, or a newer driver has the query; it did not release."""
    OVERDUE = "overdue"
    """It still runs, and its grace is over."""


@dataclass(frozen=True, slots=True)
class Stopping(JsonRecord):
    """One stop in progress: which owner was asked, and its deadline."""

    uri: str
    query_id: str
    token: int
    deadline: str
    lance_conn_id: str | None = LanceHook.default_conn_name

    json_name = "a stop under way"
    json_readers: ClassVar[Mapping[str, Reader]] = {"deadline": moment}

    def look(self, hook: LanceHook) -> tuple[StopState, dict[str, Any]]:
        """Return the stop's progress, and what the dataset shows. Blocks.

        :raises TransientError: the store did not answer.
        """
        port = hook.open(self.uri)
        owner = decode_query(port.config, self.query_id, port.version).owner
        watermark = exact_watermark(port, self.query_id)
        shown = {"watermark": watermark.epoch, "version": watermark.version}
        return self._state(owner, hook), shown

    def _state(self, owner: Owner | None, hook: LanceHook) -> StopState:
        if owner is None or owner.token > self.token:
            return StopState.GONE
        if owner.state is OwnerState.RELEASED:
            return StopState.RELEASED
        if observe_owner(owner.driver, hook.files).liveness(process_first=True).alive is False:
            return StopState.GONE
        over = datetime.now(UTC) >= datetime.fromisoformat(self.deadline)
        return StopState.OVERDUE if over else StopState.WAITING


class LanceStopTrigger(BaseTrigger):
    """
    Fire once a driver that was asked to stop has done so, or its grace is over.

    The event is ``{"state", "stopping", "watermark", "version"}``, or ``{"error", "message"}``.

    :param stopping: The stop to wait for, as ``Stopping.to_json`` makes it.
    :param poll_interval: Seconds between two polls.
    """

    def __init__(self, *, stopping: dict[str, Any], poll_interval: float = 5.0) -> None:
        super().__init__()
        self.stopping = stopping
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"stopping": self.stopping, "poll_interval": self.poll_interval},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        stopping = Stopping.from_json(self.stopping)
        hook = LanceHook(stopping.lance_conn_id)
        while True:
            try:
                state, seen = await in_thread(Pool.LOOKS, stopping.look, hook)
            except TransientError as error:
                self.log.warning("The store did not answer; asking again. error=%s", error)
            except TerminalError as error:
                yield TriggerEvent({"error": type(error).__name__, "message": str(error)})
                return
            else:
                if state is not StopState.WAITING:
                    yield TriggerEvent({"state": state.value, "stopping": self.stopping, **seen})
                    return
            await asyncio.sleep(self.poll_interval)
