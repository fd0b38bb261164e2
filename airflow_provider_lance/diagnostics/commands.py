"""What findings advise: ``lance-stream`` commands quoted for a shell, and tasks to clear."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = [
    "NEW_GENERATION",
    "command",
    "dataset_command",
    "described",
    "name_of",
    "shown_checkpoint",
    "start_again",
]

NEW_GENERATION = (
    "or start once with onCheckpointChange=newGeneration, which numbers epochs anew and reads the "
    "source from where the checkpoint stands"
)

_TASK = re.compile(r"(?P<dag>[^/]+)/(?P<task>[^/]+)/(?P<run>.+)/(?P<index>-?\d+)#\d+")
"""The form of a driver's ``launchedBy`` if a task launched it: `dag/task/run/map index#try`."""


def command(evidence: Evidence, *verb: str, options: tuple[str, ...] = ()) -> str:
    """Return a command for one stream.

    :param verb: the words before the URI, such as ``resolve``, ``gap``.
    """
    owner = evidence.state.owner
    recorded = owner.driver.checkpoint_location if owner else ""
    location = evidence.checkpoint_location
    if location and location != recorded and "--checkpoint" not in options:
        options = (*options, "--checkpoint", location)
    return command_line(
        *verb,
        evidence.uri,
        evidence.query_id,
        *options,
        connection_arguments=evidence.connection_arguments,
    )


def dataset_command(
    uri: str, connection_arguments: str, *verb: str, options: tuple[str, ...] = ()
) -> str:
    """Return a command for a dataset."""
    return command_line(*verb, uri, *options, connection_arguments=connection_arguments)


def start_again(launched_by: str) -> str:
    """Return how to start a stream again: by clearing the task that launched it, if one did."""
    found = _TASK.fullmatch(launched_by)
    if not found:
        return "start the stream again"
    mapped = f", map index {found['index']}" if found["index"] != "-1" else ""
    return f"clear task {found['task']} of DAG {found['dag']}, run {found['run']}{mapped}"


def name_of(driver: DriverObservation) -> str:
    """Return where a driver runs, and its launch."""
    return f"{driver.where} ({f'launch {driver.launch_id}' if driver.launch_id else 'no launch'})"


def described(driver: DriverObservation) -> dict[str, Any]:
    """Return a driver in the form that evidence shows."""
    return {
        "launchId": driver.launch_id,
        "driver": driver.where,
        "alive": driver.alive,
        "heartbeatAt": driver.heartbeat.time if driver.heartbeat else None,
        "token": driver.token,
        "ended": driver.summary.reason.value if driver.summary else None,
    }


def shown_checkpoint(evidence: Evidence, seen: Checkpoint | None) -> dict[str, Any]:
    """Return a checkpoint and what the dataset records, in the form that evidence shows."""
    owner, watermark = evidence.state.owner, evidence.watermark
    return {
        "checkpointLocation": evidence.checkpoint_location,
        "recordedLocation": owner.driver.checkpoint_location if owner else None,
        "recordedId": owner.driver.checkpoint_id if owner else None,
        "checkpointId": seen.id if seen else None,
        "planned": seen.planned if seen else None,
        "committed": seen.committed if seen else None,
        "watermark": watermark.epoch,
        "configWatermark": evidence.state.watermark,
        "version": evidence.version,
    }
