"""One process's part in a stream's life: find or launch the driver, watch it, end or restart."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.backends.masters import master_kind
from airflow_provider_lance.backends.submission import Submission
from airflow_provider_lance.backends.submit import driver_root, plan_launch, start_driver
from airflow_provider_lance.compat import AirflowException
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.links.dataset import LanceDatasetLink, dataset_url
from airflow_provider_lance.links.spark_ui import SparkUILink, spark_ui_url
from airflow_provider_lance.links.stream import LanceStreamLink, stream_url
from airflow_provider_lance.operators.lineage import StreamResult, is_wanted
from airflow_provider_lance.operators.reattach import (
    find_launch,
    launch_of_owner,
    recheck_before_restart,
    refuse_query_of_another,
)
from airflow_provider_lance.operators.specification import fingerprint
from airflow_provider_lance.operators.task_result import emit_events, task_result
from airflow_provider_lance.operators.task_state import DriverTaskState, task_key
from airflow_provider_lance.operators.turn import refuse_to_wait, turn_of
from airflow_provider_lance.spec.job import AVAILABLE_NOW, JobSpec
from airflow_provider_lance.spec.source_options import doubtful_options
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory
from airflow_provider_lance.triggers.stop import end_launch
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig, SupervisionLoop
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
)
from airflow_provider_lance.triggers.supervisor import Supervisor
from airflow_provider_lance.triggers.turns import LanceTurnTrigger, Turn, take_turn

if TYPE_CHECKING:
    from airflow.sdk import Context

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
        self._task_key = task_key(context)
        self._killed = threading.Event()
        self._launch: Launch | None = None

    def begin(self, waited: Turn | None = None) -> dict[str, Any]:
        """Find the driver of an earlier try or launch one, and watch it to its end.

        :param waited: the turn that the triggerer has waited for.
        """
        try:
            spec, submission, planned = self._plan()
            if self._operator.query_id is None:
                self._log.info("No query_id is given: the query is %r.", planned.query_id)
                refuse_query_of_another(planned, self._hook)
        except SpecError:
            self._leave_nothing_behind()
            raise
        if spec.source:
            for warning in doubtful_options(spec.source.format, spec.source.options):
                self._log.warning("%s", warning)
        order = self._order(planned)
        if waited:
            order = replace(order, deadline=waited.deadline)
        self._show(spec.sink.uri)
        launch = self._find(planned)
        if launch is None:
            master_kind(submission.connection).require(submission.connection)
        if spec.trigger == AVAILABLE_NOW:
            turn = waited or turn_of(order, self._context)
            if launch:
                turn.noted(self._context["ti"], going=True)
            elif self._await(turn):
                spec, submission, planned = self._plan()  # its age counts from now on
        if is_wanted():
            order = replace(order, version=self._version(spec.sink.uri))
        launch = launch or self._start(planned, spec, submission)
        return self._follow(replace(order, launch=launch))

    def resume(self, event: dict[str, Any]) -> dict[str, Any]:
        """Do what the triggerer's outcome says: end, or launch a driver."""
        if "turn" in event:
            return self.begin(Turn.from_json(event["turn"]))
        outcome = SupervisionOutcome.from_json(event["outcome"])
        order = SupervisionConfig.from_json(event["order"])
        self._show(order.launch.uri)
        return self._follow(order, outcome)

    def kill(self) -> None:
        """Ask the driver to stop, within the five seconds that Airflow gives, and return.

        Its driver wrapper kills it after its grace. Landing each epoch once does not depend on it.
        """
        self._killed.set()
        if self._launch:
            asking = threading.Thread(target=self._end, args=(self._launch,), daemon=True)
            asking.start()
            asking.join(4)

    def _end(self, launch: Launch) -> None:
        try:
            told = end_launch(launch, self._hook, self._task_key)
        except Exception as error:
            self._log.warning("Cannot ask the driver to stop. error=%s", error)
        else:
            self._log.info("The driver: %s. where=%s", told, launch.where())

    def _await(self, turn: Turn) -> bool:
        """Return when the turn has come, and whether it was waited for; or defer.

        :raises AirflowTaskTimeout: the task's time was up before.
        :raises TransientError: the same run has been waited for too long.
        """
        waited = bool(turn.waits_for)
        while (turn := take_turn(turn, self._context["ti"], self._hook)).waits_for:
            refuse_to_wait(turn)
            self._log.info("Waiting for %s.", turn.waits_for)
            if self._operator.deferrable:
                self._operator.defer(
                    trigger=LanceTurnTrigger(turn=turn.to_json()), method_name="execute_complete"
                )
            waited = True
            while turn.look(self._hook) == turn.waits_for:
                refuse_to_wait(turn)
                self._pause(turn.poll_interval)
        if waited:
            self._log.info("Its turn has come. query=%s", turn.query_id)
        return waited

    # --- The driver ----------------------------------------------------------------------------

    def _plan(self) -> tuple[JobSpec, Submission, Launch]:
        spec, submission = self._operator.job_spec(self._task_key), self._operator.submission()
        return spec, submission, plan_launch(spec, fingerprint(spec, submission.to_json()))

    def _leave_nothing_behind(self) -> None:
        """Ask an earlier try's driver to stop: this try fails and would leave it unsupervised."""
        earlier = DriverTaskState.of(self._context).launch
        if earlier is not None and earlier.alive() is not False:
            self._end(earlier)

    def _find(self, planned: Launch) -> Launch | None:
        """Return a launch of an earlier try whose driver still runs."""
        memory = DriverTaskState.of(self._context)
        found = find_launch(memory, planned, driver_root(), self._hook)
        if found is None:
            return None
        health = Supervisor(found, self._hook, self._order(found).limits).look()
        if health.state.ended or health.state.lost:
            self._log.info("The last driver is no more. launch=%s %s", found.launch_id, health)
            found.kill()
            return None
        self._log.info("Found the driver again. where=%s %s", found.where(), health)
        changed = bool(found.fingerprint) and found.fingerprint != planned.fingerprint
        if changed or memory.was_cleared:
            why = "its arguments changed" if changed else "the task was cleared"
            self._log.info("It is asked to stop, and a new one follows: %s.", why)
            end_launch(found, self._hook, found.launched_by)
        else:
            memory.keep(found)
        return found

    def _start(self, planned: Launch, spec: JobSpec, submission: Submission) -> Launch:
        memory = DriverTaskState.of(self._context)
        memory.keep(planned)  # before the start: a later try must be able to find it
        self._launch = planned
        try:
            driver = start_driver(spec, submission, driver_root())
        except BaseException:
            if not submission.manager:  # nothing was left running here
                memory.keep(planned, over=True)
            raise
        launch = planned.found_at(driver)
        self._keep(memory, launch)
        self._log.info(
            "Launched. query=%s launch=%s where=%s",
            launch.query_id,
            launch.launch_id,
            launch.where(),
        )
        return launch

    def _keep(self, memory: DriverTaskState, launch: Launch, *, over: bool = False) -> None:
        """Note updated values, which can be found out again if Airflow does not keep them."""
        try:
            memory.keep(launch, over=over)
        except Exception as error:
            self._log.warning("Airflow did not keep the task's state. error=%s", error)

    def _make_sure_it_is_gone(self, launch: Launch, *, in_order: bool) -> None:
        if in_order and not launch.is_here:
            return
        if in_order:
            self._pause(_LAST_SECONDS, launch)  # its JVM takes a moment to end
        if launch.alive() is False:
            return
        if launch.kill():
            self._log.warning("Killed what was left of the driver. where=%s", launch.where())
        else:
            self._log.warning(
                "The old driver cannot be ended from here. If it lives it can do no harm: the next "
                "one fences it. where=%s",
                launch.where(),
            )

    # --- The watch -----------------------------------------------------------------------------

    def _follow(
        self, order: SupervisionConfig, outcome: SupervisionOutcome | None = None
    ) -> dict[str, Any]:
        """Watch one driver after another until the stream is over; or defer."""
        while True:
            if outcome is None:
                order, outcome = self._watch(order)
            self._make_sure_it_is_gone(order.launch, in_order=outcome.ended is not None)
            if outcome.state is StreamState.FENCED and (other := self._own_successor(order.launch)):
                self._log.warning("Another driver of this task owns the query; watching that one.")
                self._keep(DriverTaskState.of(self._context), other)
                order, outcome = replace(order, launch=other), None
            elif outcome.action is Action.END:
                return self._over(order, outcome)
            elif second := recheck_before_restart(order.launch, self._task_key, self._hook):
                self._log.warning("Stream %s: %s", second.state, second.reason)
                return self._over(order, second)
            else:
                spec, submission, planned = self._plan()
                launch = self._start(planned, spec, submission)
                restarted = self._order(launch, outcome.restarts)
                order = replace(
                    restarted, deadline=order.deadline, rows=order.rows, version=order.version
                )
                outcome = None

    def _watch(self, order: SupervisionConfig) -> tuple[SupervisionConfig, SupervisionOutcome]:
        """Watch until there is an outcome or, if deferrable, until the driver has started."""
        self._launch = order.launch
        if self._killed.is_set():  # killed while it started
            self.kill()
        deferrable = self._operator.deferrable
        watch = SupervisionLoop(order, self._log, self._hook)
        while True:
            outcome = watch.step()
            self._show_ui(watch)
            if outcome is not None and (outcome.action is Action.END or not deferrable):
                watch.conclude(outcome)
                self._pause(outcome.delay)
                return replace(order, rows=order.rows + watch.rows), outcome
            if deferrable and watch.health and watch.health.state is not StreamState.STARTING:
                # A back-off is waited for in the triggerer too.
                self._operator.defer(
                    trigger=LanceStreamTrigger(order=order.to_json()),
                    method_name="execute_complete",
                )
            self._pause(order.poll_interval, order.launch)

    def _over(self, order: SupervisionConfig, outcome: SupervisionOutcome) -> dict[str, Any]:
        self._keep(DriverTaskState.of(self._context), order.launch, over=True)
        self._operator.spark_ui_url = ""
        self._operator.result = StreamResult(order.version, order.rows, outcome.ended)
        summary = task_result(order.launch, outcome, self._log)
        summary["restarts"] = order.restarts.total
        emit_events(self._context, self._operator.outlets, summary, order.rows)
        return summary

    def _own_successor(self, fenced: Launch) -> Launch | None:
        """Return a later launch of this same task that owns the query."""
        other = launch_of_owner(fenced, driver_root(), self._hook)
        return other if other and other.launch_id != fenced.launch_id else None

    def _order(self, launch: Launch, restarts: RestartHistory | None = None) -> SupervisionConfig:
        ti = self._context["ti"]
        tags = {"dag_id": ti.dag_id, "task_id": ti.task_id}
        order = self._operator.watch_order(launch, self._task_key, tags)
        return replace(order, restarts=restarts or RestartHistory())

    def _pause(self, seconds: float, launch: Launch | None = None) -> None:
        """Wait, and return early once the launch's process has exited."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._killed.wait(min(left, _GLANCE_SECONDS)):
                raise AirflowException("The task was ended; its driver is asked to stop in order.")
            if launch and launch.is_here and launch.alive() is False:
                return

    def _version(self, uri: str) -> int | None:
        """Return the dataset's version, ``None`` if there is none or it is unreadable."""
        try:
            return self._hook.open(uri).version
        except LanceStreamError:
            return None

    # --- Links ---------------------------------------------------------------------------------

    def _show(self, uri: str) -> None:
        task, ti = self._operator, self._context["ti"]
        task.stream_url = stream_url(uri, task.query_name, task.lance_conn_id)
        task.dataset_url = dataset_url(uri, self._hook.store.endpoint)
        ti.xcom_push(LanceStreamLink.xcom_key, task.stream_url)
        ti.xcom_push(LanceDatasetLink.xcom_key, task.dataset_url)

    def _show_ui(self, watch: SupervisionLoop) -> None:
        address = spark_ui_url(
            watch.supervisor.heartbeat.ui_address if watch.supervisor.heartbeat else ""
        )
        if address and address != self._operator.spark_ui_url:
            self._operator.spark_ui_url = address
            self._context["ti"].xcom_push(SparkUILink.xcom_key, address)
