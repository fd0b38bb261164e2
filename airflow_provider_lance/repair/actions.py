"""The repairs, one function each; each reads the current state again first and never guesses.

None of them changes a row. A release by hand does what a new driver does, and no more: a claim, a
barrier, a release. So the next driver finds a query that ended in order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from airflow_provider_lance.diagnostics.neighbours import find_home
from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    HistoryGapError,
    PreconditionError,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import fold_updates
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap
from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.protocol.model import ByHand, OwnerState, QueryState
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.protocol.proof import epoch_in_doubt
from airflow_provider_lance.protocol.watermark import exact_watermark, known_done, newest_done
from airflow_provider_lance.repair.force_release import force_release
from airflow_provider_lance.repair.preconditions import (
    Preconditions,
    RepairOptions,
    gap_error,
    known_query,
    refuse_undone,
)
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["fold_watermark", "release_owner", "resolve_checkpoint", "resolve_gap"]


def fold_watermark(
    port: DatasetPort,
    query_id: str,
    *,
    connection_arguments: str = "",
    dry_run: bool = False,
    backoff: Backoff | None = None,
) -> RepairResult:
    """Write the exact watermark into the config if the config is behind history.

    Safe beside a live driver: it is one update of keys that every fold, claim and release writes,
    and Lance lets only one of two from the same version land.

    :raises HistoryGapError: versions are missing, so the watermark is not exact; or an older
        version was restored and removed epochs.
    :raises SpecError: the dataset does not know the query.
    :raises TransientError: the store refused too often.
    """
    found: int | None = None
    for attempt in backoff or Backoff():
        port = port.latest()
        state = known_query(port, query_id)
        found = state.watermark if found is None else found
        watermark = exact_watermark(port, query_id)
        if watermark.missing:
            raise gap_error(port, state, watermark, connection_arguments=connection_arguments)
        refuse_undone(port, watermark)
        if watermark.epoch <= state.watermark:
            # Ahead of what was found: an attempt landed without an answer, or the driver folded.
            version = f"the config of version {port.version}"
            sentence = f"{version} has the exact watermark, {watermark.epoch}"
            return _repaired(Action.FOLD, port, state, sentence, changed=state.watermark > found)
        epoch, time, done = watermark.epoch, watermark.committed_at, newest_done(state, watermark)
        sentence = f"watermark {epoch} folded into the config, which had {state.watermark}"
        updates = fold_updates(query_id, epoch, port.version, time, done)
        if dry_run:
            write = Write(port.version + 1, "fold the watermark", updates)
            return _repaired(Action.FOLD, port, state, sentence, plan=[write])
        try:
            port = port.commit(Configure(updates))
        except (CommitPreemptedError, CommitStateUnknownError) as error:
            attempt.error = error
        else:
            return _repaired(Action.FOLD, port, known_query(port, query_id), sentence)
    raise AssertionError("a backoff ends in its last error")


def release_owner(
    port: DatasetPort,
    query_id: str,
    *,
    checkpoint_location: str | None = None,
    for_good: bool = False,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Release an owner whose driver is dead: a claim, a barrier and a release.

    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
    :param for_good: the stream is not to run again, so a check calls it stopped, and not lost.
    :raises DriverAliveError: a driver is alive, or its state is unknown.
    :raises SpecError: the dataset does not know the query.
    :raises HistoryGapError: versions are missing and the checkpoint cannot prove the watermark.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: the store refused too often.
    """
    preconditions = Preconditions(port, query_id, options)
    owner, state = preconditions.owner, preconditions.state
    said = owner.driver.by_hand
    if owner.state is OwnerState.RELEASED and not (for_good and not (said and said.for_good)):
        sentence = f"token {owner.token} has been released since {owner.time}: nothing to do"
        return _repaired(Action.RELEASE, preconditions.port, state, sentence, changed=False)
    location = checkpoint_location or owner.driver.checkpoint_location
    verb = ["release", "--for-good"] if for_good else ["release"]
    preconditions.refuse_live_driver(location, verb=verb)
    watermark = preconditions.watermark()
    if watermark.missing:
        checkpoint = preconditions.recorded_checkpoint(location, watermark)
        in_doubt = epoch_in_doubt(checkpoint, state, watermark)
        if in_doubt is not None:
            raise preconditions.gap_error(watermark, in_doubt)
    else:
        # The checkpoint is not needed here. This one proves nothing: if versions vanish in the
        # middle, the claim refuses.
        checkpoint = Checkpoint(location, owner.driver.checkpoint_id, planned=sys.maxsize)
    what = ByHand.FOR_GOOD if for_good else ByHand.RELEASED
    driver, epoch = preconditions.driver(what), max(watermark.epoch, checkpoint.committed)
    try:
        port, state, plan = force_release(
            preconditions, driver, checkpoint, replace(watermark, epoch=epoch)
        )
    except HistoryGapError as error:
        raise preconditions.gap_error(watermark) from error
    final = epoch if plan else state.watermark
    sentence = f"token {owner.token} {what} by {preconditions.by}, watermark {final}"
    return _repaired(Action.RELEASE, port, state, sentence, plan=plan)


