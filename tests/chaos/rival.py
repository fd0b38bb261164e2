"""A second driver that takes the query over and commits the epoch in doubt, without Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint, read_offsets
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    EndOffsets,
    Epoch,
    OutputMode,
    utc_now,
)
from airflow_provider_lance.protocol.session import DriverSession
from tests.chaos.input import newest
from tests.chaos.plan import Mode, without
from tests.chaos.scene import QUERY, Scene

MODES = {
    Mode.APPEND: OutputMode.APPEND,
    Mode.UPSERT: OutputMode.UPDATE,
    Mode.COMPLETE: OutputMode.COMPLETE,
}


def take_over(scene: Scene) -> bool:
    """Claim the query; commit the epoch that Spark has planned and not logged, then vanish.

    It never releases, as a driver that is killed. Return whether it committed an epoch.
    """
    place = str(scene.checkpoint)
    files = open_files(place)

    def look() -> Checkpoint:
        return read_checkpoint(place, files)

    seen = look()
    policy = CommitPolicy(
        on_history_gap=OnHistoryGap.parse(scene.answer),
        **without(scene.control),
    )
    committer = DriverSession(scene.place.open(), QUERY, seen, policy, look=look)
    committer.prepare()
    committer.identify(Driver(f"rival-{len(scene.lives)}", seen.id or "", place, pid=os.getpid()))
    epoch_id = NO_EPOCH if seen.in_flight is None else seen.in_flight
    committer.claim(epoch_id)
    if epoch_id == NO_EPOCH:
        return False
    plan = committer.begin(epoch_id)
    if plan.decision is not Decision.FULL_COMMIT:
        return False
    ends = EndOffsets.of(read_offsets(files, epoch_id) or ())
    plan.commit(replace(_epoch(scene, epoch_id, plan.port), ends=ends))
    return True


def _epoch(scene: Scene, epoch_id: int, port: Any) -> Epoch:
    """Write what Spark's plan for the epoch gives, from the input."""
    mode, schema = scene.plan.mode, port.dataset.schema
    first, last = scene.files_until(epoch_id - 1), scene.files_until(epoch_id)
    new = [row for file in scene.source.files[first:last] for row in file]
    keys: pa.Table | None = None
    merge_keys: tuple[str, ...] = ()
    if mode is Mode.COMPLETE:
        columns = zip(*scene.expected(epoch_id), strict=True)
        table = pa.table(dict(zip(schema.names, map(list, columns), strict=True)), schema=schema)
    elif mode is Mode.UPSERT:
        new = newest(new)
        kept = [row for row in new if row["op"] != "d"]
        table = pa.Table.from_pylist(kept, schema)
        keys, merge_keys = pa.Table.from_pylist(new, schema).select(["id"]), ("id",)
    else:
        table = pa.Table.from_pylist(new, schema)
    return Epoch(
        epoch_id,
        MODES[mode],
        list(write_fragments(table, port.dataset)) if table.num_rows else [],
        rows=len(new),
        bytes=0,
        started_at=utc_now(),
        keys=keys,
        merge_keys=merge_keys,
        deletes=len(new) - table.num_rows if mode is Mode.UPSERT else 0,
    )
