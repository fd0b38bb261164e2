"""Checkpoints beside a query's own place: where a checkpoint that was moved may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query, query_ids
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.supervision.driver_reports import is_launch_id, read_heartbeat

__all__ = ["Home", "find_home", "find_neighbours"]

_MOST = 200
"""How many folders are looked into."""
_REPORTS = ".reports"


@dataclass(frozen=True, slots=True)
class Home:
    """The query that a checkpoint belongs to, and where that query has it."""

    query_id: str
    location: str


def find_neighbours(location: str, opener: Callable[[str], Files]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints in the folders beside a location; what cannot be read is left out."""
    found = []
    for name in _beside(location, opener):
        place = f"{_parent(location)}/{name}"
        if place == location.rstrip("/") or name.endswith((_REPORTS, ".lance")):
            continue
        try:
            seen = read_checkpoint(place, opener(place))
        except LanceStreamError:
            continue
        if seen.id is not None:
            found.append(seen)
    return tuple(found)


def find_home(
    checkpoint_id: str,
    location: str,
    port: DatasetPort,
    query_id: str,
    opener: Callable[[str], Files],
) -> Home | None:
    """Return the other query that has a checkpoint, as the dataset or a driver's report says.

    :param location: where the checkpoint is now; the reports beside it are read.
    :param query_id: the query that does not count.
    """
    for other in query_ids(port.config):
        try:
            owner = decode_query(port.config, other, port.version).owner
        except LanceStreamError:
            continue
        if other != query_id and owner and owner.driver.checkpoint_id == checkpoint_id:
            return Home(other, owner.driver.checkpoint_location)
    for name in _beside(location, opener):
        home = f"{_parent(location)}/{name.removesuffix(_REPORTS)}"
        if not name.endswith(_REPORTS) or home == location.rstrip("/"):
            continue
        reports = opener(f"{_parent(location)}/{name}")
        for launch in reversed(list(filter(is_launch_id, reports.names("")))):
            heartbeat = read_heartbeat(reports, launch) or {}
            progress = heartbeat.get("progress")
            if isinstance(progress, dict) and progress.get("id") == checkpoint_id:
                return Home(str(heartbeat.get("queryId")), home)
    return None


def _parent(location: str) -> str:
    return location.rstrip("/").rpartition("/")[0]


def _beside(location: str, opener: Callable[[str], Files]) -> list[str]:
    if not _parent(location).strip("/"):
        return []
    try:
        return opener(_parent(location)).names("")[:_MOST]
    except LanceStreamError:
        return []
