"""Claim, commit, release: the order of the protocol's side effects, in numbered steps.

Two invariants carry everything else. *One look after each doubt*: a commit that did not plainly
succeed is searched for in history before it is sent again. *One manifest per attempt*: the port
never retries on its own, so an attempt that failed can have landed at most once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
)
from airflow_provider_lance.streaming.checkpoint import Checkpoint
from airflow_provider_lance.streaming.decision import Decision
from airflow_provider_lance.streaming.epoch import (
    Driver,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    Watermark,
    utc_now,
)
from airflow_provider_lance.streaming.history import find_epoch
from airflow_provider_lance.streaming.port import (
    Barrier,
    Change,
    Configure,
    DatasetPort,
    change_for,
)
from airflow_provider_lance.streaming.properties import encode_stamp
from airflow_provider_lance.streaming.steps import CommitResult, Step
from airflow_provider_lance.streaming.view import DriverView, Policy

__all__ = ["Committer"]

log = logging.getLogger(__name__)

_UNSURE = (CommitPreemptedError, CommitStateUnknownError)


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
        """How many versions this driver has added to the dataset."""
        self._policy = policy or Policy()
        look = look or (lambda: checkpoint)
        self._view = DriverView(port, query_id, checkpoint, self._policy, look)
        self._on_step = on_step
        self._since_fold = 0
        self._in_doubt = False

    @property
    def port(self) -> DatasetPort:
        """Return the handle at this driver's last commit."""
        return self._view.port

    @property
    def owner(self) -> Owner | None:
        """Return this driver's ownership, ``None`` before its claim and after its release."""
        return self._view.owner

    @property
    def watermark(self) -> int:
        """Return the epoch watermark as far as this driver knows it."""
        return self._view.watermark.epoch

    def stop_requested(self, *, poll: bool = False) -> bool:
        """Tell whether this driver is asked to stop.

        Looks in the handle's own config, without I/O; ``poll=True`` opens the newest version.
        Before the claim a request for the recorded owner counts, or for the token that this driver
        would get; one that was there at the start is somebody else's.
        """
        return self._view.stop_requested(poll=poll)

    def prepare(self) -> Watermark:
        """Look at dataset and checkpoint and refuse what cannot be exact; writes nothing.

        :raises CheckpointMismatchError: the watermark belongs to another checkpoint, to a newer
            copy of this one, or the dataset has no trace of the epochs this one committed.
        :raises HistoryGapError: the one epoch in doubt may be in a version that was cleaned up.
        :raises ProtocolVersionError: the dataset speaks a newer protocol or another tool's.
        """
        self._view.prepare()
        return self._view.watermark

    def identify(self, driver: Driver) -> None:
        """Take over what Spark says of the run; the checkpoint's id may only be known now.

        :raises CheckpointMismatchError: the id is not the one that was read before the start.
        """
        self._view.identify(driver)

    def decide(self, epoch_id: int) -> Decision:
        """Return what to do with an epoch, as seen from the handle; no I/O.

        :raises TerminalError: the decision ends the query; see :mod:`.refusal`.
        """
        decision = self._view.decide(epoch_id)
        self._view.refuse(decision)
        return decision

    def claim(self, epoch_id: int) -> None:
        """Become the owner; called by :meth:`commit` when this driver is not.

        :raises FencedError: another driver claimed in the middle of this claim.
        :raises TransientError: the store refused too often.
        """
        view = self._view
        previous, mine = self._take_ownership(epoch_id)
        # Until the end of the claim a stale writer may still land an epoch that nobody has seen.
        view.owner, self._in_doubt = mine, True
        self._on_step(Step.CLAIM_OWNED)
        # 3. A previous owner that did not release may have a commit on its way: stop it.
        if self._policy.barrier and previous and previous.state is OwnerState.ACTIVE:
            self._bar()
        self._on_step(Step.CLAIM_BARRED)
        # 4. Nothing of a stale writer can land any more: what history shows now is exact. It is
        # ahead of the config only if something landed between 1. and 3.
        view.refuse_if_fenced()
        view.read_watermark()
        self.decide(epoch_id)
        if view.watermark.epoch > view.state.watermark:
            self._fold()
        self._in_doubt = False
        self._on_step(Step.CLAIM_HEALED)
        log.info("Claimed. %s after=%s", view, previous.state.value if previous else "nobody")

    def leave_trace(self, epoch_id: int) -> None:
        """Claim for an empty epoch, if the dataset does not know the query yet; else do nothing.

        The first epoch of a query must leave a trace even when it is empty: only then does a
        `commits/N` in a checkpoint prove that a dataset without one is not the query's.
        """
        if self._view.owner is None and not self._view.state.known:
            self.claim(epoch_id)

    def _take_ownership(self, epoch_id: int) -> tuple[Owner | None, Owner]:
        """Do steps 1 and 2 of the claim; return the previous owner and this one."""
        view = self._view
        if view.driver is None:
            raise RuntimeError("identify() comes before claim()")
        mine: Owner | None = None
        previous: Owner | None = None
        for attempt in self._policy.backoff:
            # 1. Open the latest version; the checkpoint must still be the recorded one.
            view.reopen()
            if mine is not None and view.state.owner == mine:
                return previous, mine  # an earlier attempt landed and its answer was lost
            fresh = view.starts_generation()
            if not fresh:
                view.read_watermark()
                self.decide(epoch_id)
            self._on_step(Step.CLAIM_OPENED)
            # 2. Token + 1, active, and the watermark as of this version; what a stale writer lands
            # from now on is above it. Lance lets only one of two updates of a key land.
            previous = view.state.owner
            mine = Owner(
                token=view.next_token,
                state=OwnerState.ACTIVE,
                generation=view.state.generation + (1 if fresh and view.state.known else 0),
                driver=view.driver,
                time=utc_now(),
            )
            updates = view.fold_updates(anew=fresh) | view.owner_updates(mine)
            try:
                self._commit(Configure(updates))
            except _UNSURE as error:
                attempt.error = error
            else:
                return previous, mine
        raise AssertionError("a backoff ends in its last error")

    def commit(self, epoch: Epoch) -> CommitResult:
        """Make one written epoch visible exactly once.

        :raises FencedError: a newer owner holds the query; nothing of this epoch will land.
        :raises SchemaMismatchError, DatasetNotFoundError: the dataset's schema was changed, or the
            dataset dropped, under this driver.
        :raises CommitPreemptedError: preempted in every one of the bounded attempts.
        :raises CommitStateUnknownError: the outcome could not be learned; this driver must end.
        """
        view = self._view
        if view.owner is None:
            self.claim(epoch.epoch_id)
        # 1. An epoch that is known is not written again.
        decision = self.decide(epoch.epoch_id)
        if decision is not Decision.FULL_COMMIT:
            return CommitResult(decision, epoch.epoch_id, view.port.version)
        self._on_step(Step.COMMIT_CHECKED)
        began = time.perf_counter()
        committed_at = self._land(epoch)
        commit_ms = (time.perf_counter() - began) * 1000
        view.watermark = Watermark(epoch.epoch_id, view.port.version, committed_at)
        self._since_fold += 1
        self._on_step(Step.COMMIT_LANDED)
        # 5. Now and then the watermark is folded into the config.
        if self._since_fold >= view.fold_every:
            self._fold()
        self._on_step(Step.COMMIT_FOLDED)
        return CommitResult(decision, epoch.epoch_id, view.port.version, commit_ms)

    def _land(self, epoch: Epoch) -> str:
        """Do steps 2 to 4 of a commit until the epoch has landed; return when it was sent."""
        view = self._view
        complete = epoch.mode is OutputMode.COMPLETE
        view.refresh(strictly=complete)
        base = view.port.version
        for attempt in self._policy.backoff:
            # 2. The handle's own config must name our token; no I/O while the handle is fresh.
            view.refresh(strictly=complete and attempt.number > 0)
            view.refuse_if_fenced()
            view.refuse_other_layout()
            assert view.owner is not None
            # 3. One commit carries data and stamp.
            self._in_doubt = True
            sent = datetime.now(UTC)
            stamp = encode_stamp(self.query_id, view.owner, epoch, _ms(epoch.started_at, sent))
            try:
                self._commit(change_for(epoch), stamp)
                view.inspect_landing(epoch.epoch_id, base)
                self._in_doubt = False
                return sent.isoformat(timespec="milliseconds")
            except CommitPreemptedError as error:
                attempt.error = error
                view.reopen()
            except CommitStateUnknownError as error:
                attempt.error = error
                log.warning("Outcome unknown, looking. epoch=%d error=%s", epoch.epoch_id, error)
                self._settle()
            # 4. Whatever went wrong, look for our own epoch before it is sent again.
            found = find_epoch(view.port, self.query_id, view.owner, epoch.epoch_id, after=base)
            self._in_doubt = False
            if found:
                return found.committed_at
        raise AssertionError("a backoff ends in its last error")

    def _settle(self) -> None:
        """Move to a version behind which the write of unknown outcome can no longer land.

        A late request carries one manifest for one version number, at most the next one after what
        is newest now; once a barrier has taken that number, the request can only be refused.
        """
        self._view.reopen()
        if not self._view.fenced:
            self._bar()

    def _bar(self) -> None:
        for attempt in self._policy.backoff:
            try:
                self._commit(Barrier())
            except _UNSURE as error:
                attempt.error = error
                self._view.reopen()
            else:
                return

    def _fold(self) -> None:
        """Write the watermark into the config; a failure only means: again after a later epoch."""
        view = self._view
        if view.fenced:
            return  # the handle may be the newer owner's, and its epochs are not in this watermark
        try:
            self._commit(Configure(view.fold_updates()))
        except CommitStateUnknownError as error:
            log.warning("Fold not confirmed; the next will repeat it. error=%s", error)
        except CommitPreemptedError:
            view.reopen()
            view.refuse_if_fenced()
        else:
            self._since_fold = 0

    def release(self) -> bool:
        """End in order: fold the watermark and mark the owner ``released``, in one commit.

        Returns ``False``, and leaves the owner ``active`` for the next claim's barrier, when there
        is nothing to release, a newer owner is there, or a claim or commit ended in doubt. A stop
        request that this driver obeyed goes with it.

        :raises StorageUnavailableError: the store did not answer.
        """
        view = self._view
        if view.owner is None or self._in_doubt:
            return False
        released = replace(view.owner, state=OwnerState.RELEASED, time=utc_now())
        view.reopen()
        for _ in self._policy.backoff:
            if view.state.owner == released:
                break  # an earlier attempt landed and its answer was lost
            if view.fenced:
                return False
            self._on_step(Step.RELEASE_CHECKED)
            try:
                self._commit(Configure(view.fold_updates() | view.owner_updates(released)))
            except _UNSURE:
                view.reopen()
            else:
                break
        else:
            return False
        log.info("Released. %s", view)
        view.owner = None
        self._on_step(Step.RELEASE_DONE)
        return True

    def _commit(self, change: Change, stamp: Mapping[str, str] | None = None) -> None:
        self._view.move_to(self._view.port.commit(change, stamp))
        self.manifest_updates += 1


def _ms(started_at: str, sent: datetime) -> int:
    return int((sent - datetime.fromisoformat(started_at)).total_seconds() * 1000)
