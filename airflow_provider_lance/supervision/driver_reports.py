"""What a driver writes beside its checkpoint: heartbeats while it runs, a summary at its end.

Beside them is a trend, a point for every few minutes. All are in
``<checkpoint>.reports/<launchId>/``, one folder per launch, so two drivers of one query never
overwrite each other's reports and each can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import uuid4

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import Reader
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.protocol.row_checks import RowChecks

__all__ = [
    "HEARTBEAT",
    "EndReason",
    "Summary",
    "forget_old_launches",
    "is_launch_id",
    "launched_at",
    "new_launch_id",
    "read_heartbeat",
    "read_summary",
    "read_trend",
    "report_location",
    "write_heartbeat",
    "write_summary",
    "write_trend",
]

HEARTBEAT = "heartbeat.json"
"""The name of a launch's heartbeat in its folder."""
_LAUNCH = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")


class EndReason(StrEnum):
    """Why a driver ended."""

    FINISHED = "finished"
    """All available data has been read."""
    STOPPED = "stopped"
    """It was asked to stop. Not released and with a message: an epoch did not end within its grace.
    """
    FAILED = "failed"
    """An error ended it; the summary names it."""


@dataclass(frozen=True, slots=True)
class Summary(JsonRecord):
    """The end of one launch. Epochs and rows are those that this driver committed itself.

    ``rows`` counts the rows that landed in those epochs, including the rows that delete; ``checks``
    counts those that did not, and what the expectations found; ``deletes``
    counts those that delete, whether they matched a row or not. ``first_epoch`` and ``last_epoch``
    are ``None`` if it committed none, ``watermark`` is -1 if no driver has committed any.
    ``version`` is the dataset's version after its last commit; ``error`` is a class name of
    :mod:`~airflow_provider_lance.exceptions` or another. ``stopped_by`` is who asked it to stop,
    ``None`` if there was no request or it was not signed.
    """

    launch_id: str
    query_id: str
    uri: str
    reason: EndReason
    epochs: int
    rows: int
    deletes: int
    skipped: int
    first_epoch: int | None
    last_epoch: int | None
    watermark: int
    version: int | None
    manifest_updates: int
    released: bool
    seconds: float
    run_id: str | None = None
    error: str | None = None
    message: str | None = None
    stopped_by: str | None = None
    checks: RowChecks | None = None

    json_readers: ClassVar[Mapping[str, Reader]] = {"checks": RowChecks.read_json}


def new_launch_id() -> str:
    """Return a name for one launch; names sort by time, to the millisecond."""
    moment = re.sub(r"\D", "", utc_now().removesuffix("+00:00"))
    return f"{moment[:8]}T{moment[8:]}Z-{uuid4().hex[:8]}"


def launched_at(launch_id: str) -> datetime | None:
    """Return when a launch was made, by its name; ``None`` for a name of another form."""
    if not is_launch_id(launch_id):
        return None
    try:
        moment = datetime.strptime(launch_id.partition("Z")[0], "%Y%m%dT%H%M%S%f")
    except ValueError:  # digits that are not a time
        return None
    return moment.replace(tzinfo=UTC)


def is_launch_id(name: str) -> bool:
    """Return whether a name has the form that :func:`new_launch_id` makes."""
    return _LAUNCH.fullmatch(name) is not None


def report_location(checkpoint_location: str) -> str:
    """Return where the reports of a query are: beside its checkpoint.

    The suffix is not ``.lance``: a dataset may have that name beside its checkpoint.
    """
    return f"{checkpoint_location.rstrip('/')}.reports"


def write_heartbeat(files: Files, launch_id: str, heartbeat: Mapping[str, Any]) -> None:
    """Write a launch's heartbeat; replaces the previous one."""
    files.write(f"{launch_id}/{HEARTBEAT}", json.dumps(heartbeat).encode())


def write_trend(files: Files, launch_id: str, trend: Mapping[str, Any]) -> None:
    """Write how far a launch was behind over the last day; replaces the previous one."""
    files.write(f"{launch_id}/trend.json", json.dumps(trend).encode())


def write_summary(files: Files, summary: Summary) -> None:
    """Write a launch's summary."""
    content = json.dumps(summary.to_json()).encode()
    files.write(f"{summary.launch_id}/summary.json", content)


def forget_old_launches(files: Files, keep: int = 50) -> None:
    """Remove the reports of all but the newest launches; their names sort by time.

    Only names that :func:`new_launch_id` makes are removed.
    """
    launches = [name for name in files.names("") if is_launch_id(name)]
    for launch_id in launches[:-keep]:
        files.remove(launch_id)


def read_heartbeat(files: Files, launch_id: str) -> dict[str, Any] | None:
    """Return a launch's heartbeat, ``None`` if there is none or it is just being written."""
    return _read(files, f"{launch_id}/{HEARTBEAT}")


def read_summary(files: Files, launch_id: str) -> Summary | None:
    """Return a launch's summary, ``None`` while there is none.

    :raises SpecError: the summary has another form; the launch's outcome cannot be read.
    """
    document = _read(files, f"{launch_id}/summary.json")
    try:
        return Summary.read_json(document) if document else None
    except ValueError as error:
        raise SpecError(f"summary.json of launch {launch_id} must be {error}") from None


def read_trend(files: Files, launch_id: str) -> dict[str, Any] | None:
    """Return what :func:`write_trend` wrote, ``None`` if there is nothing."""
    return _read(files, f"{launch_id}/trend.json")


def _read(files: Files, path: str) -> dict[str, Any] | None:
    content = files.read(path)
    try:
        document = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
