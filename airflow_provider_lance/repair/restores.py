"""Repairs after an older version was restored over a query's epochs: bring them back, or accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    CommitPreemptedError,
    CommitStateUnknownError,
    PreconditionError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import decode_stamp
from airflow_provider_lance.protocol.commit_policy import OnRestore
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decoding import LARGEST
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.model import Watermark
from airflow_provider_lance.protocol.port import Append
from airflow_provider_lance.protocol.proof import lost_epochs
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import Preconditions, RepairOptions
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["accept_loss", "bring_back", "own_checkpoint", "restore_version"]


def bring_back(
    port: LanceDatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Bring back the epochs that the newest restore removed.

    If no row was changed since, the version before the restore becomes the newest again. Otherwise,
    the removed epochs are appended again, each by one commit with its own stamp, which what was
    written since keeps. The same call continues where it was interrupted.

    :raises PreconditionError: no restore removed epochs, or it is not proven that the rows come
        back exactly once; as :class:`DriverAliveError` a driver is alive, or its state is unknown.
    :raises TransientError: the store refused.
    """
    preconditions = Preconditions(port, query_id, options)
    port, state = port.latest(), preconditions.state
    location = checkpoint_location or preconditions.owner.driver.checkpoint_location
    preconditions.refuse_live_driver(location, verb=["resolve", "restore", "--bring-back"])
    watermark = exact_watermark(port, query_id, spark_done=LARGEST)
    epochs = [stamp.epoch_id for stamp in watermark.undone]
    if watermark.undone_by is None or not (epochs or watermark.undone_missing):
        raise PreconditionError(
            f"no restore of an older version took epochs of query {query_id!r} out of {port.uri}: "
            "there is nothing to bring back"
        )
    by, restored = watermark.undone_by
    if watermark.undone_missing:
        raise PreconditionError(
            f"versions between {restored} and {by} of {port.uri} were cleaned up, and the rows of "
            f"query {query_id!r} with them: they cannot be brought back"
        )
    named = _named(epochs)
    if not any(port.changed_rows(version) for version in range(by + 1, port.version + 1)):
        what = f"version {by - 1} made the newest again: {named} of query {query_id!r} are back"
        plan = [Write(port.version + 1, f"restore version {by - 1}", {})]
        if not preconditions.dry_run:
            port, plan = restore_version(port, by - 1), []
    else:
        what = f"{named} of query {query_id!r} appended again, after what was written since"
        appends = _appends(port, query_id, watermark)
        plan = [
            Write(port.version + number, f"append the rows of epoch {epoch} again", {})
            for number, (epoch, _, _) in enumerate(appends, 1)
        ]
        if not preconditions.dry_run:
            plan = []
            for epoch, operation, properties in appends:
                port = _append(port, query_id, epoch, operation, properties)
    return RepairResult(
        action=Action.RESTORE,
        uri=port.uri,
        query_id=query_id,
        sentence=f"{what} ({sum(stamp.rows for stamp in watermark.undone):,} rows)",
        changed=not preconditions.dry_run,
        version=port.version,
        watermark=state.watermark,
        token=preconditions.owner.token,
        generation=state.generation,
        dry_run=preconditions.dry_run,
        writes=tuple(plan),
    )


