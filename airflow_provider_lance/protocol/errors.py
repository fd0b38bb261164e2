"""The error for a decision that ends the query: what was seen and what to type."""

from __future__ import annotations

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetRestoredError,
    FencedError,
    HistoryGapError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import NO_EPOCH, QueryState, Watermark
from airflow_provider_lance.protocol.offset_notes import NOTES
from airflow_provider_lance.protocol.proof import changed_ends, changed_files, lost_epochs
from airflow_provider_lance.protocol.watermark import known_done

__all__ = ["refuse"]


def refuse(
    decision: Decision,
    *,
    state: QueryState,
    uri: str,
    checkpoint: Checkpoint,
    watermark: Watermark,
    held_token: int | None,
    reported: int = NO_EPOCH,
) -> None:
    """Raise the error for a decision; return if the decision is not a refusal.

    :raises FencedError, CheckpointMismatchError, DatasetRestoredError, HistoryGapError: depending
        on the decision.
    """
    query, owner = state.query_id, state.owner
    match decision:
        case Decision.FENCED:
            held_by = (
                f"token {owner.token} ({owner.state.value}) of run {owner.driver.run_id} on host "
                f"{owner.driver.host or 'unknown'}, since {owner.time}"
                if owner
                else "no driver: its owner record is gone"
            )
            mine = "had not claimed yet" if held_token is None else f"had token {held_token}"
            raise FencedError(
                f"query {query!r} in {uri} is held by {held_by}; this driver {mine} and stops "
                "without committing. There is nothing to do, unless you want both drivers: then "
                "give one of them a queryId of its own"
            )
        case Decision.CHECKPOINT_FOREIGN:
            recorded = owner.driver if owner else None
            raise CheckpointMismatchError(
                f"query {query!r} in {uri} belongs to checkpoint "
                f"{recorded.checkpoint_id if recorded else None} at "
                f"{recorded.checkpoint_location if recorded else None} (epoch watermark "
                f"{watermark.epoch}), but {checkpoint.location} has "
                f"{f'id {checkpoint.id}' if checkpoint.id else 'no checkpoint yet'}. To continue "
                "would skip data silently. Point checkpointLocation at the recorded checkpoint, or "
                "choose a new queryId, or set onCheckpointChange=newGeneration, which begins a new "
                "numbering under this queryId: the source is read from where this checkpoint "
                "stands, and rows read before are appended again"
            )
        case Decision.CHECKPOINT_STALE:
            has = f"query {query!r} has epoch {watermark.epoch} in {uri}"
            if reported > watermark.epoch:
                has = (
                    f"the driver of query {query!r} reported that epoch {reported} is in {uri}, "
                    "the versions that could show it were cleaned up"
                )
            raise CheckpointMismatchError(
                f"{has}, but the query's checkpoint at "
                f"{checkpoint.location} has planned no epoch after {checkpoint.planned}: it is an "
                "older copy. Spark would plan those epochs again with other data, and they would "
                "be skipped. Restore the newest copy of the checkpoint, or choose a new queryId, "
                "or set onCheckpointChange=newGeneration"
            )
        case Decision.DATASET_FOREIGN:
            raise CheckpointMismatchError(
                f"the checkpoint at {checkpoint.location} (id {checkpoint.id}) has committed "
                f"epochs up to {checkpoint.committed}, but {uri} at version {state.version} has no "
                f"trace of query {query!r}. If uri and queryId are right, the dataset was dropped, "
                "recreated or restored, and those epochs' rows are gone. Correct uri and queryId, "
                "or start with a new checkpointLocation, which reads the source again, or set "
                "onCheckpointChange=newGeneration to continue from where the checkpoint stands"
            )
        case Decision.CHECKPOINT_CHANGED:
            raise _changed(uri, state, checkpoint, watermark)
        case Decision.DATASET_RESTORED:
            raise _restored(uri, state, checkpoint, watermark)
        case Decision.HISTORY_GAP:
            raise _gap(uri, state, checkpoint, watermark)
        case Decision.FULL_COMMIT | Decision.SKIP_REPLAY | Decision.RECOVERY_TXN2_ONLY:
            return


