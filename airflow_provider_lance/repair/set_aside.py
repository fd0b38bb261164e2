"""Repair files of a checkpoint, where the protocol proves what is right.

Corrupt files are set aside if Spark can do without them. An offset file that says another end than
its epoch's commit is written again from the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    HistoryGapError,
    PreconditionError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import assess, corrupt_error
from airflow_provider_lance.protocol.checkpoint_files import checksum_path
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.proof import changed_ends
from airflow_provider_lance.protocol.watermark import known_done
from airflow_provider_lance.repair.dry_run import planned_writes
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import check_preconditions, gap_error
from airflow_provider_lance.repair.result import Action, RepairResult
from airflow_provider_lance.repair.rewrite import plan_rewrite

__all__ = ["set_files_aside"]


def set_files_aside(
    port: DatasetPort,
    query_id: str,
    *,
    by: str,
    checkpoint_location: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    connection_arguments: str = "",
    proven_dead: bool = False,
    dry_run: bool = False,
    backoff: Backoff | None = None,
) -> RepairResult:
    """Move files of a query's checkpoint into its folder `set-aside`; none is deleted.

    These are files that are corrupt, and offset files that say another end than their epochs'
    commits; those are written again from the commits.

    The query is claimed and released first: an epoch that a paused driver planned with one of these
    files cannot land any more, whatever is planned in its place.

    :param by: who asks, for the owner record.
    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
    :param connection_arguments: what a command needs to reach the store, for the messages.
    :param proven_dead: the caller knows by other means that no driver of the query is at work.
    :raises CheckpointCorruptError: nothing proves that Spark can do without them.
    :raises CheckpointMismatchError: another checkpoint lies there, or none; or the dataset does not
        have the end offsets of a changed file.
    :raises DriverAliveError: a driver is alive, or that cannot be told.
    :raises PreconditionError: the dataset does not know the query; or the checkpoint changed in the
        middle, and nothing was moved.
    :raises HistoryGapError: versions are missing, and the epoch in doubt is not answered for.
    :raises FencedError: another driver claimed in the middle; it was left alone.
    :raises TransientError: a store refused too often. What was moved by then stays so, Spark still
        refuses to start, and the same call goes on.
    """
    preconditions = check_preconditions(port, query_id, storage_options, connection_arguments)
    port, state, owner = preconditions.port, preconditions.state, preconditions.owner
    location = checkpoint_location or owner.driver.checkpoint_location
    sure = preconditions.command("resolve", "files", options=["--proven-dead"])
    preconditions.refuse_live_driver(location, proven_dead=proven_dead, command=sure)
    files = open_files(location, storage_options)
    checkpoint = preconditions.checkpoint(location)
    if checkpoint.id != owner.driver.checkpoint_id:
        raise CheckpointMismatchError(
            f"query {query_id!r} in {port.uri} belongs to checkpoint {owner.driver.checkpoint_id} "
            f"at {owner.driver.checkpoint_location}, and {location} has "
            f"{f'id {checkpoint.id}' if checkpoint.id else 'no checkpoint'}. Name the place where "
            "it is now with --checkpoint"
        )
    mark = preconditions.watermark()
    in_doubt = checkpoint.in_flight
    if mark.missing and in_doubt is not None and in_doubt > mark.epoch:
        raise gap_error(port, state, mark, in_doubt, connection_arguments=connection_arguments)
    watermark = max(mark.epoch, checkpoint.committed) if mark.missing else mark.epoch
    done = max(watermark, checkpoint.committed, known_done(state))
    rewrite = plan_rewrite(files, checkpoint, changed_ends(checkpoint, state, mark), done)
    found = None if rewrite else assess(files, checkpoint, watermark)
    repaired = RepairResult(
        action=Action.FILES,
        uri=port.uri,
        query_id=query_id,
        sentence=f"every file that Spark needs of the checkpoint at {location} is whole, and says "
        "what the commits say",
        changed=False,
        version=port.version,
        watermark=state.watermark,
        token=owner.token,
        generation=state.generation,
        dry_run=dry_run,
    )
    if found and not found.set_aside:
        raise corrupt_error(
            found,
            checkpoint,
            port.uri,
            query_id,
            known=True,
            connection_arguments=connection_arguments,
        )
    # Not beside them: Spark refuses to plan epoch 0 while `offsets` holds anything (seen on 4.3).
    folder = f"set-aside/{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    if rewrite:
        paths, checkpoint = rewrite.kept, rewrite.checkpoint
        what = f"{', '.join(rewrite.after)} written again"
        reason = "with the end offsets that the commits have; the old files are kept"
        if rewrite.set_aside:
            reason += f". {', '.join(rewrite.set_aside)} set aside: not done, and planned again"
    elif found:
        paths, reason = found.set_aside, found.reason
        what = f"{', '.join(paths)} set aside"
    else:
        return repaired
    moves = {path: f"{folder}/{path}" for path in paths}
    repaired = replace(repaired, sentence=f"{what} by {by}; {reason}", moves=moves)
    driver = preconditions.driver(what, by)
    if dry_run:
        plan = planned_writes(port, state, driver, replace(mark, epoch=watermark))
        return replace(repaired, writes=tuple(plan))
    policy = CommitPolicy(backoff=backoff or Backoff())
    try:
        port, state = force_release(
            port, query_id, expected=owner, driver=driver, checkpoint=checkpoint, policy=policy
        )
    except HistoryGapError as error:
        raise gap_error(port, state, mark, connection_arguments=connection_arguments) from error
    # Only now can nobody land an epoch any more that would be one of these files'.
    current = (
        rewrite.is_current(files)
        if rewrite
        else found
        == assess(files, read_checkpoint(location, files, with_ends=True), state.watermark)
    )
    if not current:
        raise PreconditionError(
            f"the checkpoint at {location} or the watermark of query {query_id!r} changed while it "
            "was looked at; no file was moved. Look at it again before you go on"
        )
    if rewrite:
        rewrite.apply(files, folder)
    else:
        _move(files, moves)
    token = state.owner.token if state.owner else None
    return replace(
        repaired, changed=True, version=port.version, watermark=state.watermark, token=token
    )


def _move(files: ArrowFiles, moves: Mapping[str, str]) -> None:
    """Move the files in their order, each with the checksum that Hadoop keeps beside it."""
    for path, to in moves.items():
        if files.read(checksum_path(path)) is not None:
            files.move(checksum_path(path), checksum_path(to))
        files.move(path, to)
