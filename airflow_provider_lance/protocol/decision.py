"""The decision table: what to do with an epoch, given the observed state. Pure; first row wins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_lance.protocol.model import NO_EPOCH

__all__ = ["Decision", "DecisionInput", "decide"]


class Decision(StrEnum):
    """What a sink does with an epoch. The last seven end the query with a named error."""

    FULL_COMMIT = "FULL_COMMIT"
    """Neither config nor history has the epoch: write and commit it."""
    SKIP_REPLAY = "SKIP_REPLAY"
    """The epoch is in the folded watermark: write nothing, commit nothing."""
    RECOVERY_TXN2_ONLY = "RECOVERY_TXN2_ONLY"
    """History has the epoch and the config is behind: fold the watermark, append nothing.

    The name comes from the classic two-transaction design, whose second transaction wrote the
    watermark.
    """
    FENCED = "FENCED"
    """Another driver owns the query."""
    HISTORY_GAP = "HISTORY_GAP"
    """The epoch may be in a version that was cleaned up, and Spark cannot prove it either."""
    CHECKPOINT_FOREIGN = "CHECKPOINT_FOREIGN"
    """The watermark belongs to another checkpoint: the query's was deleted, or this is not its own.
    """
    CHECKPOINT_STALE = "CHECKPOINT_STALE"
    """The dataset has epochs that this checkpoint never planned: an old copy was restored."""
    CHECKPOINT_CHANGED = "CHECKPOINT_CHANGED"
    """The checkpoint and an epoch's commit disagree on where the epoch ends."""
    DATASET_FOREIGN = "DATASET_FOREIGN"
    """The checkpoint has committed epochs, and the dataset has no trace of the query."""
    DATASET_RESTORED = "DATASET_RESTORED"
    """An older version was restored, and epochs are gone that Spark does not read again."""


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """The input of the decision; epochs are ``-1`` where there is none.

    ``held_token`` is this driver's own token, ``None`` before its claim. ``missing`` counts the
    versions since the last fold that were cleaned up, ``missing_above`` those of them above the
    newest epoch in history. ``known_done`` is the newest epoch that the config records as done,
    with or without rows. ``lost`` says that a restored version undid epochs of Spark's commit log.
    ``changed`` says that the end offsets in the checkpoint differ from those of a commit.
    ``reported`` is the newest epoch that the owner's driver reported as committed, where versions
    that could show it are missing. ``planned`` and ``committed`` are the newest epochs of Spark's
    logs when this driver started. ``planned_now`` is the newest planned epoch at the last read:
    another driver may have continued since. ``side`` says that the dataset is a side table, whose
    first epoch may be any.
    """

    checkpoint_id: str | None
    recorded_checkpoint_id: str | None
    planned: int
    planned_now: int
    committed: int
    held_token: int | None
    owner_token: int | None
    config_watermark: int
    exact_watermark: int
    missing: int = 0
    missing_above: int = 0
    known_done: int = NO_EPOCH
    lost: bool = False
    changed: bool = False
    side: bool = False
    reported: int = NO_EPOCH


def decide(seen: DecisionInput, epoch_id: int) -> Decision:
    """Return the decision for one epoch; ``epoch_id`` -1 asks before any epoch is planned."""
    if seen.owner_token is None and seen.committed > NO_EPOCH and not seen.side:
        return Decision.DATASET_FOREIGN
    if seen.owner_token is not None and seen.checkpoint_id != seen.recorded_checkpoint_id:
        return Decision.CHECKPOINT_FOREIGN
    if seen.held_token is not None and seen.held_token != seen.owner_token:
        return Decision.FENCED
    if max(seen.exact_watermark, seen.reported) > max(seen.planned_now, epoch_id):
        return Decision.CHECKPOINT_STALE
    if seen.changed:
        return Decision.CHECKPOINT_CHANGED
    if seen.lost:
        return Decision.DATASET_RESTORED
    if _in_doubt(seen):
        return Decision.HISTORY_GAP
    if epoch_id <= seen.config_watermark:
        return Decision.SKIP_REPLAY
    if epoch_id <= seen.exact_watermark:
        return Decision.RECOVERY_TXN2_ONLY
    return Decision.FULL_COMMIT


def _in_doubt(seen: DecisionInput) -> bool:
    # An epoch may be in missing versions above the newest that was seen. An epoch that Spark has as
    # done landed, but whether it is still in the table is not known either: one of the missing
    # versions may have restored an older one. Epochs that the config records as done are in its own
    # chain.
    seen_to = max(seen.exact_watermark, seen.known_done)
    if seen.missing_above and seen.planned > seen_to:
        return True
    # After each landing, a driver proves that its previous epoch is in the chain. The newest
    # landing is proven only if Spark has it as done.
    unproven = seen.exact_watermark > max(seen.committed, seen.known_done)
    return seen.missing > 0 and (seen.committed > seen_to or unproven)
