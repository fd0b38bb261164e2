"""The documents of protocol 1, made by the package's own writers from fixed values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_lance.backends.launch import ClusterDriver, Launch
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.maintenance.options import MaintenanceSpec
from airflow_provider_lance.operators.task_state import DriverTaskState
from airflow_provider_lance.protocol import upkeep
from airflow_provider_lance.protocol.added_columns import AddedColumns, encode_added
from airflow_provider_lance.protocol.codec import (
    encode_owner,
    encode_stamp,
    encode_stop,
    fold_updates,
    key,
)
from airflow_provider_lance.protocol.consumers import Consumer, position_updates
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    Driver,
    EndOffsets,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    StopNote,
)
from airflow_provider_lance.protocol.row_checks import Met, RowChecks
from airflow_provider_lance.protocol.source_offset import NOT_BEGUN, SourceOffset
from airflow_provider_lance.protocol.upkeep import CleanupPolicy, policy_updates
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.supervision.process import ProcessIdentity
from airflow_provider_lance.supervision.restart_policy import RestartHistory
from airflow_provider_lance.triggers.condition import EpochCondition, Position
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger
from airflow_provider_lance.triggers.stop import LanceStopTrigger, Stopping
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import Action, SupervisionOutcome
from airflow_provider_lance.triggers.turns import LanceTurnTrigger, Turn

FOLDER = Path(__file__).parent / "protocol-1"
QUERY, URI, CHECKPOINT = "orders", "s3://lake/orders.lance", "s3://lake/checkpoints/orders"
LAUNCH_ID = "20261120T140000000Z-1a2b3c4d"
TIME, LATER = "2026-11-20T14:00:00.000+00:00", "2026-11-20T14:05:00.250+00:00"
TASK = "orders/stream/scheduled__2026-11-20/-1#1"
PROCESS = ProcessIdentity("worker-1", 4711, "6f1c/4026531836:123456")

DRIVER = Driver(
    run_id="f3a8c0de-0000-4000-8000-000000000001",
    checkpoint_id="c0ffee00-0000-4000-8000-000000000002",
    checkpoint_location=CHECKPOINT,
    application_id="application_1764000000000_0001",
    ui_address="http://worker-1:4040",
    host=PROCESS.host,
    pid=PROCESS.pid,
    start=PROCESS.start,
    launch_id=LAUNCH_ID,
    launched_by=TASK,
)
OWNER = Owner(token=3, state=OwnerState.ACTIVE, generation=1, driver=DRIVER, time=TIME)
RELEASED = Owner(token=3, state=OwnerState.RELEASED, generation=1, driver=DRIVER, time=LATER)
NOTE = StopNote(3, LAUNCH_ID, "ana@laptop", LATER)
CONSUMER = Consumer(
    "hourly",
    SourceOffset(version=41, timestamp=1_795_096_800_000_000, index=500, change_feed=True),
    datetime(2026, 11, 20, 14, 5, tzinfo=UTC),
    "s3://lake/hourly.lance",
    "s3://lake/checkpoints/hourly",
    skip_change_commits=True,
)
UPKEEP = upkeep.Turn(
    QUERY,
    datetime(2026, 11, 20, 14, 5, tzinfo=UTC),
    version=57,
    fragments=52,
    cleaned=41,
    cleaned_at=datetime(2026, 11, 20, 13, 5, tzinfo=UTC),
    removed=400,
)
POLICY = CleanupPolicy(datetime(2026, 11, 20, 2, 0, tzinfo=UTC), 172_800, 100)
SOURCE_OFFSETS = (
    NOT_BEGUN,
    SourceOffset(41, 1_795_096_800_000_000, index=0, snapshot=True),
    SourceOffset(42, 1_795_096_860_000_000, index=500, change_feed=True),
    SourceOffset(57, 1_795_096_920_000_000),
)
ENDS = EndOffsets.of(['{"orders":{"0":4711,"1":4690}}'])
CHECKS = RowChecks({"positive": Met(118, 5), "has_group": Met(123, 0)}, dropped=2, quarantined=1)
EPOCH = Epoch(
    epoch_id=42,
    mode=OutputMode.UPDATE,
    fragments=[object(), object()],
    rows=120,
    bytes=4096,
    started_at=TIME,
    deletes=7,
    ends=ENDS,
    checks=CHECKS,
)
SUMMARY = Summary(
    launch_id=LAUNCH_ID,
    query_id=QUERY,
    uri=URI,
    reason=EndReason.STOPPED,
    epochs=12,
    rows=1440,
    deletes=84,
    skipped=1,
    first_epoch=31,
    last_epoch=42,
    watermark=42,
    version=57,
    manifest_updates=15,
    released=True,
    seconds=300.25,
    run_id=DRIVER.run_id,
    stopped_by="ana@laptop",
    checks=CHECKS,
)
JOB = {
    "launchId": LAUNCH_ID,
    "launchedBy": TASK,
    "sink": {
        "uri": URI,
        "queryId": QUERY,
        "checkpointLocation": CHECKPOINT,
        "outputMode": "update",
        "mergeKeys": ["id"],
        "deleteWhen": "op = 'd'",
        "vectorSizes": {"embedding": 768},
        "storageOptions": {"region": "eu-central-1"},
        "onHistoryGap": "committed:42@56",
        "expectations": [{"name": "positive", "condition": "amount > 0", "action": "drop"}],
    },
    "source": {
        "format": "kafka",
        "options": {"subscribe": "orders"},
        "schema": None,
    },
    "sql": "SELECT * FROM source",
    "trigger": "10 seconds",
    "stopGrace": 90,
}
MAINTENANCE = {
    "uri": URI,
    "storageOptions": {"region": "eu-central-1"},
    "options": {
        "compaction": {"target_rows_per_fragment": 500_000, "compaction_mode": "reencode"},
        "deadline": 600,
        "olderThan": 86_400,
        "retainVersions": 5,
    },
}
LAUNCH = Launch(
    launch_id=LAUNCH_ID,
    query_id=QUERY,
    uri=URI,
    checkpoint_location=CHECKPOINT,
    launched_at=TIME,
    launched_by=TASK,
    fingerprint="0f1e2d3c",
    driver=LocalDriver(f"/var/lance/{QUERY}/{LAUNCH_ID}", PROCESS, PROCESS),
)
CLUSTER = replace(LAUNCH, driver=ClusterDriver("kubernetes", "orders-driver", "spark", "spark_k8s"))
ORDER = SupervisionConfig(
    launch=LAUNCH,
    task_key=TASK,
    restarts=RestartHistory(total=2, fruitless=1, step=1, watermark=41),
    deadline=LATER,
    tags={"dag_id": "orders"},
    rows=1440,
)
VERDICT = SupervisionOutcome(
    Action.RESTART,
    StreamState.DEAD,
    "the driver's process is gone",
    restartable=True,
    delay=12.5,
    restarts=ORDER.restarts,
    ended=SUMMARY.to_json(),
)
TURN = Turn(
    task_key=TASK,
    rank=TIME,
    uri=URI,
    query_id=QUERY,
    lance_conn_id="lance_default",
    deadline=LATER,
    going=False,
    others=("manual__2026-11-20",),
    waits_for=f"run manual__2026-11-20, which streams query '{QUERY}' now",
    since=TIME,
)
STOPPING = Stopping(URI, QUERY, 3, LATER)
CONDITIONS = (
    EpochCondition(epoch=42),
    EpochCondition(since=datetime(2026, 11, 20, 14, tzinfo=UTC)),
)
POSITION = Position(version=57, epoch=42, generation=1, token=3, run_id=DRIVER.run_id)


class Kept:
    """Airflow's store of a task's state, as `DriverTaskState` uses it."""

    def __init__(self, note: Any = None) -> None:
        self.note = note

    def get(self, name: str) -> Any:
        return self.note

    def set(self, name: str, note: Any, **kwargs: Any) -> None:
        self.note = note


def _task_state() -> Any:
    kept = Kept()
    DriverTaskState(kept, (1, 3), {}).keep(LAUNCH)
    return kept.note


def _triggers() -> list[Any]:
    made = [
        LanceEpochTrigger(uri=URI, query_id=QUERY, condition=CONDITIONS[0].to_json()),
        LanceEpochEventTrigger(uri=URI, query_id=QUERY, every_rows=1000),
        LanceStreamTrigger(order=ORDER.to_json()),
        LanceStopTrigger(stopping=STOPPING.to_json()),
        LanceTurnTrigger(turn=TURN.to_json()),
    ]
    return [{"classpath": path, "kwargs": kwargs} for path, kwargs in (t.serialize() for t in made)]


def config(owner: Owner, note: StopNote | None = None, epoch: int = 42) -> dict[str, str]:
    """Return the config of a dataset as claims, folds and stop requests leave it."""
    done = DoneEpoch(epoch, ENDS) if epoch > NO_EPOCH else None
    updates: Mapping[str, str | None] = {
        key("owner", QUERY): encode_owner(owner),
        **fold_updates(QUERY, epoch, 56, LATER if epoch > NO_EPOCH else None, done),
        **(encode_stop(QUERY, note) if note else {}),
    }
    return {name: value for name, value in updates.items() if value is not None}


ADDED = AddedColumns(
    QUERY, 42, 1, 3, DRIVER.run_id, LATER, {"note": "string", "address.city": "string"}
)

WRITERS: dict[str, Callable[[], Any]] = {
    "transaction-properties": lambda: encode_stamp(QUERY, OWNER, EPOCH, 250, DRIVER.run_id),
    "added-columns": lambda: encode_added(ADDED),
    "config-claimed": lambda: config(OWNER, epoch=NO_EPOCH),
    "config-active": lambda: config(OWNER),
    "config-released": lambda: config(RELEASED),
    "config-stop": lambda: config(OWNER, NOTE),
    "config-consumer": lambda: position_updates(CONSUMER),
    "config-upkeep": lambda: UPKEEP.updates() | policy_updates(POLICY),
    "source-offsets": lambda: [each.to_json() for each in SOURCE_OFFSETS],
    "summary": SUMMARY.to_json,
    "job-spec": lambda: json.loads(JobSpec.parse(JOB).dumps()),
    "maintenance-spec": lambda: json.loads(MaintenanceSpec.loads(json.dumps(MAINTENANCE)).dumps()),
    "triggers": _triggers,
    "stream-event": lambda: {"outcome": VERDICT.to_json(), "order": ORDER.to_json()},
    "launch-on-cluster": CLUSTER.to_json,
    "task-state": _task_state,
    "watcher-state": POSITION.to_json,
}
"""The files that need no Spark to be written; `heartbeat` is a real driver's."""


def text_of(document: Any) -> str:
    """Return a document as its file holds it."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def read(name: str) -> Any:
    """Return what a golden file holds."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def names_of(document: Any, path: str = "") -> dict[str, str]:
    """Return every name in a document with the type of its value; of a list, its first item."""
    found = {path: type(document).__name__} if path else {}
    if isinstance(document, dict):
        for name, value in document.items():
            found |= names_of(value, f"{path}.{name}" if path else name)
    if isinstance(document, list) and document:
        found |= names_of(document[0], f"{path}[0]")
    return found
