"""From a decision that ends the query to the error that says what was seen and what to type."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    FencedError,
    HistoryGapError,
    SpecError,
)
from airflow_provider_lance.streaming.checkpoint import Checkpoint
from airflow_provider_lance.streaming.decision import Decision
from airflow_provider_lance.streaming.decoding import shown, whole_text
from airflow_provider_lance.streaming.epoch import QueryState, Watermark

__all__ = ["OnHistoryGap", "refuse"]


@dataclass(frozen=True, slots=True)
class OnHistoryGap:
    """What the user knows of the one epoch in doubt; by default nothing, and the query stops.

    Naming the epoch makes a forgotten option harmless: it answers for that epoch only.
    """

    epoch_id: int | None = None
    landed: bool = False

    @classmethod
    def parse(cls, text: object) -> OnHistoryGap:
        """Read ``fail``, ``committed:<epoch>`` or ``missing:<epoch>``.

        :raises SpecError: anything else.
        """
        if text == "fail":
            return cls()
        if isinstance(text, str):
            answer, _, epoch = text.partition(":")
            if answer in ("committed", "missing"):
                with suppress(ValueError):
                    return cls(whole_text(epoch), answer == "committed")
        raise SpecError(
            f"onHistoryGap={shown(text)}: use 'fail', 'committed:<epoch>' or 'missing:<epoch>'"
        )

    def names(self, epoch_id: int) -> bool:
        """Tell whether the user has answered for this epoch."""
        return self.epoch_id == epoch_id


def refuse(
    decision: Decision,
    *,
    state: QueryState,
    uri: str,
    checkpoint: Checkpoint,
    watermark: Watermark,
    held_token: int | None,
) -> None:
    """Raise the error that a decision stands for; return if the decision is no refusal.

    :raises FencedError, CheckpointMismatchError, HistoryGapError: as the decision says.
    """
    query, owner = state.query_id, state.owner
    match decision:
        case Decision.FENCED:
            held_by = (
                f"token {owner.token} ({owner.state.value}) of run {owner.driver.run_id} on host "
                f"{owner.driver.host or 'unknown'}, since {owner.time}"
                if owner
                else "nobody: its owner record is gone"
            )
            mine = "had not claimed yet" if held_token is None else f"had token {held_token}"
            raise FencedError(
                f"query {query!r} in {uri} is held by {held_by}; this driver {mine} and stops "
                "without committing. One driver per query goes on: nothing to do, unless both were "
                "wanted; then give one of them a queryId of its own"
            )
        case Decision.CHECKPOINT_FOREIGN:
            recorded = owner.driver if owner else None
            raise CheckpointMismatchError(
                f"query {query!r} in {uri} belongs to checkpoint "
                f"{recorded.checkpoint_id if recorded else None} at "
                f"{recorded.checkpoint_location if recorded else None} (epoch watermark "
                f"{watermark.epoch}), but {checkpoint.location} has "
                f"{f'id {checkpoint.id}' if checkpoint.id else 'no checkpoint yet'}. Was it "
                "deleted or moved? Going on would skip data silently. Either point "
                "checkpointLocation at the recorded checkpoint, or choose a new queryId, or set "
                "onCheckpointChange=newGeneration to number epochs anew under this queryId (the "
                "source is then read from where this checkpoint stands, and rows read before are "
                "appended again)"
            )
        case Decision.CHECKPOINT_STALE:
            raise CheckpointMismatchError(
                f"query {query!r} has epoch {watermark.epoch} in {uri}, but its checkpoint at "
                f"{checkpoint.location} has planned no epoch after {checkpoint.planned}: it is an "
                "older copy. Spark would plan those epochs anew with other data, and they would "
                "be skipped. Either restore the newest copy of the checkpoint, or choose a new "
                "queryId, or set onCheckpointChange=newGeneration"
            )
        case Decision.DATASET_FOREIGN:
            raise CheckpointMismatchError(
                f"the checkpoint at {checkpoint.location} (id {checkpoint.id}) has committed "
                f"epochs up to {checkpoint.committed}, but {uri} at version {state.version} has no "
                f"trace of query {query!r}. Was the dataset dropped or recreated, or is this the "
                "wrong URI or queryId? Those epochs' rows are not here. Either correct uri and "
                "queryId, or start with a new checkpointLocation, which reads the source again, "
                "or set onCheckpointChange=newGeneration to go on from where the checkpoint stands"
            )
        case Decision.HISTORY_GAP:
            epoch = checkpoint.planned
            raise HistoryGapError(
                f"epoch {epoch} of query {query!r} was planned and is not in the checkpoint's "
                f"commit log, and {watermark.missing} of the versions of {uri} after "
                f"{state.folded_version} that could prove it were cleaned up. Look whether its "
                f"rows are in the dataset, then start once with onHistoryGap=committed:{epoch} if "
                f"they are, or onHistoryGap=missing:{epoch} if they are not"
            )
        case Decision.FULL_COMMIT | Decision.SKIP_REPLAY | Decision.RECOVERY_TXN2_ONLY:
            return
