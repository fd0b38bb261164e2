"""What dataset, checkpoint and user together prove about the epochs; pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.decision import Decision, DecisionInput, decide
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    EndOffsets,
    QueryState,
    Watermark,
)
from airflow_provider_lance.protocol.watermark import known_done, newest_done

__all__ = [
    "answered",
    "changed_ends",
    "changed_files",
    "done_by_spark",
    "epoch_in_doubt",
    "lost_epochs",
    "sighting",
]


def sighting(
    checkpoint: Checkpoint,
    state: QueryState,
    watermark: Watermark,
    *,
    planned_now: int | None = None,
    held_token: int | None = None,
    changed: bool = False,
    side: bool = False,
    reported: int = NO_EPOCH,
) -> DecisionInput:
    """Assemble the input of the decision."""
    recorded = state.owner
    return DecisionInput(
        checkpoint_id=checkpoint.id,
        recorded_checkpoint_id=recorded.driver.checkpoint_id if recorded else None,
        planned=checkpoint.planned,
        planned_now=checkpoint.planned if planned_now is None else planned_now,
        committed=checkpoint.committed,
        held_token=held_token,
        owner_token=recorded.token if recorded else None,
        config_watermark=state.watermark,
        exact_watermark=watermark.epoch,
        missing=watermark.missing,
        missing_above=watermark.missing_above,
        known_done=known_done(state),
        lost=lost_epochs(watermark, state, checkpoint.committed) is not None,
        changed=changed,
        side=side,
        reported=reported,
    )


def lost_epochs(watermark: Watermark, state: QueryState, spark_done: int) -> tuple[int, int] | None:
    """Return the first and last epoch that a restore removed for good.

    An epoch above Spark's commit log is not among them: Spark plans it again.

    :param spark_done: the newest epoch in Spark's commit log.
    """
    if watermark.undone_by is None:
        return None
    lost = [stamp.epoch_id for stamp in watermark.undone if stamp.epoch_id <= spark_done]
    if watermark.undone_missing:
        # What the missing versions held is unknown. If the fold itself was made before the restore,
        # what is in the table is unknown too.
        over_fold = watermark.undone_by[1] < state.folded_version
        lost += range(
            0 if over_fold else max(watermark.epoch, known_done(state)) + 1, spark_done + 1
        )
    return (min(lost), max(lost)) if lost else None


def changed_ends(
    checkpoint: Checkpoint, state: QueryState, watermark: Watermark
) -> dict[int, EndOffsets]:
    """Return the epochs whose end in Spark's log is not where they ended.

    Each comes with the end that is known otherwise: from the epoch's own commit, from the last
    fold, or from the note of the driver that planned it, which also covers an epoch without rows.
    """
    known = {stamp.epoch_id: stamp.ends for stamp in watermark.stamps}
    if state.done:
        known.setdefault(state.done.epoch_id, state.done.ends)
    for epoch_id, note in checkpoint.notes.items():
        if _is_done(epoch_id, checkpoint, watermark):
            known.setdefault(epoch_id, note.ends)
    changed = {}
    for epoch_id, lines in checkpoint.ends.items():
        ends = known.get(epoch_id)
        if ends is not None and ends.digest != EndOffsets.of(lines).digest:
            changed[epoch_id] = ends
    return changed


def changed_files(checkpoint: Checkpoint, watermark: Watermark) -> dict[str, EndOffsets]:
    """Return the entries of file sources' logs that are not what done epochs read, by path."""
    return {
        path: read
        for epoch_id, entries in checkpoint.changed_entries.items()
        if _is_done(epoch_id, checkpoint, watermark)
        for path, read in entries.items()
    }


def _is_done(epoch_id: int, checkpoint: Checkpoint, watermark: Watermark) -> bool:
    """Return whether an epoch is not planned again; one that is may be planned otherwise."""
    return epoch_id <= max(checkpoint.committed, watermark.epoch)


def epoch_in_doubt(checkpoint: Checkpoint, state: QueryState, watermark: Watermark) -> int | None:
    """Return the newest epoch that cannot be proven to be in the table or not, if any."""
    decision = decide(sighting(checkpoint, state, watermark), NO_EPOCH)
    return checkpoint.planned if decision is Decision.HISTORY_GAP else None


def done_by_spark(
    checkpoint: Checkpoint, state: QueryState, watermark: Watermark
) -> DoneEpoch | None:
    """Return the newest epoch that dataset or checkpoint have as done, with its end if known."""
    done = newest_done(state, watermark)
    if checkpoint.committed <= (done.epoch_id if done else NO_EPOCH):
        return done
    lines = checkpoint.ends.get(checkpoint.committed)
    return DoneEpoch(checkpoint.committed, EndOffsets.of(lines) if lines else None)


def answered(
    checkpoint: Checkpoint,
    state: QueryState,
    watermark: Watermark,
    on_restore: OnRestore,
    on_history_gap: OnHistoryGap,
) -> Watermark:
    """Return the watermark with the user's answers applied; unchanged without an answer."""
    lost = lost_epochs(watermark, state, checkpoint.committed)
    if lost is not None:
        if not on_restore.covers(lost):
            return watermark
        watermark = replace(watermark, undone=(), undone_by=None, undone_missing=False)
        watermark = replace(
            watermark, epoch=max(watermark.epoch, lost[1]), missing=watermark.missing_above
        )
    if not watermark.missing:
        return watermark
    planned, committed = checkpoint.planned, checkpoint.committed
    has_answer = on_history_gap.names(planned, state.folded_version)

    def in_doubt() -> bool:
        return epoch_in_doubt(checkpoint, state, watermark) is not None

    if in_doubt() and has_answer and on_history_gap.landed:
        return replace(watermark, epoch=planned, missing=0, missing_above=0)
    if in_doubt() and on_restore.covers((max(watermark.epoch, known_done(state)) + 1, committed)):
        watermark = replace(
            watermark, epoch=max(watermark.epoch, committed), missing=watermark.missing_above
        )
    if in_doubt() and not (has_answer and planned > committed):
        return watermark
    return replace(watermark, epoch=max(watermark.epoch, committed), missing=0, missing_above=0)
