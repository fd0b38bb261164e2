"""Claim, commit, release: the order of the protocol's side effects, in numbered steps.

Two invariants carry everything else. *One look after each doubt*: a commit that did not plainly
succeed is searched for in history before it is sent again. *One manifest per attempt*: the port
never retries on its own, so an attempt that failed can have landed at most once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    ProtocolVersionError,
    TransientError,
)
from airflow_provider_lance.streaming.backoff import Backoff
from airflow_provider_lance.streaming.checkpoint import Checkpoint
from airflow_provider_lance.streaming.decision import Decision, Sighting, decide
from airflow_provider_lance.streaming.epoch import (
    NO_EPOCH,
    Driver,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    QueryState,
    Watermark,
    utc_now,
)
from airflow_provider_lance.streaming.history import exact_watermark, find_epoch
from airflow_provider_lance.streaming.port import (
    Append,
    Barrier,
    Change,
    Configure,
    DatasetPort,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.streaming.properties import (
    auto_cleanup,
    decode_query,
    encode_owner,
    encode_stamp,
    fold_updates,
    key,
)
from airflow_provider_lance.streaming.refusal import OnHistoryGap, refuse

__all__ = ["CommitResult", "Committer", "Policy", "Step"]

log = logging.getLogger(__name__)


class Step(StrEnum):
    """The points between two side effects, in the order they are reached."""

    CLAIM_OPENED = "claim.opened"
    CLAIM_OWNED = "claim.owned"
    CLAIM_BARRED = "claim.barred"
    CLAIM_HEALED = "claim.healed"
    COMMIT_CHECKED = "commit.checked"
    COMMIT_LANDED = "commit.landed"
    COMMIT_FOLDED = "commit.folded"
    RELEASE_CHECKED = "release.checked"
    RELEASE_DONE = "release.done"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a user may choose about commits; the defaults are the protocol's."""

    watermark_every: int = 10
    new_generation: bool = False
    on_history_gap: OnHistoryGap = OnHistoryGap()
    backoff: Backoff = Backoff()
    barrier: bool = True
    """Off only in the experiment that shows what the barrier is for."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of one epoch; ``version`` is the dataset's after it."""

    decision: Decision
    epoch_id: int
    version: int
    commit_ms: float = 0.0