def resolve_gap(
    port: DatasetPort,
    query_id: str,
    epoch: int,
    landed: bool,
    *,
    after_version: int | None = None,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Answer for the one epoch in doubt, and release the query with that answer folded.

    :param epoch: the epoch to answer for; it must be the one in doubt.
    :param landed: whether its rows are in the dataset.
    :param after_version: the fold that the answer is about; ``None`` answers for the gap as it is
        now.
    :param checkpoint_location: where the checkpoint is reached from here; by default as recorded.
    :raises PreconditionError: there is no gap, a later one than the answer is about, or another
        epoch or none is in doubt; as :class:`DriverAliveError` a driver is alive, or its state is
        unknown.
    :raises HistoryGapError: the recorded checkpoint is not at the location, and only it says which
        epoch is in doubt.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: the store refused too often.
    """
    preconditions = Preconditions(port, query_id, options)
    port, state, owner = preconditions.port, preconditions.state, preconditions.owner
    watermark = preconditions.watermark()
    if not watermark.missing:
        raise PreconditionError(
            f"query {query_id!r} in {port.uri} has no gap in its history: its watermark "
            f"{watermark.epoch} is exact at version {port.version}, and there is nothing to resolve"
        )
    folded = state.folded_version
    if after_version not in (None, folded):
        raise PreconditionError(
            f"the answer about epoch {epoch} of query {query_id!r} is about the versions of "
            f"{port.uri} after {after_version}; its watermark was folded at version {folded} "
            f"since, and epoch {epoch} may have been written since. Check again, and answer for "
            f"the versions after {folded}"
        )
    location = checkpoint_location or owner.driver.checkpoint_location
    answer = "--committed" if landed else "--missing"
    named = ["--epoch", str(epoch), "--after-version", str(folded), answer]
    preconditions.refuse_live_driver(location, verb=["resolve", "gap", *named])
    checkpoint = preconditions.recorded_checkpoint(location, watermark)
    in_doubt = epoch_in_doubt(checkpoint, state, watermark)
    if in_doubt is None:
        raise PreconditionError(
            f"no epoch of query {query_id!r} is in doubt, although {watermark.missing} versions of "
            f"{port.uri} are missing: Spark's commit log has epochs up to {checkpoint.committed}, "
            f"history up to {watermark.epoch}. Type {preconditions.command('release')}"
        )
    if epoch != in_doubt:
        raise PreconditionError(
            f"epoch {epoch} of query {query_id!r} is not in doubt, epoch {in_doubt} is: planned, "
            f"not in the commit log of {location}, and not in the versions that {port.uri} still "
            f"has. Check for the rows of epoch {in_doubt}"
        )
    if preconditions.heard >= epoch and not landed:
        raise PreconditionError(
            f"epoch {epoch} of query {query_id!r} is not missing: its driver reported it as "
            "committed. Say --committed, unless an older state of the dataset was restored"
        )
    if epoch <= checkpoint.committed and not landed:
        raise PreconditionError(
            f"epoch {epoch} of query {query_id!r} is in Spark's commit log, so it is not read "
            "again. If its rows are not in the table, start the stream once with onRestore=accept:"
            f"{max(watermark.epoch, known_done(state)) + 1}-{epoch}, which continues without them"
        )
    what = f"epoch {epoch} resolved as {'committed' if landed else 'missing'}"
    last = epoch if landed else max(watermark.epoch, checkpoint.committed)
    port, state, plan = force_release(
        preconditions,
        preconditions.driver(what),
        checkpoint,
        replace(watermark, epoch=last),
        on_history_gap=OnHistoryGap(epoch, landed, folded),
    )
    final = last if plan else state.watermark
    sentence = f"{what} by {preconditions.by}, watermark {final}, released"
    return _repaired(Action.GAP, port, state, sentence, plan=plan)


def resolve_checkpoint(
    port: DatasetPort,
    query_id: str,
    checkpoint_location: str,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Record the checkpoint that is now at a location, and start a new numbering of epochs for it.

    The next start reads the source from where this checkpoint stands, and appends what it reads,
    even if it was read before.

    :param checkpoint_location: the new checkpoint, which must have an id.
    :raises PreconditionError: there is no checkpoint yet, or it already fits; as
        :class:`DriverAliveError` a driver is alive, or its state is unknown.
    :raises CheckpointCorruptError: its id cannot be read.
    :raises FencedError: another driver claimed in the middle; its claim stands.
    :raises TransientError: the store refused too often.
    """
    preconditions = Preconditions(port, query_id, options)
    port, owner = preconditions.port, preconditions.owner
    verb = ["resolve", "checkpoint", "--checkpoint", checkpoint_location]
    recorded = owner.driver.checkpoint_location
    preconditions.refuse_live_driver(recorded, checkpoint_location, verb=verb)
    checkpoint = preconditions.checkpoint(checkpoint_location)
    if checkpoint.id is None:
        raise PreconditionError(
            f"{checkpoint_location} has no checkpoint yet, so there is no id to record: start the "
            f"stream there once with onCheckpointChange=newGeneration, which does the same"
        )

    def opener(place: str) -> ArrowFiles:
        return open_files(place, options.get("storage_options"))

    if home := find_home(checkpoint.id, checkpoint_location, port, query_id, opener):
        raise PreconditionError(
            f"the checkpoint at {checkpoint_location} (id {checkpoint.id}) belongs to query "
            f"{home.query_id!r}, which has it at {home.location}: query {query_id!r} would read "
            "that query's source from where that query stands. Move each checkpoint back to its "
            "own place"
        )
    watermark = exact_watermark(port, query_id)
    if checkpoint.id == owner.driver.checkpoint_id and watermark.epoch <= checkpoint.planned:
        raise PreconditionError(
            f"the checkpoint at {checkpoint_location} (id {checkpoint.id}) is the one that query "
            f"{query_id!r} in {port.uri} belongs to, and no older copy: there is nothing to resolve"
        )
    driver = replace(
        preconditions.driver("checkpoint resolved"),
        checkpoint_id=checkpoint.id,
        checkpoint_location=checkpoint_location,
    )
    port, state, plan = force_release(preconditions, driver, checkpoint, None)
    sentence = (
        f"checkpoint {checkpoint.id} recorded by {preconditions.by}, generation "
        f"{state.generation + bool(plan)}, with a new numbering of epochs"
    )
    return _repaired(Action.CHECKPOINT, port, state, sentence, plan=plan)


def _repaired(
    action: Action,
    port: DatasetPort,
    state: QueryState,
    sentence: str,
    *,
    changed: bool = True,
    plan: Sequence[Write] = (),
) -> RepairResult:
    """Return the result; with a ``plan`` it is a dry run's."""
    return RepairResult(
        action=action,
        uri=port.uri,
        query_id=state.query_id,
        sentence=sentence,
        changed=changed and not plan,
        version=port.version,
        watermark=state.watermark,
        token=state.owner.token if state.owner else None,
        generation=state.generation,
        dry_run=bool(plan),
        writes=tuple(plan),
    )
