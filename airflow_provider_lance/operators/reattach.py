"""Find the driver that an earlier try of a task left running."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from airflow_provider_lance.backends.launch import Launch, same_task
from airflow_provider_lance.drivers.local import find
from airflow_provider_lance.drivers.run_directory import RunDirectory
from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.task_state import DriverTaskState
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.model import OwnerState, QueryState, StopNote
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
    stop_has_no_requester,
)

__all__ = [
    "find_launch",
    "launch_of_owner",
    "recheck_before_restart",
    "refuse_query_of_another",
]


def find_launch(
    memory: DriverTaskState, planned: Launch, root: Path, hook: LanceHook
) -> Launch | None:
    """Return the newest launch of this task instance that may still run.

    Airflow's task state names it; if that is missing, the owner record in the dataset.

    :param planned: a launch as this try would make it.
    :param root: where drivers of this host keep their logs.
    """
    known = memory.launch
    if known is None:
        owner = launch_of_owner(planned, root, hook)
        return owner if owner and owner.launch_id != memory.over else None
    if known.driver is not None:
        return known
    # Noted before its driver was started: the driver wrapper's own note says whether it was.
    driver = find(root, known.query_id, known.launch_id)
    if driver is None and RunDirectory(root, known.query_id, known.launch_id).path.is_dir():
        return None  # it was given up before its start, on this host
    return known.found_at(driver)


def launch_of_owner(planned: Launch, root: Path, hook: LanceHook) -> Launch | None:
    """Return the launch that owns the query, if it is active and belongs to this task instance."""
    try:
        port = hook.open(planned.uri)
    except DatasetNotFoundError:
        return None
    owner = decode_query(port.config, planned.query_id, port.version).owner
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
        driver=find(root, planned.query_id, owner.driver.launch_id),
    )


def refuse_query_of_another(planned: Launch, hook: LanceHook) -> None:
    """Refuse a default query id if another task has run that query before.

    Two streams into one dataset would otherwise take turns under the dataset's name, and share a
    checkpoint.

    :param planned: a launch of this task whose query id is the dataset's name.
    :raises SpecError: the query's last driver was launched by another task.
    """
    try:
        port = hook.open(planned.uri)
    except DatasetNotFoundError:
        return
    owner = decode_query(port.config, planned.query_id, port.version).owner
    last = owner.driver.launched_by if owner else ""
    if last and last.split("/")[:2] != planned.launched_by.split("/")[:2]:
        task, other = ("/".join(each.split("/")[:2]) for each in (planned.launched_by, last))
        raise SpecError(
            f"query_id is not given, and {planned.query_id!r}, which stands for it after the "
            f"dataset {planned.uri!r}, is the query of task {other}; this is task {task}. Write "
            f"query_id={planned.query_id!r} if this task continues that query, for example after "
            "it was renamed; give another query_id if it is a second stream into the dataset"
        )


def recheck_before_restart(
    lost: Launch, task_key: str, hook: LanceHook
) -> SupervisionOutcome | None:
    """Return why no driver may follow a lost one after all, ``None`` if one must."""
    try:
        port = hook.open(lost.uri)
    except DatasetNotFoundError:
        return None
    state = decode_query(port.config, lost.query_id, port.version)
    note = _request_to(state, lost.launch_id)
    if note and not stop_has_no_requester(note.by, task_key):
        # The request came when the driver could no longer obey.
        reason = f"asked to by {note.by or 'somebody'} before a new driver was launched"
        return SupervisionOutcome(Action.END, StreamState.STOPPED, reason, asked_by=note.by)
    who = _owned_by_another(state, lost)
    if who and not same_task(who, task_key):
        # Spark ends the driver that is late with its log, before the fence does.
        reason = f"{who} owns the query by now"
        return SupervisionOutcome(Action.END, StreamState.FENCED, reason)
    return None


def _request_to(state: QueryState, launch_id: str) -> StopNote | None:
    """Return the current stop request, if it means this launch."""
    note, owner = standing_request(state), state.owner
    held = owner.token if owner and owner.driver.launch_id == launch_id else None
    return note if note and note.means(launch_id, held) else None


def _owned_by_another(state: QueryState, launch: Launch) -> str:
    """Return who claimed the query since a launch and has not released it; empty if none."""
    owner = state.owner
    if owner is None or owner.state is OwnerState.RELEASED:
        return ""
    if owner.driver.launch_id == launch.launch_id:
        return ""
    later = datetime.fromisoformat(owner.time) > datetime.fromisoformat(launch.launched_at)
    named = owner.driver.launched_by or owner.driver.launch_id or owner.driver.run_id
    return named if later else ""
