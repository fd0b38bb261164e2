"""What a driver knows of its epochs: Spark's log, the dataset's history, the user's answers.

It reads and refuses, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_lance.exceptions import FencedError
from airflow_provider_lance.protocol.chain import Chain
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.decision import Decision, DecisionInput, decide
from airflow_provider_lance.protocol.errors import refuse
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    Driver,
    Epoch,
    Owner,
    QueryState,
    Watermark,
)
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.proof import (
    answered,
    changed_ends,
    changed_files,
    done_by_spark,
    lost_epochs,
    sighting,
)
from airflow_provider_lance.protocol.watermark import WatermarkReader

__all__ = ["Ledger"]


class Ledger:
    """One driver's knowledge of which epochs are done, as seen from its handle (``chain``)."""

    def __init__(
        self,
        port: DatasetPort,
        query_id: str,
        checkpoint: Checkpoint,
        policy: CommitPolicy,
        look: Callable[[], Checkpoint],
        *,
        heard: Callable[[Driver], int],
        side: bool = False,
    ) -> None:
        self.chain = Chain(port, query_id, policy, self)
        self.watermark = Watermark(NO_EPOCH, port.version, None)
        """The epoch watermark, exact since the last :meth:`read`."""
        self.done: DoneEpoch | None = self.chain.state.done
        """The newest epoch that is done, with or without rows."""
        self.answered = False
        """Whether an answer of the user decided about epochs in doubt."""
        self.look = look
        """Reads the checkpoint again."""
        self._heard, self._reported = heard, NO_EPOCH
        self._query_id, self._policy = query_id, policy
        self._checkpoint = self._at_start = checkpoint
        self._side = side
        self._planned_now = checkpoint.planned
        self._changed = False
        self._reader = WatermarkReader(port, query_id)
        self._first_version = port.version

    # ---------------------------------------------------------------------------------------- read

    def read(self) -> None:
        """Read the exact watermark at the handle; Spark's commit log helps over a gap."""
        watermark = self._read()
        while watermark.missing and self._folded_by_others():
            watermark = self._read()
        if watermark.missing or watermark.undone_missing:
            self._look_beyond_the_start()
            watermark = self._read()
        state, policy = self.chain.state, self._policy
        if watermark.missing_above:
            self._hear(state.owner)
        self._changed = bool(
            changed_ends(self._checkpoint, state, watermark)
            or changed_files(self._checkpoint, watermark)
        )
        self.watermark = answered(
            self._checkpoint, state, watermark, policy.on_restore, policy.on_history_gap
        )
        self.answered |= self.watermark is not watermark
        watermark = self.watermark
        done = done_by_spark(self._checkpoint, state, watermark)
        if done and (self.done is None or self.done.epoch_id < done.epoch_id):
            self.done = done
        if max(watermark.epoch, self._reported) > self._planned_now:
            # Either the checkpoint is an old copy, or another driver has continued it since it was
            # read: an epoch is planned before it is committed, so a second read can tell.
            self._planned_now = max(self._planned_now, self.look().planned)

    def read_again(self) -> None:
        """Read checkpoint and watermark, and refuse what another driver has changed meanwhile."""
        self._checkpoint = self._look_again()
        self.read()
        self.refuse(self.decide(NO_EPOCH))

    def _read(self) -> Watermark:
        return self._reader.at(self.chain.port, spark_done=self._checkpoint.committed)

    def _hear(self, owner: Owner | None) -> None:
        """Ask for the reports of the driver before this one.

        Versions that are missing may hold epochs that an older copy of the checkpoint lacks. A
        repair by hand has looked itself.
        """
        if owner and owner != self.chain.owner and not owner.driver.by_hand:
            self._reported = max(self._reported, self._heard(owner.driver))

    def _look_again(self) -> Checkpoint:
        return replace(self.look().with_changed_entries(), id=self._checkpoint.id)

    def _folded_by_others(self) -> bool:
        """Reopen; return whether another driver folded since: cleanup folds before it removes."""
        folded = self.chain.state.folded_version
        self.chain.reopen()
        return self.chain.state.folded_version > folded

    def _look_beyond_the_start(self) -> None:
        """Read the checkpoint again if versions made after this start are missing.

        Another driver may have run and continued Spark's log: Lance also lets a claim land over
        versions that were cleaned up while its driver hung (seen on pylance 14.0.2).
        """
        port = self.chain.port
        since = range(self._first_version + 1, port.version)
        if any(port.properties(version) is None for version in since):
            self._checkpoint = self._look_again()

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint, as it was read last."""
        return self._checkpoint

    # -------------------------------------------------------------------------------------- record

    def identify(self, checkpoint_id: str) -> None:
        """Record the checkpoint's id, as Spark says it.

        :raises CheckpointMismatchError: it differs from the one that was read before the start.
        """
        known = self._checkpoint.id
        self._checkpoint = replace(self._checkpoint, id=checkpoint_id)
        if known is not None and known != checkpoint_id:
            self.refuse(Decision.CHECKPOINT_FOREIGN)

    def note_landed(self, epoch: Epoch, committed_at: str) -> None:
        """Record that this driver's epoch is in the dataset."""
        self.watermark = Watermark(epoch.epoch_id, self.chain.port.version, committed_at)
        self.note_done(DoneEpoch(epoch.epoch_id, epoch.ends, epoch.digest))

    def note_done(self, done: DoneEpoch) -> None:
        """Record the newest epoch that is done, with or without rows."""
        self.done = done

    # -------------------------------------------------------------------------------------- decide

    def decide(self, epoch_id: int) -> Decision:
        """Return what to do with an epoch, as seen from the handle; no I/O."""
        if self.starts_generation():
            return Decision.FULL_COMMIT
        return decide(self._sighting(), epoch_id)

    def starts_generation(self) -> bool:
        """Return whether the claim begins a new numbering, because the user asked for one."""
        if not self._policy.new_generation or self.chain.owner is not None:
            return False
        return decide(self._sighting(), NO_EPOCH) in (
            Decision.CHECKPOINT_FOREIGN,
            Decision.CHECKPOINT_STALE,
            Decision.DATASET_FOREIGN,
        )

    def _sighting(self) -> DecisionInput:
        return sighting(
            self._checkpoint,
            self.chain.state,
            self.watermark,
            planned_now=self._planned_now,
            held_token=self._held_token,
            changed=self._changed,
            side=self._side,
            reported=self._reported,
        )

    @property
    def _held_token(self) -> int | None:
        return self.chain.owner.token if self.chain.owner else None

    # -------------------------------------------------------------------------------------- refuse

    def refuse(self, decision: Decision, state: QueryState | None = None) -> None:
        """Raise the error for a decision; return if it is not a refusal."""
        refuse(
            decision,
            state=state or self.chain.state,
            uri=self.chain.port.uri,
            checkpoint=self._checkpoint,
            watermark=self.watermark,
            held_token=self._held_token,
            reported=self._reported,
        )

    def refuse_if_fenced(self) -> None:
        """Raise :class:`FencedError` if another driver owns the query."""
        if self.chain.fenced:
            self.refuse(Decision.FENCED)

    def refuse_lost(self) -> None:
        """Raise the error that names the epochs removed by a restored version, if any.

        :raises DatasetRestoredError: rows are gone that Spark has as done.
        """
        checkpoint = self._look_again()
        watermark = self._reader.at(self.chain.port, spark_done=checkpoint.committed)
        if lost_epochs(watermark, self.chain.state, checkpoint.committed):
            self._checkpoint, self.watermark = checkpoint, watermark
            self.refuse(Decision.DATASET_RESTORED)

    def refuse_overtaken(self, epoch_id: int) -> None:
        """Raise if Spark's log is ahead of this driver: it has this epoch done, or a later one.

        Another driver wrote it then. A restored version may have brought this driver's owner record
        back since, and nothing else shows that. Reads the checkpoint; call it after others have
        committed.

        :raises DatasetRestoredError: rows are gone.
        :raises FencedError: no rows are gone.
        """
        seen = self.look()
        if seen is self._at_start:
            return  # nothing reads it again
        overtaken = seen.committed >= epoch_id or seen.planned > epoch_id
        if not overtaken or not self._policy.chain_proof:
            return
        fenced = self.chain.broke(
            FencedError(
                f"Spark's log of query {self._query_id!r} at {self._checkpoint.location} has "
                f"planned epoch {seen.planned} and done epoch {seen.committed}, and this driver is "
                f"at epoch {epoch_id}: another driver continued the query. This one stops without "
                f"committing to {self.chain.port.uri}, although the owner record there is its own "
                "again, as after a restored version. Start the stream again if no driver is running"
            )
        )
        self.refuse_lost()
        raise fenced
