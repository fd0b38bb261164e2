"""The repair of a query whose checkpoint is lost: it begins again with an empty one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Unpack
from uuid import uuid4

from airflow_provider_lance.diagnostics.collect_proof import Versions
from airflow_provider_lance.exceptions import PreconditionError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.model import NO_EPOCH, OutputMode, Watermark
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import Preconditions, RepairOptions
from airflow_provider_lance.repair.restores import restore_version
from airflow_provider_lance.repair.result import Action, RepairResult, Write
from airflow_provider_lance.repair.rewind import set_reports_aside, version_before
from airflow_provider_lance.repair.set_aside import move_all
from airflow_provider_lance.supervision.driver_reports import report_location

__all__ = ["start_over"]


def start_over(
    port: LanceDatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Let a query begin again with an empty checkpoint, so that Spark reads all of the source.

    What is at the checkpoint's place is moved into its folder `set-aside`. Where epochs append, the
    table's version from before the first epoch becomes the newest again, so that no row is there
    twice. Where they replace rows by key, or all rows, the table stays, and a new numbering of
    epochs begins. If the dataset does not know the query, only files are moved.

    :raises PreconditionError: it is not proven that each row is there once afterwards; as
        :class:`DriverAliveError` a driver is alive, or its state is unknown.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: a store refused; the same call continues.
    """
    port = port.latest()
    dry_run = options.get("dry_run", False)
    result = RepairResult(
        action=Action.START_OVER,
        uri=port.uri,
        query_id=query_id,
        sentence="",
        changed=not dry_run,
        version=port.version,
        dry_run=dry_run,
    )
    aside = f"set-aside/{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    if not decode_query(port.config, query_id, port.version).known:
        if checkpoint_location is None:
            raise PreconditionError(
                f"{port.uri} does not know query {query_id!r}: name --checkpoint"
            )
        files = open_files(checkpoint_location, options.get("storage_options"))
        moves = _moves(files, aside)
        if not dry_run:
            move_all(files, moves)
            set_reports_aside(
                open_files(report_location(checkpoint_location), options.get("storage_options"))
            )
        said = f"the checkpoint at {checkpoint_location} is empty: the next start reads all again"
        plan = [Write(port.version, "no version of the dataset is written", {})]
        return replace(result, sentence=said, moves=moves, writes=tuple(plan) if dry_run else ())
    preconditions = Preconditions(port, query_id, options)
    owner, state = preconditions.owner, preconditions.state
    location = checkpoint_location or owner.driver.checkpoint_location
    preconditions.refuse_live_driver(location, verb=["resolve", "checkpoint", "--start-over"])
    files = open_files(location, options.get("storage_options"))
    moves = _moves(files, aside)
    newest = Versions(port, query_id).newest(20)
    effect = OutputMode(newest[0].mode).effect if newest else OutputMode.APPEND.effect
    replaces = effect.replaces_rows or effect.replaces_all
    target = None if replaces else version_before(port, query_id, state.generation, NO_EPOCH)
    new_id = str(uuid4()) if replaces else owner.driver.checkpoint_id
    what = f"query {query_id!r} begins again with an empty checkpoint at {location}"
    how = (
        "the table stays, and the rows that are read again replace those that are there"
        if replaces
        else f"version {target}, from before its first epoch, is the newest again"
    )
    result = replace(result, sentence=f"{what}: {how}", moves=moves)
    driver = replace(
        preconditions.driver("started over"), checkpoint_id=new_id, checkpoint_location=location
    )
    empty = Checkpoint(location, new_id)
    folded = None if replaces else Watermark(NO_EPOCH, port.version, None)
    if dry_run:
        _, _, plan = force_release(preconditions, driver, empty, folded)
        if target is not None:
            first = Write(port.version + 1, f"restore version {target}", {})
            plan = [first, *(replace(each, version=each.version + 1) for each in plan)]
        return replace(result, writes=tuple(plan))
    if target is not None:
        port = restore_version(port, target)
    move_all(files, moves)
    files.write("metadata", json.dumps({"id": new_id}).encode())
    set_reports_aside(open_files(report_location(location), options.get("storage_options")))
    if decode_query(port.config, query_id, port.version).known:
        again = Preconditions(port, query_id, options)
        handle, state, _ = force_release(again, driver, empty, folded)
        result = replace(result, watermark=state.watermark, generation=state.generation)
        return replace(result, version=handle.version)
    return replace(result, version=port.version)


def _moves(files: ArrowFiles, aside: str) -> dict[str, str]:
    """Return every file of the checkpoint with its new name.

    `metadata` is the last: until it is moved, a start sees the checkpoint that was there.
    """
    paths = [path for path in files.paths() if not path.startswith("set-aside/")]
    checksums = {f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.crc" for path in paths}
    paths = [path for path in paths if path not in checksums and f"/{path}" not in checksums]
    paths.sort(key=lambda path: path == "metadata")
    return {path: f"{aside}/{path}" for path in paths}
