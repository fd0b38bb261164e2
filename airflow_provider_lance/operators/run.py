"""What a stream's task does: build the request, hand it to a backend, supervise, end.

1. Build the request from the operator's arguments.
2. Hand it to a backend, unless a driver of an earlier try still runs.
3. Supervise the driver until there is an outcome; if deferrable, in the triggerer.
4. Translate the end: a return value and asset events, or an error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.backends.cluster_managers import master_kind
from airflow_provider_lance.compat import AirflowException
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.links.lance import (
    LanceDatasetLink,
    LanceStreamLink,
    SparkUILink,
    dataset_url,
    spark_ui_url,
    stream_url,
)
from airflow_provider_lance.operators.driver import StreamRequest, TaskDriver
from airflow_provider_lance.operators.lineage import StreamResult, is_wanted
from airflow_provider_lance.operators.specification import doubts
from airflow_provider_lance.operators.task_result import emit_events, task_result
from airflow_provider_lance.operators.turn import await_turn, new_turn
from airflow_provider_lance.spec.job import AVAILABLE_NOW
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig, SupervisionLoop
from airflow_provider_lance.triggers.supervision_outcome import Action, SupervisionOutcome
from airflow_provider_lance.triggers.turns import Turn

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_lance.backends.launch import Launch
    from airflow_provider_lance.operators.stream import LanceStreamOperator

__all__ = ["StreamRun"]

_LAST_SECONDS = 10.0
"""How long a driver may take to end after its summary; one that hangs then is killed."""

_GLANCE_SECONDS = 0.25
"""How often a waiting task checks on this host whether the driver still runs."""


class StreamRun:
    """What :class:`.LanceStreamOperator` does in one process, in one call by Airflow."""

    def __init__(self, operator: LanceStreamOperator, context: Context) -> None:
        self._operator, self._context = operator, context
        self._hook, self._log = operator.hook, operator.log
        self._driver = TaskDriver(context, operator.hook, operator.log)
        self._killed = threading.Event()

    def begin(self, waited: Turn | None = None) -> dict[str, Any]:
        """Find the driver of an earlier try or launch one, and supervise it to its end.

        :param waited: the turn that the triggerer has waited for.
        """
        request = self._build_request()
        config = self._hand_over(request, waited)
        return self._run_to_end(config)

    def resume(self, event: dict[str, Any]) -> dict[str, Any]:
        """Do what the triggerer's outcome says: end, or launch a driver."""
        if "turn" in event:
            return self.begin(Turn.from_json(event["turn"]))
        outcome = SupervisionOutcome.from_json(event["outcome"])
        config = SupervisionConfig.from_json(event["order"])
        self._show_links(config.launch.uri)
        return self._run_to_end(config, outcome)

    def kill(self) -> None:
        """Ask the driver to stop, within the five seconds that Airflow gives, and return.

        Its driver wrapper kills it after its grace. Landing each epoch once does not depend on it.
        """
        self._killed.set()
        if launch := self._driver.launch:
            asking = threading.Thread(target=self._driver.ask_to_stop, args=(launch,), daemon=True)
            asking.start()
            asking.join(4)

    def _run_to_end(
        self, config: SupervisionConfig, outcome: SupervisionOutcome | None = None
    ) -> dict[str, Any]:
        """Supervise one driver after another until the stream is over; or defer."""
        while True:
            if outcome is None:
                config, outcome = self._supervise(config)
            following = self._follow(config, outcome)
            if isinstance(following, SupervisionOutcome):
                return self._end(config, following)
            config, outcome = following, None

    # --- 1. Build the request ------------------------------------------------------------------

    def _build_request(self) -> StreamRequest:
        try:
            request = self._operator.request(self._driver.task_key)
            if self._operator.query_id is None:
                self._driver.refuse_query_of_another(request.launch)
        except SpecError:
            self._driver.stop_earlier()
            raise
        for warning in doubts(request.spec):
            self._log.warning("%s", warning)
        return request

    # --- 2. Hand it to a backend ---------------------------------------------------------------

    def _hand_over(self, request: StreamRequest, waited: Turn | None) -> SupervisionConfig:
        config = self._config(request)
        if waited:
            config = replace(config, deadline=waited.deadline)
        self._show_links(config.launch.uri)
        launch = self._driver.find(request, config.limits)
        if launch is None:
            master_kind(request.submission.connection).require(request.submission.connection)
        if request.spec.trigger == AVAILABLE_NOW:
            turn = waited or new_turn(config, self._context)
            if launch:
                turn.noted(self._context["ti"], going=True)
            elif await_turn(turn, self._operator, self._context, self._pause):
                # The launch's age counts from now on.
                request = self._operator.request(self._driver.task_key)
        if is_wanted():
            config = replace(config, version=self._version(config.launch.uri))
        return replace(config, launch=launch or self._driver.start(request))

    def _config(self, request: StreamRequest) -> SupervisionConfig:
        ti = self._context["ti"]
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id}
        return self._operator.supervision_config(request.launch, self._driver.task_key, tags)

    def _version(self, uri: str) -> int | None:
        """Return the dataset's version, ``None`` if there is none or it is unreadable."""
        try:
            return self._hook.open(uri).version
        except LanceStreamError:
            return None

    # --- 3. Supervise --------------------------------------------------------------------------

    def _supervise(self, config: SupervisionConfig) -> tuple[SupervisionConfig, SupervisionOutcome]:
        """Poll until there is an outcome or, if deferrable, until the driver has started."""
        self._driver.launch = config.launch
        if self._killed.is_set():  # killed while it started
            self.kill()
        deferrable = self._operator.deferrable
        watch = SupervisionLoop(config, self._log, self._hook)
        while True:
            outcome = watch.step()
            self._show_spark_ui(watch)
            if outcome is not None and (outcome.action is Action.END or not deferrable):
                watch.conclude(outcome)
                self._pause(outcome.delay)
                return replace(config, rows=config.rows + watch.rows), outcome
            if deferrable and watch.health and watch.health.state is not StreamState.STARTING:
                # A back-off is waited for in the triggerer too.
                self._operator.defer(
                    trigger=LanceStreamTrigger(order=config.to_json()),
                    method_name="execute_complete",
                )
            self._pause(config.poll_interval, config.launch)

    def _follow(
        self, config: SupervisionConfig, outcome: SupervisionOutcome
    ) -> SupervisionConfig | SupervisionOutcome:
        """Return the driver to supervise next, started if necessary; or the stream's end."""
        launch = config.launch
        if outcome.ended is None:
            self._driver.kill_remains(launch)
        elif launch.driver.is_here:
            self._pause(_LAST_SECONDS, launch)  # its JVM takes a moment to end
            self._driver.kill_remains(launch)
        if other := self._driver.own_successor(launch, outcome):
            self._log.warning("Another driver of this task owns the query; supervising that one.")
            self._driver.keep(other)
            return replace(config, launch=other)
        if outcome.action is Action.END:
            return outcome
        if end := self._driver.recheck_before_restart(launch):
            self._log.warning("Stream %s: %s", end.state, end.reason)
            return end
        request = self._operator.request(self._driver.task_key)
        return replace(
            self._config(request),
            launch=self._driver.start(request),
            restarts=outcome.restarts,
            deadline=config.deadline,
            rows=config.rows,
            version=config.version,
        )

    def _pause(self, seconds: float, launch: Launch | None = None) -> None:
        """Wait, and return early once the launch's process has exited."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._killed.wait(min(left, _GLANCE_SECONDS)):
                raise AirflowException("The task was ended; its driver is asked to stop in order.")
            if launch and launch.driver.is_here and launch.driver.alive() is False:
                return

    # --- 4. Translate the end ------------------------------------------------------------------

    def _end(self, config: SupervisionConfig, outcome: SupervisionOutcome) -> dict[str, Any]:
        self._driver.keep(config.launch, over=True)
        self._operator.spark_ui_url = ""
        self._operator.result = StreamResult(config.version, config.rows, outcome.ended)
        summary = task_result(config.launch, outcome, self._log)
        summary["restarts"] = config.restarts.total
        emit_events(self._context, self._operator.outlets, summary, config.rows)
        return summary

    # --- Links ---------------------------------------------------------------------------------

    def _show_links(self, uri: str) -> None:
        task, ti = self._operator, self._context["ti"]
        page = stream_url(uri, task.query_name, task.lance_conn_id)
        LanceStreamLink.show(task, ti, page)
        LanceDatasetLink.show(task, ti, dataset_url(uri, self._hook.store.endpoint))

    def _show_spark_ui(self, watch: SupervisionLoop) -> None:
        heartbeat = watch.supervisor.heartbeat
        address = spark_ui_url(heartbeat.ui_address if heartbeat else "")
        if address and address != self._operator.spark_ui_url:
            SparkUILink.show(self._operator, self._context["ti"], address)
