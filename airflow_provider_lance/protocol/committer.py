"""One driver's part in the protocol: the epochs of one query, committed in numbered steps.

*After each doubt, look once*: a commit whose outcome is unclear is searched for in history before
it is sent again. :mod:`.ownership` makes the driver the owner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from airflow_provider_lance.exceptions import CommitPreemptedError, CommitStateUnknownError
from airflow_provider_lance.protocol.backoff import Attempt
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import encode_stamp
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import CommitResult, Failpoint
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    EndOffsets,
    Epoch,
    OutputMode,
    Owner,
    OwnerState,
    StopNote,
    Watermark,
)
from airflow_provider_lance.protocol.ownership import Ownership
from airflow_provider_lance.protocol.port import DatasetPort, change_for
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.watermark import find_epoch

__all__ = ["Committer"]

log = logging.getLogger(__name__)


class Committer:
    """Commits the epochs of one query, one at a time, from one driver.

    Call :meth:`prepare` before any data is read, :meth:`take_over` before Spark plans an epoch,
    :meth:`identify` once Spark has named the run, :meth:`decide` before an epoch is written,
    :meth:`commit` after, :meth:`release` at the end.
    """

    def __init__(
        self,
        port: DatasetPort,
        query_id: str,
        checkpoint: Checkpoint,
        policy: CommitPolicy | None = None,
        *,
        launch_id: str = "",
        look: Callable[[], Checkpoint] | None = None,
        on_step: Callable[[Failpoint], None] = lambda step: None,
    ) -> None:
        """Store the arguments; no I/O.

        :param port: a handle at the newest version.
        :param checkpoint: the checkpoint as it was before Spark started.
        :param launch_id: the launch that stop requests may name; empty if it has no name.
        :param look: reads the checkpoint again, when another driver may have continued it.
        :param on_step: called at each :class:`Failpoint`; tests end the process there.
        """
        self.query_id = query_id
        self._policy = policy or CommitPolicy()
        look = look or (lambda: checkpoint)
        self._view = DriverSession(
            port, query_id, checkpoint, self._policy, look, launch_id=launch_id
        )
        self._ownership = Ownership(self._view, self._policy, on_step)
        self._on_step = on_step
        self._cleared: tuple[DatasetPort, int] | None = None

    @property
    def port(self) -> DatasetPort:
        """Return the handle at this driver's last commit."""
        return self._view.port

    @property
    def owner(self) -> Owner | None:
        """Return this driver's ownership, ``None`` before its claim and after its release."""
        return self._view.owner

    @property
    def manifest_updates(self) -> int:
        """Return how many versions this driver has added to the dataset."""
        return self._ownership.manifest_updates

    @property
    def watermark(self) -> int:
        """Return the epoch watermark as far as this driver knows it."""
        return self._view.watermark.epoch

    @property
    def committed_at(self) -> str | None:
        """Return when that epoch was committed; ``None`` if it is not known."""
        return self._view.watermark.committed_at

    def stop_requested(self, *, poll: bool = False) -> StopNote | None:
        """Return the stop request that this driver must obey, ``None`` if there is none.

        Reads the handle's own config, without I/O; ``poll=True`` opens the newest version. Before
        the claim, a request counts if it names the recorded owner or the token that this driver
        would get. A request that existed at the start is meant for another driver, unless it names
        this launch.

        :raises FencedError: polling showed a newer owner; without polling, the next commit shows
            it.
        """
        return self._view.stop_requested(poll=poll)

    def prepare(self) -> Watermark:
        """Read dataset and checkpoint, and refuse what cannot be exact; writes nothing.

        :raises CheckpointMismatchError: the watermark belongs to another checkpoint or to a newer
            copy of this one, or the dataset has no trace of the epochs that this one committed.
        :raises HistoryGapError: the one epoch in doubt may be in a version that was cleaned up.
        :raises ProtocolVersionError: the dataset uses a newer protocol, or another tool's values.
        """
        self._view.prepare()
        return self._view.watermark

    def identify(self, driver: Driver) -> None:
        """Record what Spark says of the run; the checkpoint's id may only be known now.

        :raises CheckpointMismatchError: the id differs from the one that was read before the start.
        """
        self._view.identify(driver)

    def decide(self, epoch_id: int) -> Decision:
        """Return what to do with an epoch, as seen from the handle; no I/O.

        :raises TerminalError: the decision ends the query; see :mod:`.errors`.
        """
        decision = self._view.decide(epoch_id)
        self._view.refuse(decision)
        if decision is Decision.FULL_COMMIT:
            self._cleared = self._view.port, epoch_id
        return decision

    def claim(self, epoch_id: int) -> None:
        """Become the owner; :meth:`commit` calls it when this driver is not the owner.

        :raises FencedError: another driver claimed in the middle of this claim.
        :raises TransientError: the store refused too often.
        """
        self._ownership.claim(epoch_id)

    def take_over(self, driver: Driver) -> Owner | None:
        """Claim from an owner that did not release, before Spark plans an epoch of this run.

        Two drivers of one query write the same Spark log, and the driver that is late with an entry
        fails. Beside a busy driver, a newcomer would hardly ever reach its first commit.

        :param driver: any ``run_id`` and ``checkpoint_id``: the run has no id before it starts, and
            the checkpoint's is known.
        :returns: the owner that the query was taken from, ``None`` if there was none to fence.
        :raises TerminalError, TransientError: as :meth:`claim`.
        """
        owner = self._view.state.owner
        if owner is None or owner.state is OwnerState.RELEASED or self._view.starts_generation():
            return None
        known = owner.driver.checkpoint_id  # any other id was refused
        unlike = f"starting {uuid4().hex[:8]}"  # two owners must never be equal
        self._view.identify(replace(driver, run_id=unlike, checkpoint_id=known))
        self.claim(NO_EPOCH)
        return owner

    def recheck(self) -> None:
        """Read the checkpoint again, after the previous driver has ended.

        :raises CheckpointMismatchError, HistoryGapError: as :meth:`prepare`.
        """
        self._view.recheck()

    def leave_trace(self, epoch_id: int, ends: EndOffsets | None = None) -> None:
        """Record an empty epoch as done; claim if the dataset does not know the query yet.

        The first epoch of a query must leave a trace even when it is empty. Only then does a
        `commits/N` in a checkpoint prove that a dataset without a trace is not the query's.
        """
        if self._view.owner is None and not self._view.state.known:
            self.claim(epoch_id)
        self._view.note_done(epoch_id, ends)

    def commit(self, epoch: Epoch) -> CommitResult:
        """Make one written epoch visible exactly once.

        :raises FencedError: a newer owner holds the query; nothing of this epoch will land.
        :raises SchemaMismatchError, DatasetNotFoundError: the dataset's schema changed, or the
            dataset was dropped, while this driver ran.
        :raises CommitPreemptedError: preempted in every one of the bounded attempts.
        :raises CommitStateUnknownError: the outcome is not known; this driver must end.
        """
        view = self._view
        if view.owner is None:
            self.claim(epoch.epoch_id)
        # 1. A committed epoch is not written again. At the same handle, the answer is the same.
        if self._cleared != (view.port, epoch.epoch_id):
            decision = self.decide(epoch.epoch_id)
            if decision is not Decision.FULL_COMMIT:
                return CommitResult(decision, epoch.epoch_id, view.port.version)
        self._on_step(Failpoint.COMMIT_CHECKED)
        began = time.perf_counter()
        committed_at = self._land(epoch)
        commit_ms = (time.perf_counter() - began) * 1000
        view.watermark = Watermark(epoch.epoch_id, view.port.version, committed_at)
        view.note_done(epoch.epoch_id, epoch.ends)
        self._ownership.since_fold += 1
        self._on_step(Failpoint.COMMIT_LANDED)
        # 5. From time to time the watermark is folded into the config.
        if self._ownership.since_fold >= view.fold_every:
            self._ownership.fold()
        self._on_step(Failpoint.COMMIT_FOLDED)
        return CommitResult(Decision.FULL_COMMIT, epoch.epoch_id, view.port.version, commit_ms)

    def _land(self, epoch: Epoch) -> str:
        """Do steps 2 to 4 of a commit until the epoch has landed; return when it was sent."""
        view = self._view
        # An append is rebased over others' commits. The other two must see them: an upsert from
        # before a compaction would not delete what the compaction replaced, if that version was
        # cleaned up.
        strictly = epoch.mode is not OutputMode.APPEND
        base = view.port.version
        view.refresh(strictly=strictly)
        if view.port.version != base:
            view.refuse_if_fenced()
            view.refuse_overtaken(epoch.epoch_id)
        base = view.port.version
        for attempt in self._policy.backoff:
            # 2. The handle's own config must name our token; no I/O while the handle is fresh.
            if attempt.number:
                view.refresh(strictly=strictly)
            if view.port.is_local:
                view.chain.refuse_dropped()  # costs no request there
            view.refuse_if_fenced()
            view.chain.refuse_other_layout()
            assert view.owner is not None
            # 3. One commit carries data and stamp.
            self._ownership.in_doubt = True
            sent = datetime.now(UTC)
            took = sent - datetime.fromisoformat(epoch.started_at)
            milliseconds = int(took.total_seconds() * 1000)
            stamp = encode_stamp(self.query_id, view.owner, epoch, milliseconds, view.run_id)
            before = view.port
            try:
                slow = self._ownership.send(change_for(epoch), stamp)
                view.chain.inspect_landing(epoch, base)
                if slow and not view.chain.holds_landed(epoch, before):
                    # It landed beside the chain, where no reader will ever see it.
                    base = self._leave_orphan(epoch.epoch_id, attempt)
                    continue
                view.chain.note_epoch(epoch, before)
                self._ownership.in_doubt = False
                return sent.isoformat(timespec="milliseconds")
            except CommitPreemptedError as error:
                attempt.error = error
                view.reopen()
                view.refuse_if_fenced()
                view.refuse_overtaken(epoch.epoch_id)
            except CommitStateUnknownError as error:
                if view.chain.broken:
                    raise
                attempt.error = error
                log.warning("Outcome unknown, looking. epoch=%d error=%s", epoch.epoch_id, error)
                self._settle()
            # 4. Whatever went wrong, look for this epoch before it is sent again.
            found = find_epoch(view.port, self.query_id, view.owner, epoch.epoch_id, after=base)
            self._ownership.in_doubt = False
            if found:
                view.chain.note_found()
                return found.committed_at
        raise AssertionError("a backoff ends in its last error")

    def _leave_orphan(self, epoch_id: int, attempt: Attempt) -> int:
        """Move to the newest version, with history folded over the orphan; return the version."""
        view, landed = self._view, self._view.port.version
        attempt.error = CommitPreemptedError(
            f"epoch {epoch_id} landed as version {landed} of {view.port.uri}, a number that a "
            "cleanup had freed while its commit was on its way"
        )
        log.warning("Sent again. %s", attempt.error)
        view.reopen()
        view.refuse_if_fenced()
        self._ownership.fold()
        return view.port.version

    def _settle(self) -> None:
        """Move to a version behind which the write of unknown outcome can no longer land.

        A late request carries one manifest for one version number, at most the one after the
        current newest. Once a barrier has taken that number, the request can only be refused.
        """
        self._view.reopen()
        if not self._view.fenced:
            self._ownership.bar()

    def release(self) -> bool:
        """End in order: fold the watermark and mark the owner ``released``, in one commit.

        Returns ``False`` and leaves the owner ``active`` for the next claim's barrier if there is
        nothing to release, a newer owner exists, or a claim or commit ended in doubt. A stop
        request that this driver obeyed is removed in the same commit.

        :raises StorageUnavailableError: the store did not answer.
        """
        return self._ownership.release()