class Committer:
    """Commits the epochs of one query, one at a time, from one driver.

    Call :meth:`prepare` before any data is read, :meth:`identify` once Spark has named the run,
    :meth:`decide` before an epoch is written, :meth:`commit` after, :meth:`release` at the end.
    """

    def __init__(
        self,
        port: DatasetPort,
        query_id: str,
        checkpoint: Checkpoint,
        policy: Policy | None = None,
        *,
        look: Callable[[], Checkpoint] | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """Do no I/O.

        :param port: a handle at the newest version.
        :param checkpoint: the checkpoint as it was before Spark started.
        :param look: reads the checkpoint again, when another driver may have gone on with it.
        :param on_step: called at each :class:`Step`; tests end the process there.
        """
        self.query_id = query_id
        self.manifest_updates = 0
        self._handle = port
        self._checkpoint = checkpoint
        self._policy = policy or Policy()
        self._look = look or (lambda: checkpoint)
        self._planned_now = checkpoint.planned
        self._on_step = on_step
        self._owner: Owner | None = None
        self._driver: Driver | None = None
        self._watermark = Watermark(NO_EPOCH, port.version, None)
        self._since_fold = 0
        self._fold_every = self._policy.watermark_every
        self._in_doubt = False
        self._old_stop_token: int | None = None

    # ---------------------------------------------------------------- what can be asked any time

    @property
    def port(self) -> DatasetPort:
        """Return the handle at this driver's last commit."""
        return self._handle

    @property
    def owner(self) -> Owner | None:
        """Return this driver's ownership, ``None`` before its claim."""
        return self._owner

    @property
    def watermark(self) -> int:
        """Return the epoch watermark as far as this driver knows it."""
        return self._watermark.epoch

    def stop_requested(self, *, poll: bool = False) -> bool:
        """Tell whether the owner with this driver's token is asked to stop.

        Looks in the handle's own config, without I/O; ``poll=True`` opens the newest version.
        Before the claim the token is the one that it would get, and a request that was there at
        the start is somebody else's.
        """
        state = _state(self._handle.latest() if poll else self._handle, self.query_id)
        if self._owner:
            return state.stop_token == self._owner.token
        return state.stop_token == _next_token(state) and state.stop_token != self._old_stop_token

    # ------------------------------------------------------------------------------------ prepare

    def prepare(self) -> Watermark:
        """Look at dataset and checkpoint and refuse what cannot be exact; writes nothing.

        :raises CheckpointMismatchError: the watermark belongs to another checkpoint, to a newer
            copy of this one, or the dataset has no trace of the epochs this one committed.
        :raises HistoryGapError: the one epoch in doubt may be in a version that was cleaned up.
        :raises ProtocolVersionError: the dataset speaks a newer protocol or another tool's.
        """
        state = _state(self._handle, self.query_id)
        self._old_stop_token = state.stop_token
        if state.owner is None and state.watermark > NO_EPOCH:
            raise ProtocolVersionError(
                f"query {self.query_id!r} has epoch watermark {state.watermark} and no owner "
                f"record in {self._handle.uri}: another tool wrote it. Give this query a queryId "
                "of its own"
            )
        if settings := auto_cleanup(self._handle.config):
            # It runs inside anyone's commit and may eat the versions that prove an epoch.
            log.warning(
                "Foreign auto-cleanup is on; every epoch will be folded, at twice the manifest "
                "updates. Remove these keys and schedule cleanup instead. query_id=%s settings=%s",
                self.query_id,
                settings,
            )
            self._fold_every = 1
        self._watermark = self._exact(state)
        self._refuse(self.decide(NO_EPOCH))
        return self._watermark

    def identify(self, driver: Driver) -> None:
        """Take over what Spark says of the run; the checkpoint's id may only be known now.

        :raises CheckpointMismatchError: the id is not the one that was read before the start.
        """
        self._driver = driver
        if self._checkpoint.id is None:
            self._checkpoint = replace(self._checkpoint, id=driver.checkpoint_id)
        elif self._checkpoint.id != driver.checkpoint_id:
            self._checkpoint = replace(self._checkpoint, id=driver.checkpoint_id)
            self._refuse(Decision.CHECKPOINT_FOREIGN)

    def decide(self, epoch_id: int) -> Decision:
        """Return what to do with an epoch, as seen from the handle; no I/O."""
        state = _state(self._handle, self.query_id)
        if self._starts_generation(state):
            return Decision.FULL_COMMIT
        return decide(self._sighting(state), epoch_id)

    # -------------------------------------------------------------------------------------- claim

    def claim(self, epoch_id: int) -> None:
        """Become the owner; called by :meth:`commit` when this driver is not.

        :raises FencedError: another driver claimed in the middle of this claim.
        :raises TransientError: the store refused too often.
        """
        if self._driver is None:
            raise RuntimeError("identify() comes before claim()")
        previous, mine = self._take_ownership(epoch_id)
        self._owner = mine
        self._on_step(Step.CLAIM_OWNED)
        # 3. A previous owner that did not release may have a commit on its way: stop it.
        if self._policy.barrier and previous and previous.state is OwnerState.ACTIVE:
            self._handle = self._bar(self._handle)
        self._on_step(Step.CLAIM_BARRED)
        # 4. Nothing of a stale writer can land any more: what history shows now is exact.
        state = _state(self._handle, self.query_id)
        self._refuse_if_fenced(state)
        self._watermark = self._exact(state)
        self._refuse(self.decide(epoch_id))
        if self._watermark.epoch > state.watermark:
            self._fold()
        self._on_step(Step.CLAIM_HEALED)
        log.info(
            "Claimed. query_id=%s token=%d generation=%d watermark=%d version=%d after=%s",
            self.query_id,
            mine.token,
            mine.generation,
            self._watermark.epoch,
            self._handle.version,
            previous.state.value if previous else "nobody",
        )

    def leave_trace(self, epoch_id: int) -> None:
        """Claim for an empty epoch, if the dataset does not know the query yet; else do nothing.

        The first epoch of a query must leave a trace even when it is empty: only then does a
        `commits/N` in a checkpoint prove that a dataset without one is not the query's.
        """
        if self._owner is None and not _state(self._handle, self.query_id).known:
            self.claim(epoch_id)

    def _take_ownership(self, epoch_id: int) -> tuple[Owner | None, Owner]:
        """Do steps 1 and 2 of the claim; return the previous owner and this one."""
        assert self._driver is not None
        self._planned_now = max(self._planned_now, self._look().planned)
        last: TransientError | None = None
        mine: Owner | None = None
        previous: Owner | None = None
        for _ in self._policy.backoff:
            # 1. Open the latest version; the checkpoint must still be the recorded one.
            self._handle = self._handle.latest()
            state = _state(self._handle, self.query_id)
            if mine is not None and state.owner == mine:
                return previous, mine  # an earlier attempt landed and its answer was lost
            fresh = self._starts_generation(state)
            if not fresh:
                self._watermark = self._exact(state)
                self._refuse(self.decide(epoch_id))
            self._on_step(Step.CLAIM_OPENED)
            # 2. Token + 1, active. Lance lets only one of two updates of this key land.
            previous = state.owner
            mine = Owner(
                token=_next_token(state),
                state=OwnerState.ACTIVE,
                generation=state.generation + (1 if fresh and state.known else 0),
                driver=self._driver,
                time=utc_now(),
            )
            updates: dict[str, str | None] = {key("owner", self.query_id): encode_owner(mine)}
            if fresh or previous is None:
                updates |= fold_updates(self.query_id, NO_EPOCH, state.version, None)
            try:
                self._handle = self._commit(Configure(updates))
            except (CommitPreemptedError, CommitStateUnknownError) as error:
                last = error
                continue
            return previous, mine
        raise last or CommitPreemptedError()

    def _starts_generation(self, state: QueryState) -> bool:
        """Tell whether the claim begins a new numbering, because the user asked for one."""
        if not self._policy.new_generation or self._owner is not None:
            return False
        return decide(self._sighting(state), NO_EPOCH) in (
            Decision.CHECKPOINT_FOREIGN,
            Decision.CHECKPOINT_STALE,
            Decision.DATASET_FOREIGN,
        )

    # ------------------------------------------------------------------------------------- commit

    def commit(self, epoch: Epoch) -> CommitResult:
        """Make one written epoch visible exactly once.

        :raises FencedError: a newer owner holds the query; nothing of this epoch will land.
        :raises CommitPreemptedError: preempted in every one of the bounded attempts.
        :raises CommitStateUnknownError: the outcome could not be learned; this driver must end.
        """
        if self._owner is None:
            self.claim(epoch.epoch_id)
        # 1. and 2. Known epochs are not written again; the handle's own config names the owner.
        decision = self.decide(epoch.epoch_id)
        self._refuse(decision)
        if decision is not Decision.FULL_COMMIT:
            return CommitResult(decision, epoch.epoch_id, self._handle.version)
        self._on_step(Step.COMMIT_CHECKED)
        began = time.perf_counter()
        committed_at = self._land(epoch)
        commit_ms = (time.perf_counter() - began) * 1000
        self._watermark = Watermark(epoch.epoch_id, self._handle.version, committed_at)
        self._since_fold += 1
        self._on_step(Step.COMMIT_LANDED)
        # 5. Now and then the watermark is folded into the config.
        if self._since_fold >= self._fold_every:
            self._fold()
        self._on_step(Step.COMMIT_FOLDED)
        return CommitResult(decision, epoch.epoch_id, self._handle.version, commit_ms)

    def _land(self, epoch: Epoch) -> str:
        """Do steps 2 to 4 of a commit until the epoch has landed; return when it was sent."""
        assert self._owner is not None
        base = self._handle.version
        last: TransientError | None = None
        for _ in self._policy.backoff:
            # 2. The handle's own config must name our token; no I/O.
            self._refuse_if_fenced(_state(self._handle, self.query_id))
            # 3. One commit carries data and stamp.
            sent = utc_now()
            stamp = encode_stamp(self.query_id, self._owner, epoch, _ms_since(epoch.started_at))
            try:
                self._handle = self._commit(_change(epoch), stamp)
                return sent
            except CommitPreemptedError as error:
                last = error
                self._handle = self._handle.latest()
            except CommitStateUnknownError as error:
                last = error
                self._in_doubt = True
                log.warning("Outcome unknown, looking. epoch=%d error=%s", epoch.epoch_id, error)
                self._handle = self._settle()
            # 4. Whatever went wrong, look for our own epoch before it is sent again.
            found = find_epoch(
                self._handle, self.query_id, self._owner.generation, epoch.epoch_id, after=base
            )
            self._in_doubt = False
            if found:
                return found.committed_at
        raise last or CommitPreemptedError()

    def _settle(self) -> DatasetPort:
        """Return a handle behind which the write of unknown outcome can no longer land.

        A late request carries one manifest for one version number, at most the next one after what
        is newest now; once a barrier has taken that number, the request can only be refused.
        """
        handle = self._handle.latest()
        return handle if self._fenced(_state(handle, self.query_id)) else self._bar(handle)

    def _bar(self, handle: DatasetPort) -> DatasetPort:
        last: TransientError | None = None
        for _ in self._policy.backoff:
            try:
                barred = handle.commit(Barrier())
            except (CommitPreemptedError, CommitStateUnknownError) as error:
                last = error
                handle = handle.latest()
                continue
            self.manifest_updates += 1
            return barred
        raise last or CommitPreemptedError()

    def _fold(self) -> None:
        """Write the watermark into the config; a failure only means: again after a later epoch."""
        mark = self._watermark
        updates = fold_updates(self.query_id, mark.epoch, self._handle.version, mark.committed_at)
        try:
            self._handle = self._commit(Configure(updates))
        except CommitStateUnknownError as error:
            log.warning("Fold not confirmed; the next will repeat it. error=%s", error)
        except CommitPreemptedError:
            self._handle = self._handle.latest()
            self._refuse_if_fenced(_state(self._handle, self.query_id))
        else:
            self._since_fold = 0

    # ------------------------------------------------------------------------------------ release

    def release(self) -> bool:
        """End in order: fold the watermark and mark the owner ``released``, in one commit.

        Returns ``False``, and leaves the owner ``active`` for the next claim's barrier, when there
        is nothing to release, a newer owner is there, or an outcome is in doubt.
        """
        if self._owner is None or self._in_doubt:
            return False
        released = replace(self._owner, state=OwnerState.RELEASED, time=utc_now())
        for _ in self._policy.backoff:
            state = _state(self._handle, self.query_id)
            if state.owner == released:
                break
            if self._fenced(state):
                return False
            self._on_step(Step.RELEASE_CHECKED)
            mark = self._watermark
            updates = {
                **fold_updates(self.query_id, mark.epoch, state.version, mark.committed_at),
                key("owner", self.query_id): encode_owner(released),
            }
            if state.stop_token is not None and state.stop_token <= self._owner.token:
                updates[key("stop", self.query_id)] = None
            try:
                self._handle = self._commit(Configure(updates))
            except (CommitPreemptedError, CommitStateUnknownError):
                self._handle = self._handle.latest()
                continue
            break
        else:
            return False
        self._owner = None
        self._on_step(Step.RELEASE_DONE)
        log.info(
            "Released. query_id=%s watermark=%d version=%d",
            self.query_id,
            self._watermark.epoch,
            self._handle.version,
        )
        return True

    # ------------------------------------------------------------------------------------ helpers

    def _commit(self, change: Change, stamp: Mapping[str, str] | None = None) -> DatasetPort:
        landed = self._handle.commit(change, stamp)
        self.manifest_updates += 1
        return landed

    def _exact(self, state: QueryState) -> Watermark:
        """Return the exact watermark, helped by Spark's commit log where history has a gap."""
        mark = exact_watermark(self._handle, self.query_id)
        if not mark.missing:
            return mark
        proven = max(mark.epoch, self._checkpoint.committed)
        in_doubt = self._checkpoint.in_flight
        resolved = self._policy.on_history_gap
        if in_doubt is not None and in_doubt > mark.epoch and resolved.names(in_doubt):
            return replace(mark, epoch=in_doubt if resolved.landed else proven, missing=0)
        seen = replace(self._sighting(state), exact_watermark=mark.epoch, missing=mark.missing)
        if decide(seen, NO_EPOCH) is Decision.HISTORY_GAP:
            return mark
        return replace(mark, epoch=proven)

    def _sighting(self, state: QueryState) -> Sighting:
        return Sighting(
            checkpoint_id=self._checkpoint.id,
            recorded_checkpoint_id=state.owner.driver.checkpoint_id if state.owner else None,
            planned=self._checkpoint.planned,
            planned_now=self._planned_now,
            committed=self._checkpoint.committed,
            held_token=self._owner.token if self._owner else None,
            owner_token=state.owner.token if state.owner else None,
            config_watermark=state.watermark,
            exact_watermark=self._watermark.epoch,
            missing=self._watermark.missing,
        )

    def _fenced(self, state: QueryState) -> bool:
        return self._owner is None or state.owner is None or state.owner != self._owner

    def _refuse_if_fenced(self, state: QueryState) -> None:
        if self._fenced(state):
            self._refuse(Decision.FENCED)

    def _refuse(self, decision: Decision) -> None:
        refuse(
            decision,
            state=_state(self._handle, self.query_id),
            uri=self._handle.uri,
            checkpoint=self._checkpoint,
            watermark=self._watermark,
            held_token=self._owner.token if self._owner else None,
        )


def _state(port: DatasetPort, query_id: str) -> QueryState:
    return decode_query(port.config, query_id, port.version)


def _next_token(state: QueryState) -> int:
    return (state.owner.token if state.owner else 0) + 1


def _change(epoch: Epoch) -> Change:
    match epoch.mode:
        case OutputMode.APPEND:
            return Append(epoch.fragments)
        case OutputMode.COMPLETE:
            return Overwrite(epoch.fragments)
        case OutputMode.UPDATE:
            return Upsert(epoch.fragments, epoch.keys, epoch.merge_keys)


def _ms_since(started_at: str) -> int:
    elapsed = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return int(elapsed.total_seconds() * 1000)
