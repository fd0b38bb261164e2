"""Made-up evidence of a stream: it is healthy, except for what a test says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import (
    Driver,
    EpochStamp,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
)
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.supervision.health import Health, StreamState
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
HERE = ProcessIdentity("host", 100, "boot:1")
URI = "/data/my table.lance"
RECORD = Driver(
    "run-1", "cp-1", "/cp", host=HERE.host, pid=HERE.pid, start=HERE.start, launch_id="L1"
)


def at(seconds: float) -> str:
    """Return the moment so many seconds ago."""
    return (NOW - timedelta(seconds=seconds)).isoformat()


def stamp(epoch: int, version: int, *, token: int = 1, generation: int = 0) -> EpochStamp:
    return EpochStamp(
        "q", epoch, generation, token, "run-1", 1, "append", 10, 0, 1, 80, at(60), 100, version
    )


def owner(state: OwnerState = OwnerState.ACTIVE, **changes: Any) -> Owner:
    return Owner(1, state, 0, replace(RECORD, **changes), at(500))


def state(watermark: int = 5, **changes: Any) -> QueryState:
    known = {"owner": owner(), "watermark": watermark, "folded_version": 10}
    return QueryState("q", 12, **(known | changes))


def watermark(epoch: int = 5, *stamps: EpochStamp, **changes: Any) -> Watermark:
    return replace(Watermark(epoch, 12, at(20), stamps), **changes)


def driver(launch_id: str = "L1", **changes: Any) -> DriverObservation:
    heartbeat = Heartbeat(at(3), "running", token=1, epoch=5, version=10, watermark=5)
    seen = DriverObservation(launch_id, {}, heartbeat, None, True, 3.0, HERE, 1)
    return replace(seen, **changes)


def summary(reason: EndReason = EndReason.FINISHED, **changes: Any) -> Summary:
    numbers = dict.fromkeys(("epochs", "rows", "deletes", "skipped", "manifest_updates"), 0)
    ended = Summary(
        "L1", "q", URI, reason, first_epoch=0, last_epoch=5, watermark=5, version=11,
        released=True, seconds=9.0, run_id="run-1", **numbers,
    )  # fmt: skip
    return replace(ended, **changes)


def checkpoint(planned: int = 5, committed: int = 5, **changes: Any) -> Checkpoint:
    return replace(Checkpoint("/cp", "cp-1", planned, committed), **changes)


def seen(**changes: Any) -> Evidence:
    """Return a stream that runs and is well, but for what the row says."""
    known = {
        "uri": URI,
        "query_id": "q",
        "seen_at": NOW,
        "version": 12,
        "state": state(),
        "watermark": watermark(),
        "health": Health(StreamState.RUNNING, "watermark 5"),
        "checkpoint_location": "/cp",
        "checkpoint": checkpoint(),
        "history": (stamp(5, 10), stamp(4, 9)),
        "drivers": (driver(),),
    }
    return Evidence(**(known | changes))


GONE = driver(alive=False)
RELEASED = {"owner": owner(OwnerState.RELEASED)}
OTHER = ProcessIdentity("host", 200, "boot:2")
FAILED = summary(EndReason.FAILED, error="SchemaMismatchError", message="column x\nand more")
ELSEWHERE = driver(heartbeat=None, heartbeat_json=None, alive=None, silent=0.0)
INFO, WARNING, ERROR, CRITICAL = Severity
