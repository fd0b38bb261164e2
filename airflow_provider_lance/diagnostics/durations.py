"""How long single epochs took, from the heartbeats of the newest drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, report_location

__all__ = ["Durations", "read_durations"]

_NEWEST = 5


@dataclass(frozen=True, slots=True)
class Durations:
    """Milliseconds, ``None`` where no heartbeat says it: Spark's trigger, our write, our commit."""

    batch_ms: float | None = None
    write_ms: float | None = None
    commit_ms: float | None = None


def read_durations(
    checkpoint_location: str, query_id: str, storage_options: Mapping[str, str] | None
) -> dict[tuple[str, int], Durations]:
    """Return the durations of epochs by run id and epoch.

    :raises SpecError: the location cannot be opened from here.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    files = open_files(report_location(checkpoint_location), storage_options)
    found: dict[tuple[str, int], Durations] = {}
    for launch_id in sorted(files.names(""), reverse=True)[:_NEWEST]:
        heartbeat = read_heartbeat(files, launch_id) or {}
        if heartbeat.get("queryId") == query_id:
            found |= dict(_epochs(heartbeat))
    return found


def _epochs(heartbeat: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], Durations]]:
    driver, recent = heartbeat.get("driver"), heartbeat.get("recent")
    run_id = driver.get("runId") if isinstance(driver, Mapping) else None
    for each in recent if isinstance(recent, list) else []:
        if isinstance(each, Mapping) and isinstance(each.get("epoch"), int):
            took = (_number(each.get(word)) for word in ("batchMs", "writeMs", "commitMs"))
            yield (str(run_id), each["epoch"]), Durations(*took)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
