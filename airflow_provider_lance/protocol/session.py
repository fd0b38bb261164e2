"""What one driver knows of its query: the handle it stands at, its checkpoint, the watermark.

It reads and refuses, and writes nothing. The committer moves it, and asks it before every side
effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_lance.exceptions import (
    FencedError,
    ProtocolVersionError,
)
from airflow_provider_lance.protocol.chain import Chain
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import (
    auto_cleanup,
    decode_query,
)
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.decision import Decision, DecisionInput, decide
from airflow_provider_lance.protocol.errors import refuse
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    DoneEpoch,
    Driver,
    EndOffsets,
    Owner,
    QueryState,
    StopNote,
    Watermark,
)
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.proof import (
    answered,
    changed_epoch,
    done_by_spark,
    lost_epochs,
    sighting,
)
from airflow_provider_lance.protocol.stop_requests import standing_request, stop_for
from airflow_provider_lance.protocol.watermark import WatermarkReader

__all__ = ["DriverSession"]

log = logging.getLogger(__name__)


class DriverSession:
    """One driver's knowledge; ``owner`` is its own ownership, ``None`` before the claim."""

    def __init__(
        self,
        port: DatasetPort,
        query_id: str,
        checkpoint: Checkpoint,
        policy: CommitPolicy,
        look: Callable[[], Checkpoint],
        *,
        launch_id: str = "",
    ) -> None:
        self.query_id, self.policy, self._launch_id = query_id, policy, launch_id
        self.owner: Owner | None = None
        self.driver: Driver | None = None
        self.fold_every = policy.watermark_every
        self._checkpoint, self._look = checkpoint, look
        self._at_start = checkpoint
        self._planned_now = checkpoint.planned
        self._changed = False
        self._config = port.config
        self.state = decode_query(port.config, query_id, port.version)
        self.move_to(port)
        self._looked = policy.clock()
        self._reader = WatermarkReader(port, query_id)
        self.watermark = Watermark(NO_EPOCH, port.version, None)
        self.done: DoneEpoch | None = self.state.done
        self._first_version = port.version
        self._found_stop = standing_request(self.state)
        self._found_token = self.next_token - 1
        self.chain = Chain(self)

    def __str__(self) -> str:
        owner = self.owner
        held = f"token={owner.token} generation={owner.generation} " if owner else ""
        watermark = f"watermark={self.watermark.epoch} version={self.port.version}"
        return f"query_id={self.query_id} {held}{watermark}"

    def move_to(self, port: DatasetPort) -> None:
        """Move to another handle; its config is decoded once."""
        self.state = self.state_at(port)
        self.port, self._config = port, port.config

    def state_at(self, port: DatasetPort) -> QueryState:
        """Return the state in a handle's config; most commits leave it unchanged."""
        if port.config is self._config or port.config == self._config:
            return self.state
        return decode_query(port.config, self.query_id, port.version)

    def reopen(self) -> None:
        """Read the store, and move to the newest version.

        :raises DatasetNotFoundError, DatasetRestoredError, CommitStateUnknownError: see
            :mod:`.chain`.
        """
        before, known = self.port.version, self.chain.known
        newest = self.port.latest()
        self._looked = self.policy.clock()
        self.chain.recognise(newest, known)
        self.move_to(newest)
        self.chain.prove(since=before)

    def refresh(self, *, strictly: bool) -> None:
        """Read the store if the last read is long ago; with ``strictly`` in any case.

        Lance checks a commit against the versions since its handle, and ignores those that were
        cleaned up, barriers included (seen on pylance 14.0.2). So a driver that hung until its
        successor's barrier was gone must read for itself. A commit does not count as a read: it
        lands on top of its handle, even if the dataset was dropped.
        """
        aged = self.policy.clock().since(self._looked) > self.policy.fresh_seconds
        if strictly or aged:
            self.reopen()
        if aged:
            self.chain.refuse_dropped()

    def prepare(self) -> None:
        """Refuse what cannot be exact; see :meth:`.committer.Committer.prepare`."""
        if self.state.owner is None and self.state.known:
            raise ProtocolVersionError(
                f"query {self.query_id!r} has epoch watermark {self.state.watermark} and no owner "
                f"record in {self.port.uri}: another tool wrote it. Give this query a queryId of "
                "its own"
            )
        if settings := auto_cleanup(self.port.config):
            # It runs inside any writer's commit and may remove the versions that prove an epoch.
            log.warning(
                "Foreign auto-cleanup is on; every epoch will be folded, at twice the manifest "
                "updates. Remove these keys and schedule cleanup instead. query_id=%s settings=%s",
                self.query_id,
                settings,
            )
            self.fold_every = 1
        self.chain.refuse_dropped()
        self.read_watermark()
        self.refuse(self.decide(NO_EPOCH))

    def recheck(self) -> None:
        """Read the checkpoint again, and refuse what another driver has changed in it meanwhile."""
        self._checkpoint = replace(self._look(), id=self._checkpoint.id)
        self.read_watermark()
        self.refuse(self.decide(NO_EPOCH))

    def refuse_lost(self) -> None:
        """Raise the error that names the epochs removed by a restored version, if any.

        :raises DatasetRestoredError: rows are gone that Spark has as done.
        """
        checkpoint = replace(self._look(), id=self._checkpoint.id)
        watermark = self._reader.at(self.port, spark_done=checkpoint.committed)
        if lost_epochs(watermark, self.state, checkpoint.committed):
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
        seen = self._look()
        if seen is self._at_start:
            return  # nothing reads it again
        overtaken = seen.committed >= epoch_id or seen.planned > epoch_id
        if not overtaken or not self.policy.chain_proof:
            return
        self.chain.broken = True
        self.refuse_lost()
        raise FencedError(
            f"Spark's log of query {self.query_id!r} at {self._checkpoint.location} has planned "
            f"epoch {seen.planned} and done epoch {seen.committed}, and this driver is at epoch "
            f"{epoch_id}: another driver went on from here. This one stops without committing to "
            f"{self.port.uri}, although the owner record there is its own again, as after "
            "a restored version. Start the stream again if no driver is running"
        )

    def note_done(self, epoch_id: int, ends: EndOffsets | None) -> None:
        """Record the newest epoch that is done, with or without rows."""
        self.done = DoneEpoch(epoch_id, ends)

    def identify(self, driver: Driver) -> None:
        """Record what Spark says of the run; see :meth:`.committer.Committer.identify`."""
        known = self._checkpoint.id
        self.driver = driver
        self._checkpoint = replace(self._checkpoint, id=driver.checkpoint_id)
        if known is not None and known != driver.checkpoint_id:
            self.refuse(Decision.CHECKPOINT_FOREIGN)

    def decide(self, epoch_id: int) -> Decision:
        """Return what to do with an epoch, as seen from the handle; no I/O."""
        if self.starts_generation():
            return Decision.FULL_COMMIT
        return decide(self._sighting(self.watermark), epoch_id)

    def starts_generation(self) -> bool:
        """Return whether the claim begins a new numbering, because the user asked for one."""
        if not self.policy.new_generation or self.owner is not None:
            return False
        return decide(self._sighting(self.watermark), NO_EPOCH) in (
            Decision.CHECKPOINT_FOREIGN,
            Decision.CHECKPOINT_STALE,
            Decision.DATASET_FOREIGN,
        )

    @property
    def run_id(self) -> str:
        """Return Spark's name for the run, empty before :meth:`identify`."""
        return self.driver.run_id if self.driver else ""

    @property
    def next_token(self) -> int:
        """Return the token of the next driver to claim."""
        return (self.state.owner.token if self.state.owner else 0) + 1

    @property
    def fenced(self) -> bool:
        """Return whether the handle's config names another owner than this driver; no I/O."""
        return self.owner is None or self.state.owner != self.owner

    def stop_requested(self, *, poll: bool) -> StopNote | None:
        """Return the request that this driver must obey; see :class:`.committer.Committer`."""
        # The handle stays: only the thread that commits moves it.
        state = self._newest_state() if poll else self.state
        if poll and self._overtaken(state):
            self.refuse(Decision.FENCED, state)
        return self._stop_for(state)

    def _newest_state(self) -> QueryState:
        known = self.chain.known
        port = self.port.latest()
        self.chain.recognise(port, known)
        return decode_query(port.config, self.query_id, port.version)

    def _overtaken(self, state: QueryState) -> bool:
        """Return whether another driver claimed after this one, or since its start if unclaimed.

        It matters before the claim too: the driver that claimed has an epoch in Spark's log, at the
        number that this driver would plan next. A new generation has its own log.
        """
        held = self.owner.token if self.owner else self._found_token
        if state.owner is None or state.owner.token <= held or self.starts_generation():
            return False
        return state.owner.driver != self.driver  # a claim of its own may just have landed

    def _stop_for(self, state: QueryState) -> StopNote | None:
        return stop_for(state, launch_id=self._launch_id, owner=self.owner, found=self._found_stop)

    def read_watermark(self) -> None:
        """Read the exact watermark at the handle; Spark's commit log helps over a gap."""
        watermark = self._read()
        while watermark.missing and self._folded_by_others():
            watermark = self._read()
        if watermark.missing or watermark.undone_missing:
            self._look_beyond_the_start()
            watermark = self._read()
        self._changed = changed_epoch(self._checkpoint, self.state, watermark) is not None
        policy = self.policy
        self.watermark = watermark = answered(
            self._checkpoint, self.state, watermark, policy.on_restore, policy.on_history_gap
        )
        done = done_by_spark(self._checkpoint, self.state, watermark)
        if done and (self.done is None or self.done.epoch_id < done.epoch_id):
            self.done = done
        if watermark.epoch > self._planned_now:
            # Either the checkpoint is an old copy, or another driver has continued it since it was
            # read: an epoch is planned before it is committed, so a second read can tell.
            self._planned_now = max(self._planned_now, self._look().planned)

    def _folded_by_others(self) -> bool:
        """Reopen; return whether another driver folded since: cleanup folds before it removes."""
        folded = self.state.folded_version
        self.reopen()
        return self.state.folded_version > folded

    def _look_beyond_the_start(self) -> None:
        """Read the checkpoint again if versions made after this start are missing.

        Another driver may have run and continued Spark's log: Lance also lets a claim land over
        versions that were cleaned up while its driver hung (seen on pylance 14.0.2).
        """
        since = range(self._first_version + 1, self.port.version)
        if any(self.port.properties(version) is None for version in since):
            self._checkpoint = replace(self._look(), id=self._checkpoint.id)

    def _read(self) -> Watermark:
        return self._reader.at(self.port, spark_done=self._checkpoint.committed)

    def _sighting(self, watermark: Watermark) -> DecisionInput:
        return sighting(
            self._checkpoint,
            self.state,
            watermark,
            planned_now=self._planned_now,
            held_token=self.owner.token if self.owner else None,
            changed=self._changed,
        )

    def refuse(self, decision: Decision, state: QueryState | None = None) -> None:
        """Raise the error for a decision; return if it is not a refusal."""
        refuse(
            decision,
            state=state or self.state,
            uri=self.port.uri,
            checkpoint=self._checkpoint,
            watermark=self.watermark,
            held_token=self.owner.token if self.owner else None,
        )

    def refuse_if_fenced(self) -> None:
        """Raise :class:`FencedError` if another driver owns the query."""
        if self.fenced:
            self.refuse(Decision.FENCED)
