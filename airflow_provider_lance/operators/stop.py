"""Stop a running stream in order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_lance.compat import AirflowException
from airflow_provider_lance.compat import conf as airflow_conf
from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    TransientError,
    error_class,
)
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.memory import task_key
from airflow_provider_lance.operators.specification import seconds
from airflow_provider_lance.streaming.properties import decode_query, require_query_id
from airflow_provider_lance.streaming.stopping import request_stop
from airflow_provider_lance.triggers.stop import (
    LanceStopTrigger,
    Stopping,
    StopState,
    process_of,
)

__all__ = ["LanceStreamStopOperator"]


class LanceStreamStopOperator(BaseOperator):
    """
    Ask a query's driver to stop after its current epoch, and wait until it has.

    The request goes through the dataset, so it reaches the driver wherever it runs. A driver that
    does not stop within its grace is killed, if it runs on this host; else the task fails and says
    where it is. A query that no driver owns, or that has no trace yet, is stopped already. Returns
    ``state`` (``released``, ``gone``, ``killed`` or ``none``), ``token``, ``watermark`` and
    ``version``. A driver that has not committed its first epoch owns nothing yet: it ends a few
    seconds later, when it sees the request.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: The streaming query. (templated)
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param stop_grace: How long the driver may take for its current epoch.
    :param deferrable: Wait in the triggerer.
    :param poll_interval: Seconds between two looks at the dataset.
    """

    template_fields: Sequence[str] = ("uri", "query_id", "lance_conn_id")
    ui_color = "#f4cccc"

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
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
        self.lance_conn_id = lance_conn_id
        self.stop_grace = stop_grace
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._killed = threading.Event()

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            grace = seconds(self.stop_grace, "stop_grace")
            token = self._ask(task_key(context))
            if token is None:
                self.log.info("No driver owns query %r: nothing to stop.", self.query_id)
                return {"state": "none", "token": None}
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

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return how the wait ended; kill a driver whose grace is over."""
        with no_retry_if_terminal():
            if "error" in event:
                raise error_class(event["error"])(event["message"])
            stopping = Stopping.from_json(event.pop("stopping"))
            state = StopState(event.pop("state"))
            if state is StopState.OVERDUE:  # it may have ended while this task waited its turn
                return self._end(stopping, *stopping.look(self.hook))
            return self._end(stopping, state, event)

    def on_kill(self) -> None:
        self._killed.set()

    def _ask(self, by: str) -> int | None:
        """Return the token that was asked to stop, ``None`` if there is no driver."""
        require_query_id(self.query_id)
        try:
            port = self.hook.open(self.uri)
        except DatasetNotFoundError:
            return None
        return request_stop(port, self.query_id, by=by)

    def _wait(self, stopping: Stopping) -> tuple[StopState, dict[str, Any]]:
        while True:
            try:
                state, seen = stopping.look(self.hook)
            except TransientError as error:
                self.log.warning("The store did not answer; asking again. error=%s", error)
            else:
                if state is not StopState.WAITING:
                    return state, seen
            if self._killed.wait(self.poll_interval):
                raise AirflowException("The task was ended; the stop request stands.")

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
        process = process_of(owner)
        if process.kill():
            self.log.warning("Its grace was over: killed pid %d.", process.pid)
            return "killed"
        if process.alive() is False:
            return StopState.GONE.value
        raise TransientError(
            f"the driver of query {self.query_id!r} (token {stopping.token}) did not stop within "
            f"{self.stop_grace}, and runs as pid {process.pid} on host {process.host!r}, out of "
            "this worker's reach. The request stands. End it there, or launch the query anew: the "
            "new driver fences it"
        )
