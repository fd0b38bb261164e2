"""Stop a running stream in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, Context

from airflow_provider_lance.compat import AirflowException
from airflow_provider_lance.compat import conf as airflow_conf
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    SpecError,
    TerminalError,
    TransientError,
    error_class,
)
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.checks import check_dataset, is_mapped
from airflow_provider_lance.operators.specification import seconds
from airflow_provider_lance.operators.supervision import check_poll_interval
from airflow_provider_lance.operators.task_state import task_key
from airflow_provider_lance.protocol.codec import decode_query, query_ids, require_query_id
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.stop import LanceStopTrigger, Stopping, StopState
from airflow_provider_lance.triggers.watermark_follower import Follower, OnMissing

__all__ = ["LanceStreamStopOperator"]

T = TypeVar("T")


class LanceStreamStopOperator(BaseOperator):
    """
    Ask a query's driver to stop after its current epoch, and wait until it has.

    The request goes through the dataset, so it reaches the driver wherever it runs. A driver that
    does not stop within its grace is killed if it runs on this host; otherwise the task fails and
    names the driver's host. A query whose driver has ended is already stopped; a driver that is
    starting then obeys as soon as it has started. Returns ``state``
    (``released``, ``gone`` or ``killed``), ``token``, ``watermark`` and ``version``.

    A dataset that does not exist, or that has no trace of the query, fails the task without
    retries: a misspelt name would otherwise leave the stream running behind a successful task. A
    stream leaves its first trace with its first rows.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: The streaming query. (templated)
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param on_missing: While the dataset or the query in it is missing: ``fail``, or ``wait`` for
        the query's first epoch and stop it then. Bounded by ``execution_timeout``.
    :param stop_grace: How long the driver may take for its current epoch.
    :param deferrable: Wait in the triggerer.
    :param poll_interval: Seconds between two polls of the dataset.
    """

    template_fields: Sequence[str] = ("uri", "query_id", "lance_conn_id")
    ui_color = "#f4cccc"

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
        on_missing: str = OnMissing.FAIL,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        stop_grace: timedelta = timedelta(minutes=2),
        deferrable: bool = airflow_conf.getboolean(
            "operators", "default_deferrable", fallback=False
        ),
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.query_id = query_id
        self.on_missing = OnMissing.parse(on_missing).value
        self.lance_conn_id = lance_conn_id
        self.stop_grace = stop_grace
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._killed = threading.Event()
        if not is_mapped(self):
            check_dataset(uri, query_id, lance_conn_id)
            seconds(stop_grace, "stop_grace")
            check_poll_interval(poll_interval)

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            require_query_id(self.query_id)
            grace = seconds(self.stop_grace, "stop_grace")
            token = self._ask(task_key(context))
            if isinstance(token, TerminalError):
                if self.on_missing == OnMissing.FAIL:
                    raise token
                self.log.info("Waiting for the query's first epoch. %s", token)
                return self._wait_for_query(context)
            self.log.info("Asked to stop. query=%s token=%d", self.query_id, token)
            deadline = datetime.now(UTC) + timedelta(seconds=grace)
            stopping = Stopping(
                self.uri, self.query_id, token, deadline.isoformat(), self.lance_conn_id
            )
            if self.deferrable:
                self.defer(
                    trigger=LanceStopTrigger(
                        stopping=stopping.to_json(), poll_interval=self.poll_interval
                    ),
                    method_name="execute_complete",
                    timeout=self.execution_timeout,
                )
            return self._end(stopping, *self._wait(stopping))

    def execute_appeared(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Ask the driver of a query that exists now."""
        with no_retry_if_terminal():
            if event["status"] == "error":
                raise error_class(event["error"])(event["message"])
        return self.execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return how the wait ended; kill a driver whose grace is over."""
        with no_retry_if_terminal():
            if "error" in event:
                raise error_class(event["error"])(event["message"])
            stopping = Stopping.from_json(event.pop("stopping"))
            state = StopState(event.pop("state"))
            if state is StopState.OVERDUE:  # it may have ended while this task was queued
                return self._end(stopping, *stopping.look(self.hook))
            return self._end(stopping, state, event)

    def on_kill(self) -> None:
        self._killed.set()

    def _ask(self, by: str) -> int | TerminalError:
        """Ask the owner to stop.

        :return: the token that was asked, or what is missing, the dataset or a claim, as an error.
        """
        try:
            port = self.hook.open(self.uri)
            token = request_stop(port, self.query_id, by=by)
            if token is not None:
                return token
            known = query_ids(port.latest().config)
        except DatasetNotFoundError as error:
            return error
        return SpecError(
            f"no driver has claimed query {self.query_id!r} in {port.uri}, which knows {known}, so "
            "no request was made. Correct uri or query_id; or write on_missing='wait', if its "
            "stream has read no rows yet"
        )

    def _wait_for_query(self, context: Context) -> dict[str, Any]:
        if self.deferrable:
            self.defer(
                trigger=LanceEpochTrigger(
                    uri=self.uri,
                    query_id=self.query_id,
                    condition=EpochCondition(epoch=0).to_json(),
                    lance_conn_id=self.lance_conn_id,
                    on_missing=OnMissing.WAIT.value,
                    poll_interval=self.poll_interval,
                ),
                method_name="execute_appeared",
                timeout=self.execution_timeout,
            )
        follower = Follower(self.hook, self.uri, self.query_id, OnMissing.WAIT)

        def appeared() -> bool | None:
            watermark = follower.look()
            met = watermark and EpochCondition(epoch=0).is_met(watermark, datetime.now(UTC))
            return True if met else None

        self._poll(appeared, "nothing was asked to stop")
        return self.execute(context)

    def _wait(self, stopping: Stopping) -> tuple[StopState, dict[str, Any]]:
        def ended() -> tuple[StopState, dict[str, Any]] | None:
            state, seen = stopping.look(self.hook)
            return None if state is StopState.WAITING else (state, seen)

        return self._poll(ended, "the stop request stands")

    def _poll(self, look: Callable[[], T | None], if_ended: str) -> T:
        """Return the first result other than ``None``; a store may be unreachable for a while."""
        while True:
            try:
                if (found := look()) is not None:
                    return found
            except TransientError as error:
                self.log.warning("The store did not answer; asking again. error=%s", error)
            if self._killed.wait(self.poll_interval):
                raise AirflowException(f"The task was ended; {if_ended}.")

    def _end(self, stopping: Stopping, state: StopState, seen: dict[str, Any]) -> dict[str, Any]:
        how = self._kill(stopping) if state is StopState.OVERDUE else state.value
        result = {"state": how, "token": stopping.token, **seen}
        self.log.info("The stream has stopped. %s", result)
        return result

    def _kill(self, stopping: Stopping) -> str:
        """Kill the driver whose grace is over, by its exact identity; return how it ended."""
        port = self.hook.open(self.uri)
        owner = decode_query(port.config, self.query_id, port.version).owner
        if owner is None or owner.token != stopping.token:
            return StopState.GONE.value
        process = ProcessIdentity.recorded(owner.driver)
        if process.kill():
            self.log.warning("Its grace was over: killed. pid=%d", process.pid)
            return "killed"
        if process.alive() is False:
            return StopState.GONE.value
        raise TransientError(
            f"the driver of query {self.query_id!r} (token {stopping.token}) did not stop within "
            f"{self.stop_grace}, and runs as pid {process.pid} on host {process.host!r}, which "
            "this worker cannot reach. The request stands. End it there, or launch the query "
            "again: the new driver fences it"
        )
