"""Build findings: a case of the catalogue with its values, and the command to type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Code, Finding, Repair, Severity, Step
from airflow_provider_lance.protocol.commands import clear_task_line, command_line
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = [
    "again_or_not",
    "checkpoint_values",
    "command",
    "end_process",
    "finding",
    "restart",
    "start_again",
]

_TASK = re.compile(r"(?P<dag>[^/]+)/(?P<task>[^/]+)/(?P<run>.+)/(?P<index>-?\d+)#\d+")
"""The form of a driver's ``launchedBy`` if a task launched it: `dag/task/run/map index#try`."""


def finding(
    case: Case,
    shown: Mapping[str, Any],
    steps: str | Iterable[Step] = (),
    *,
    of: Evidence | None = None,
    severity: Severity | None = None,
    code: Code | None = None,
    repair: Repair | None = None,
    **values: object,
) -> Finding:
    """Return the finding of a case.

    :param shown: the proof, as the finding's evidence.
    :param steps: what ends the problem; a text is one command.
    :param of: the stream that it is about, if one; its own values need not be given.
    :param severity: another severity than the case's; ``code`` likewise.
    :param values: what the case's text names in braces.
    """
    if of is not None:
        values = {
            "uri": of.uri,
            "query": of.query_id,
            "version": of.version,
            "watermark": of.watermark.epoch if of.watermark.epoch > NO_EPOCH else "none yet",
            "location": of.checkpoint_location or "(none recorded)",
        } | values
    return Finding(
        code or case.code,
        case.summary.format_map(values),
        case.cause.format_map(values),
        _steps(steps),
        shown,
        str(values.get("query", "")),
        repair,
        severity or case.severity,
    )


def _steps(given: str | Iterable[Step]) -> tuple[Step, ...]:
    if isinstance(given, str):
        return (Step(command=given),) if given else ()
    return tuple(given)


def command(evidence: Evidence, *verb: str, options: tuple[str, ...] = ()) -> str:
    """Return a command for one stream.

    :param verb: the words before the URI, such as ``resolve``, ``gap``.
    """
    kept = evidence.kept_config
    owner = kept.state.owner if kept else evidence.state.owner
    recorded = owner.driver.checkpoint_location if owner else ""
    location = evidence.checkpoint_location
    unknown = evidence.state.owner is None  # only what is beside the checkpoint tells of it
    if location and (unknown or location != recorded) and "--checkpoint" not in options:
        options = (*options, "--checkpoint", location)
    return command_line(
        *verb,
        evidence.uri,
        evidence.query_id,
        *options,
        connection_arguments=evidence.connection_arguments,
    )


def start_again(launched_by: str, airflow_url: str = "") -> Step:
    """Return the step that starts a stream again: clear the task that launched it, if one did.

    :param launched_by: who launched the driver, empty if unknown.
    :param airflow_url: Airflow's address, for the link to the task; empty if unknown.
    """
    found = _TASK.fullmatch(launched_by)
    if not found:
        return Step("Start the stream again.")
    dag, task, run, index = found["dag"], found["task"], found["run"], int(found["index"])
    mapped = f", map index {index}" if index >= 0 else ""
    link = ""
    if airflow_url:
        names = [quote(each, safe="") for each in (dag, run, task)]
        link = "{}/dags/{}/runs/{}/tasks/{}".format(airflow_url.rstrip("/"), *names)
        link += f"/mapped/{index}" if index >= 0 else ""
    return Step(
        f"Clear task {task} of DAG {dag}, run {run}{mapped}: it starts the stream again.",
        clear_task_line(dag, run, task, index),
        link=link,
    )


def end_process(driver: DriverObservation, text: str, signal: str = "KILL") -> Step:
    """Return the step that sends a driver's process a signal, on its own host."""
    process = driver.process
    if process is None:
        return Step(text)
    return Step(text, f"kill -{signal} {process.pid}", process.host)


def again_or_not(evidence: Evidence, launched_by: str, host: str = "") -> list[Step]:
    """Return the two answers to a stream that nobody runs: start it again, or this is meant.

    :param host: where the second must be typed, if only there the driver is seen to be dead.
    """
    again = start_again(launched_by, evidence.airflow_url)
    if evidence.watermark.may_lack_epochs:
        return [again]  # its next start reads again what a restored version removed
    line = command(evidence, "release", options=("--for-good", "--yes"))
    return [
        replace(again, text=f"Either {again.text[0].lower()}{again.text[1:]}"),
        Step("Or say that the stream is not to run again:", line, host),
    ]


def restart(evidence: Evidence, option: str = "") -> Step:
    """Return the last step: what brings the stream back.

    :param option: options of the sink for this one start, as a DAG has them: ``{"name": "value"}``.
    """
    newest = evidence.drivers[0] if evidence.drivers else None
    owner = evidence.state.owner
    launched_by = newest.launched_by if newest else ""
    launched_by = launched_by or (owner.driver.launched_by if owner else "")
    again = start_again(launched_by, evidence.airflow_url)
    if not option:
        return again
    return replace(again, text=f"For one start, set sink_options={option} in the DAG. {again.text}")


def checkpoint_values(evidence: Evidence) -> dict[str, Any]:
    """Return the checkpoint and what the dataset records, in the form that evidence shows."""
    owner, seen = evidence.state.owner, evidence.checkpoint
    return {
        "checkpointLocation": evidence.checkpoint_location,
        "recordedLocation": owner.driver.checkpoint_location if owner else None,
        "recordedId": owner.driver.checkpoint_id if owner else None,
        "checkpointId": seen.id if seen else None,
        "planned": seen.planned if seen else None,
        "committed": seen.committed if seen else None,
        "watermark": evidence.watermark.epoch,
        "configWatermark": evidence.state.watermark,
        "version": evidence.version,
    }
