"""The driver of a task instance: found again by a later try, launched, or asked to stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Self

from airflow_provider_lance.backends.launch import ClusterDriver, Launch, UnseenDriver, same_task
from airflow_provider_lance.backends.submission import Submission
from airflow_provider_lance.backends.submit import driver_root, plan_launch, start_driver
from airflow_provider_lance.drivers.local import find
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.specification import fingerprint
from airflow_provider_lance.operators.task_state import DriverTaskState, task_key
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.model import OwnerState, QueryState, StopNote
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.health import Limits, StreamState
from airflow_provider_lance.triggers.stop import end_launch
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
    stop_has_no_requester,
)
from airflow_provider_lance.triggers.supervisor import Supervisor

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

__all__ = ["StreamRequest", "TaskDriver"]


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """All that a backend needs to start a driver; ``launch`` has no driver yet."""

    spec: JobSpec
    submission: Submission
    launch: Launch

    @classmethod
    def of(cls, spec: JobSpec, submission: Submission) -> Self:
        """Return the request for a new launch."""
        return cls(spec, submission, plan_launch(spec, fingerprint(spec, submission.to_json())))


class TaskDriver:
    """The driver of one task instance, as one process of one of its tries sees it.

    ``launch`` is the newest launch that this process started or supervises.
    """

    def __init__(self, context: Context, hook: LanceHook, log: Logger) -> None:
        self._context, self._hook, self._log = context, hook, log
        self.task_key = task_key(context)
        self.launch: Launch | None = None

    @cached_property
    def _state(self) -> DriverTaskState:
        return DriverTaskState.of(self._context)

    def find(self, request: StreamRequest, limits: Limits) -> Launch | None:
        """Return a launch of an earlier try whose driver still runs.

        One that was launched with other arguments, or before the task was cleared, is asked to
        stop.
        """
        planned = request.launch
        found = _find_launch(self._state, planned, self._hook)
        if found is None:
            return None
        found = _seen_by_cluster(found, request.submission)
        health = Supervisor(found, self._hook, limits).look()
        if health.state.ended or health.state.lost:
            self._log.info("The previous driver has exited. launch=%s %s", found.launch_id, health)
            found.driver.kill()
            return None
        self._log.info("Found the driver again. where=%s %s", found.driver.where(), health)
        changed = bool(found.fingerprint) and found.fingerprint != planned.fingerprint
        if changed or self._state.was_cleared:
            why = "its arguments changed" if changed else "the task was cleared"
            self._log.info("It is asked to stop, and a new one follows: %s.", why)
            end_launch(found, self._hook, found.launched_by)
        else:
            self._state.keep(found)
        return found

    def start(self, request: StreamRequest) -> Launch:
        """Start a new driver."""
        self._state.keep(request.launch)  # before the start: a later try must be able to find it
        self.launch = request.launch
        try:
            driver = start_driver(request.spec, request.submission, driver_root())
        except BaseException:
            if not request.submission.manager:  # nothing was left running here
                self._state.keep(request.launch, over=True)
            raise
        launch = replace(request.launch, driver=driver)
        self.keep(launch)
        self._log.info(
            "Launched. query=%s launch=%s where=%s",
            launch.query_id,
            launch.launch_id,
            driver.where(),
        )
        return launch

    def keep(self, launch: Launch, *, over: bool = False) -> None:
        """Note updated values, which can be found out again if Airflow does not keep them."""
        try:
            self._state.keep(launch, over=over)
        except Exception as error:
            self._log.warning("Airflow did not keep the task's state. error=%s", error)

    def ask_to_stop(self, launch: Launch) -> None:
        """Ask a launch's driver to stop; log what came of it, also an error."""
        try:
            result = end_launch(launch, self._hook, self.task_key)
        except Exception as error:
            self._log.warning("Cannot ask the driver to stop. error=%s", error)
        else:
            self._log.info("The driver: %s. where=%s", result, launch.driver.where())

    def stop_earlier(self) -> None:
        """Ask an earlier try's driver to stop: this try fails and would leave it unsupervised."""
        earlier = self._state.launch
        if earlier is not None and earlier.driver.alive() is not False:
            self.ask_to_stop(earlier)

    def kill_remains(self, launch: Launch) -> None:
        """Kill a driver that has not exited, if that is possible from here."""
        driver = launch.driver
        if driver.alive() is False:
            return
        if driver.kill():
            self._log.warning("Killed what was left of the driver. where=%s", driver.where())
        else:
            self._log.warning(
                "The old driver cannot be ended from here. If it still runs, it can commit "
                "nothing: the next one fences it. where=%s",
                driver.where(),
            )

    def own_successor(self, launch: Launch, outcome: SupervisionOutcome) -> Launch | None:
        """Return the launch that fenced this one, if it belongs to the same task instance."""
        if outcome.state is not StreamState.FENCED:
            return None
        other = _launch_of_owner(launch, self._hook)
        return other if other and other.launch_id != launch.launch_id else None

    def recheck_before_restart(self, lost: Launch) -> SupervisionOutcome | None:
        """Return why no driver may follow a lost one after all, ``None`` if one must."""
        state = _query_state(lost, self._hook)
        if state is None:
            return None
        note = _request_to(state, lost.launch_id)
        if note and not stop_has_no_requester(note.by, self.task_key):
            # The request came when the driver could no longer obey.
            reason = (
                f"asked to stop by {note.by or 'an unnamed user'} before a new driver was launched"
            )
            return SupervisionOutcome(Action.END, StreamState.STOPPED, reason, asked_by=note.by)
        who = _later_owner(state, lost)
        if who and not same_task(who, self.task_key):
            # Spark ends the driver that is late with its log, before the fence does.
            reason = f"{who} owns the query by now"
            return SupervisionOutcome(Action.END, StreamState.FENCED, reason)
        return None

    def refuse_query_of_another(self, planned: Launch) -> None:
        """Refuse a default query id if another task has run that query before.

        Two streams into one dataset would otherwise take turns under the dataset's name, and share
        a checkpoint.

        :param planned: a launch of this task whose query id is the dataset's name.
        :raises SpecError: the query's last driver was launched by another task.
        """
        self._log.info("No query_id is given: the query is %r.", planned.query_id)
        state = _query_state(planned, self._hook)
        last = state.owner.driver.launched_by if state and state.owner else ""
        task, other = ("/".join(by.split("/")[:2]) for by in (planned.launched_by, last))
        if last and task != other:
            raise SpecError(
                f"query_id is not given, and {planned.query_id!r}, the name of the dataset "
                f"{planned.uri!r}, is the query of task {other}; this is task {task}. Write "
                f"query_id={planned.query_id!r} if this task continues that query, for example "
                "after it was renamed; give another query_id if it is a second stream into the "
                "dataset"
            )