def accept_loss(
    port: LanceDatasetPort,
    query_id: str,
    epochs: tuple[int, int],
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Let a query continue without the epochs that a restore removed: claim, fold and release.

    :param epochs: the first and the last of them; a later loss is not accepted with them.
    :raises PreconditionError: no restore removed epochs, or others; as :class:`DriverAliveError` a
        driver is alive, or its state is unknown.
    :raises CheckpointMismatchError: the recorded checkpoint is not at the location.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: the store refused too often.
    """
    preconditions = Preconditions(port, query_id, options)
    state, owner = preconditions.state, preconditions.owner
    location = checkpoint_location or owner.driver.checkpoint_location
    span = f"{epochs[0]}-{epochs[1]}"
    preconditions.refuse_live_driver(location, verb=["resolve", "restore", "--accept", span])
    checkpoint = own_checkpoint(preconditions, location)
    watermark = exact_watermark(preconditions.port, query_id, spark_done=checkpoint.committed)
    lost = lost_epochs(watermark, state, checkpoint.committed)
    answer = OnRestore(*epochs)
    if lost is None or not answer.covers(lost):
        are = f"epochs {lost[0]} to {lost[1]} are" if lost else "no epoch is"
        raise PreconditionError(
            f"{are} missing from {preconditions.port.uri} after a restore, not epochs {epochs[0]} "
            f"to {epochs[1]} of query {query_id!r}: nothing was changed"
        )
    what = f"the loss of epochs {lost[0]} to {lost[1]} accepted"
    last = max(watermark.epoch, lost[1])
    handle, state, plan = force_release(
        preconditions,
        preconditions.driver(what),
        checkpoint,
        replace(watermark, epoch=last),
        on_restore=answer,
    )
    return RepairResult(
        action=Action.RESTORE,
        uri=handle.uri,
        query_id=query_id,
        sentence=f"{what} by {preconditions.by}: the stream continues without their rows",
        changed=not plan,
        version=handle.version,
        watermark=last if plan else state.watermark,
        token=state.owner.token if state.owner else None,
        generation=state.generation,
        dry_run=bool(plan),
        writes=tuple(plan),
    )


def own_checkpoint(preconditions: Preconditions, location: str) -> Checkpoint:
    """Read the checkpoint that the query belongs to.

    :raises CheckpointMismatchError: another one is at the location, or none.
    """
    found, recorded = preconditions.checkpoint(location), preconditions.owner.driver
    if found.id != recorded.checkpoint_id:
        raise CheckpointMismatchError(
            f"query {preconditions.query_id!r} in {preconditions.port.uri} belongs to checkpoint "
            f"{recorded.checkpoint_id} at {recorded.checkpoint_location}, and {location} has "
            f"{f'id {found.id}' if found.id else 'no checkpoint'}. Name its present location with "
            "--checkpoint"
        )
    return found


def restore_version(port: LanceDatasetPort, version: int) -> LanceDatasetPort:
    """Make an older version the newest again; return the handle at it.

    :raises PreconditionError: another writer changed rows meanwhile; its version is named.
    :raises StorageUnavailableError: the store refused.
    """
    older = port.at(version)
    if older is None or not older.is_intact():
        raise PreconditionError(f"version {version} of {port.uri} was cleaned up")
    with reading(port.uri):
        older.dataset.restore()  # type: ignore[no-untyped-call]
    landed = port.latest()
    between = range(port.version + 1, landed.version)
    if others := [each for each in between if landed.changed_rows(each)]:
        raise PreconditionError(
            f"version {others[-1]} of {port.uri} was committed at the same moment, and its rows "
            f"are no longer in the table: restore it, with every writer stopped"
        )
    return landed


def _appends(
    port: LanceDatasetPort, query_id: str, watermark: Watermark
) -> list[tuple[int, Any, dict[str, str]]]:
    """Return each removed epoch with its append and its properties, in the order of epochs.

    :raises PreconditionError: something else than appends happened between.
    """
    assert watermark.undone_by is not None
    by, restored = watermark.undone_by
    wanted = {(each.generation, each.epoch_id) for each in watermark.undone}
    found: dict[int, tuple[Any, dict[str, str]]] = {}
    for version in range(restored + 1, by):
        transaction = port.transaction(version)
        if transaction is None:
            raise PreconditionError(f"version {version} of {port.uri} was cleaned up")
        operation: Any = transaction.operation
        if not port.changed_rows(version):
            continue
        properties = dict(transaction.transaction_properties or {})
        stamp = decode_stamp(properties, query_id, version)
        if type(operation).__name__ != "Append":
            raise PreconditionError(
                f"version {version} of {port.uri} replaced or deleted rows, so the rows of query "
                f"{query_id!r} that version {by} removed cannot be appended again as they were; "
                f"and rows were written since, so version {by - 1} cannot become the newest again "
                "without losing them. Let Spark read the epochs again with lance-stream resolve "
                "rewind"
            )
        if stamp and (stamp.generation, stamp.epoch_id) in wanted:
            found[stamp.epoch_id] = (operation, properties)
    return [(epoch, *found[epoch]) for epoch in sorted(found)]


def _append(
    port: LanceDatasetPort, query_id: str, epoch: int, operation: Any, properties: dict[str, str]
) -> LanceDatasetPort:
    try:
        return port.commit(Append(operation.fragments), properties)
    except (CommitPreemptedError, CommitStateUnknownError) as error:
        raise type(error)(
            f"{error}. Epoch {epoch} of query {query_id!r} may not be back yet: type the same "
            "command again, which looks first"
        ) from error


def _named(epochs: Sequence[int]) -> str:
    return f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"