def _changed(
    uri: str, state: QueryState, checkpoint: Checkpoint, watermark: Watermark
) -> CheckpointMismatchError:
    epochs = changed_ends(checkpoint, state, watermark)
    entries = changed_files(checkpoint, watermark)
    if epochs:
        what, file = f"epoch {max(epochs)} of query {state.query_id!r} ends elsewhere", "`offsets`"
    else:
        what = f"query {state.query_id!r} read other files as {' and '.join(sorted(entries))}"
        file = "`sources`"
    return CheckpointMismatchError(
        f"the checkpoint at {checkpoint.location} says that {what} than its driver recorded in "
        f"{uri} or in {NOTES} of the checkpoint. Its {file} file was written by another driver, "
        "edited or restored: Spark would skip rows, or read rows again. Type lance-stream check, "
        "which says how to repair it"
    )


def _restored(
    uri: str, state: QueryState, checkpoint: Checkpoint, watermark: Watermark
) -> DatasetRestoredError:
    lost = lost_epochs(watermark, state, checkpoint.committed)
    assert lost is not None
    assert watermark.undone_by is not None
    by, restored = watermark.undone_by
    gone = [stamp for stamp in watermark.undone if lost[0] <= stamp.epoch_id <= lost[1]]
    rows = f"{sum(stamp.rows for stamp in gone):,} rows"
    rows = f"at least {rows}" if watermark.undone_missing else rows
    are = "may no longer be" if watermark.undone_missing else "are no longer"
    back = (
        "the versions that held them were cleaned up, so they cannot be brought back"
        if watermark.undone_missing
        else f"to bring them back, with version {by - 1}: "
        + command_line("resolve", "restore", uri, state.query_id, "--bring-back", "--yes")
    )
    return DatasetRestoredError(
        f"version {by} of {uri} restored version {restored}: epochs {lost[0]} to {lost[1]} of "
        f"query {state.query_id!r} ({rows}) {are} in the table, and Spark's log has them "
        f"as done, so it does not read them again. Choose: {back}; or, to continue without "
        f"them, start once with onRestore=accept:{lost[0]}-{lost[1]}"
    )


def _gap(
    uri: str, state: QueryState, checkpoint: Checkpoint, watermark: Watermark
) -> HistoryGapError:
    epoch = checkpoint.planned
    answer = f"{epoch}@{state.folded_version}"
    seen = max(watermark.epoch, known_done(state))
    gone = (
        f"{watermark.missing} of the versions of {uri} after {state.folded_version} were cleaned up"
    )
    one = epoch == seen + 1
    span, be = (f"epoch {epoch}", "is") if one else (f"epochs {seen + 1} to {epoch}", "are")
    if checkpoint.in_flight is None:
        return HistoryGapError(
            f"{gone}, so whether {span} of query {state.query_id!r} {be} still in the table cannot "
            "be seen: Spark's log has them as done, but an older version may have been restored "
            f"since. Look whether their rows are in the table, then start once with "
            f"onHistoryGap=committed:{answer} if they are; if they are not, "
            f"onRestore=accept:{seen + 1}-{epoch} continues without them"
        )
    more = (
        f" If rows of epochs {seen + 1} to {checkpoint.committed} are missing too, add "
        f"onRestore=accept:{seen + 1}-{checkpoint.committed}, which continues without them."
        if checkpoint.committed > seen
        else ""
    )
    return HistoryGapError(
        f"epoch {epoch} of query {state.query_id!r} was planned and is not in the checkpoint's "
        f"commit log, and {gone} that could prove it. Look whether its rows are in the table, "
        f"then start once with onHistoryGap=committed:{answer} if they are, or "
        f"onHistoryGap=missing:{answer} if they are not.{more}"
    )