def _find_launch(state: DriverTaskState, planned: Launch, hook: LanceHook) -> Launch | None:
    """Return the newest launch of this task instance that may still run.

    Airflow's task state names it; if that is missing, the owner record in the dataset.

    :param planned: a launch as this try would make it.
    """
    known, root = state.launch, driver_root()
    if known is None:
        owner = _launch_of_owner(planned, hook)
        return owner if owner and owner.launch_id != state.over else None
    if not isinstance(known.driver, UnseenDriver):
        return known
    # Noted before its driver was started: the driver wrapper's own note says whether it was.
    if driver := find(root, known.query_id, known.launch_id):
        return replace(known, driver=driver)
    if RunDirectory(root, known.query_id, known.launch_id).path.is_dir():
        return None  # it was given up before its start, on this host
    return known


def _seen_by_cluster(launch: Launch, submission: Submission) -> Launch:
    """Return a launch with the driver that its cluster knows, if it was not known.

    A worker may die after spark-submit has handed a driver over, and before the driver is noted.
    """
    if submission.manager is None or not isinstance(launch.driver, UnseenDriver):
        return launch
    known = ClusterDriver.of_launch(submission.manager.name, submission.conn_id, launch.launch_id)
    return replace(launch, driver=known) if known else launch


def _launch_of_owner(planned: Launch, hook: LanceHook) -> Launch | None:
    """Return the launch that owns the query, if it is active and belongs to this task instance."""
    state = _query_state(planned, hook)
    owner = state.owner if state else None
    if owner is None or owner.state is OwnerState.RELEASED or not owner.driver.launch_id:
        return None
    if not same_task(owner.driver.launched_by, planned.launched_by):
        return None
    return replace(
        planned,
        launch_id=owner.driver.launch_id,
        launched_at=owner.time,
        launched_by=owner.driver.launched_by,
        fingerprint="",
        driver=find(driver_root(), planned.query_id, owner.driver.launch_id) or UnseenDriver(),
    )


def _query_state(launch: Launch, hook: LanceHook) -> QueryState | None:
    """Return what the dataset's config says of the query, ``None`` if there is no dataset."""
    try:
        port = hook.open(launch.uri)
    except DatasetNotFoundError:
        return None
    return decode_query(port.config, launch.query_id, port.version)


def _request_to(state: QueryState, launch_id: str) -> StopNote | None:
    """Return the current stop request, if it means this launch."""
    note, owner = standing_request(state), state.owner
    held = owner.token if owner and owner.driver.launch_id == launch_id else None
    return note if note and note.means(launch_id, held) else None


def _later_owner(state: QueryState, launch: Launch) -> str:
    """Return which driver claimed the query after a launch and still owns it; empty if none."""
    owner = state.owner
    if owner is None or owner.state is OwnerState.RELEASED:
        return ""
    if owner.driver.launch_id == launch.launch_id:
        return ""
    later = datetime.fromisoformat(owner.time) > datetime.fromisoformat(launch.launched_at)
    named = owner.driver.launched_by or owner.driver.launch_id or owner.driver.run_id
    return named if later else ""
