"""One driver's part in the protocol: what the sink calls, from before the start to the end.

An epoch takes three calls: ``plan = session.begin(epoch_id)``, a write of its fragments, and
``plan.commit(epoch)``. Each part writes only its own state: :mod:`.chain` has the handle,
:mod:`.ledger` the epochs that are known, :mod:`.ownership` the claim and the fold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import auto_cleanup
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.epoch_plan import EpochPlan
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.ledger import Ledger
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    Owner,
    OwnerState,
    StopNote,
    Watermark,
)
from airflow_provider_lance.protocol.ownership import Ownership
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["DriverSession"]

log = logging.getLogger(__name__)


class DriverSession:
    """Commits the epochs of one query, one at a time, from one driver.

    Call :meth:`prepare` before any data is read, :meth:`take_over` before Spark plans an epoch,
    :meth:`identify` once Spark has named the run. Each epoch is :meth:`begin`, a write, and the
    plan's ``commit``. :meth:`release` ends the session.
    """

    def __init__(
        self,
        port: DatasetPort,
        query_id: str,
        checkpoint: Checkpoint,
        policy: CommitPolicy | None = None,
        *,
        launch_id: str = "",
        launched_at: datetime | None = None,
        look: Callable[[], Checkpoint] | None = None,
        heard: Callable[[Driver], int] | None = None,
        on_step: Callable[[Failpoint], None] = lambda step: None,
        side: bool = False,
    ) -> None:
        """Store the arguments; no I/O.

        :param port: a handle at the newest version.
        :param checkpoint: the checkpoint as it was before Spark started.
        :param launch_id: the launch that stop requests may name; empty if it has no name.
        :param launched_at: when it was launched; a stop request since then is meant for it, too.
        :param look: reads the checkpoint again, when another driver may have continued it.
        :param heard: returns the newest epoch that a driver reported as committed, -1 if none;
            called where versions are missing that could show it.
        :param on_step: called at each :class:`Failpoint`; tests end the process there.
        :param side: the dataset is a side table, whose first epoch may be any; see
            :mod:`.side_tables`.
        """
        policy = policy or CommitPolicy()
        look = look or (lambda: checkpoint)
        heard = heard or (lambda driver: NO_EPOCH)
        self.query_id = query_id
        self._launch_id = launch_id
        self._ledger = Ledger(port, query_id, checkpoint, policy, look, heard=heard, side=side)
        self._chain = self._ledger.chain
        self._launched_at = launched_at
        self._ownership = Ownership(self._ledger, policy, launch_id, on_step, launched_at)

    @property
    def port(self) -> DatasetPort:
        """Return the handle at this driver's last commit."""
        return self._chain.port

    @property
    def owner(self) -> Owner | None:
        """Return this driver's ownership, ``None`` before its claim and after its release."""
        return self._chain.owner

    @property
    def manifest_updates(self) -> int:
        """Return how many versions this driver has added to the dataset."""
        return self._chain.manifest_updates

    @property
    def watermark(self) -> int:
        """Return the epoch watermark as far as this driver knows it."""
        return self._ledger.watermark.epoch

    @property
    def committed_at(self) -> str | None:
        """Return when that epoch was committed; ``None`` if it is not known."""
        return self._ledger.watermark.committed_at

    @property
    def known(self) -> bool:
        """Return whether the dataset carries any trace of the query."""
        return self._chain.state.known

    # --------------------------------------------------------------------------------------- start

    def prepare(self) -> Watermark:
        """Read dataset and checkpoint, and refuse what cannot be exact; writes nothing.

        :raises CheckpointMismatchError: the watermark belongs to another checkpoint or to a newer
            copy of this one, or the dataset has no trace of the epochs that this one committed.
        :raises HistoryGapError: the one epoch in doubt may be in a version that was cleaned up.
        :raises ProtocolVersionError: the dataset uses a newer protocol, or another tool's values.
        """
        state = self._chain.state
        if state.owner is None and state.known:
            raise ProtocolVersionError(
                f"query {self.query_id!r} has epoch watermark {state.watermark} and no owner "
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
            self._ownership.fold_each_epoch()
        self._chain.refuse_dropped()
        self._ledger.read()
        self._ledger.refuse(self._ledger.decide(NO_EPOCH))
        return self._ledger.watermark

    def identify(self, driver: Driver) -> None:
        """Record what Spark says of the run; the checkpoint's id may only be known now.

        :raises CheckpointMismatchError: the id differs from the one that was read before the start.
        """
        self._ownership.identify(driver)

    def take_over(self, driver: Driver) -> Owner | None:
        """Claim from an owner that did not release, before Spark plans an epoch of this run.

        Two drivers of one query write the same Spark log, and the driver that is late with an entry
        fails. Beside a busy driver, a newcomer would hardly ever reach its first commit.

        :param driver: any ``run_id`` and ``checkpoint_id``: the run has no id before it starts, and
            the checkpoint's is known.
        :returns: the owner that the query was taken from, ``None`` if there was none to fence.
        :raises TerminalError, TransientError: as :meth:`claim`.
        """
        owner = self._chain.state.owner
        if owner is None or owner.state is OwnerState.RELEASED or self._ledger.starts_generation():
            return None
        known = owner.driver.checkpoint_id  # any other id was refused
        unlike = f"starting {uuid4().hex[:8]}"  # two owners must never be equal
        self.identify(replace(driver, run_id=unlike, checkpoint_id=known))
        self.claim(NO_EPOCH)
        return owner

    def recheck(self) -> None:
        """Read the checkpoint again, after the previous driver has ended.

        :raises CheckpointMismatchError, HistoryGapError: as :meth:`prepare`.
        """
        self._ledger.read_again()

    # --------------------------------------------------------------------------------------- epoch

    def begin(self, epoch_id: int) -> EpochPlan:
        """Decide what to do with an epoch, as seen from the handle; no I/O.

        :raises TerminalError: the decision ends the query; see :mod:`.errors`.
        """
        return EpochPlan(self._ownership, epoch_id)

    def claim(self, epoch_id: int) -> None:
        """Become the owner; committing an epoch does so when this driver is not the owner.

        :param epoch_id: the epoch that is about to be committed, -1 without one.
        :raises FencedError: another driver claimed in the middle of this claim.
        :raises TransientError: the store refused too often.
        """
        self._ownership.claim(epoch_id)

    def contend(self, epoch_id: int) -> None:
        """Own the query, after another driver has planned this epoch otherwise.

        :raises FencedError: another driver owns the query, or Spark's log has the epoch as done.
        :raises TerminalError, TransientError: as :meth:`claim`.
        """
        self._ledger.refuse_overtaken(epoch_id)
        if self.owner is None:
            self.claim(epoch_id)
        else:
            self.confirm()

    # --------------------------------------------------------------------------------- side tables

    def beside(self, port: DatasetPort, *, answers: bool = False) -> DriverSession:
        """Return a session of the same driver for a side table; no I/O.

        :param answers: whether the user's answers about epochs in doubt are for that dataset.
        """
        policy = self._ownership.policy
        if not answers:
            policy = replace(policy, on_history_gap=OnHistoryGap(), on_restore=OnRestore())
        return DriverSession(
            port,
            self.query_id,
            self._ledger.checkpoint,
            policy,
            launch_id=self._launch_id,
            launched_at=self._launched_at,
            look=self._ledger.look,
            on_step=self._ownership.on_step,
            side=True,
        )

    @property
    def driver(self) -> Driver:
        """Return the run, as :meth:`identify` recorded it."""
        assert self._ownership.driver is not None, "identify() comes before"
        return self._ownership.driver

    @property
    def answered(self) -> bool:
        """Return whether an answer of the user decided about epochs in doubt here."""
        return self._ledger.answered

    @property
    def done_to(self) -> int:
        """Return the newest epoch that this dataset or Spark's log has."""
        return max(self.watermark, self._ledger.checkpoint.committed)

    @property
    def starts_generation(self) -> bool:
        """Return whether the claim begins a new numbering, because the user asked for one."""
        return self._ledger.starts_generation()

    @property
    def must_claim(self) -> bool:
        """Return whether another driver may still write, or records another checkpoint."""
        owner = self._chain.state.owner
        if self.owner is not None or owner is None:
            return False
        return owner.state is OwnerState.ACTIVE or self.starts_generation

    def confirm(self) -> None:
        """Read the newest version, and refuse if another driver owns the query.

        :raises FencedError: it does.
        """
        self._chain.refresh(strictly=True)
        self._ledger.refuse_if_fenced()

    def register_side(self, name: str, uri: str) -> None:
        """Write a side table's name and URI into the config, as the owner.

        :raises FencedError: another driver owns the query.
        :raises TransientError: the store refused too often.
        """
        self._ownership.register_side(name, uri)

    def digest_of(self, epoch_id: int) -> str:
        """Return the digest that an epoch was committed with, empty if it is not known."""
        done = self._ledger.done
        return done.digest if done and done.epoch_id == epoch_id else ""

    def note_done(self, main: DriverSession) -> None:
        """Record that this side table has all its rows up to the newest epoch of the own table."""
        done, mine = main._ledger.done, self._ledger.done
        if done and (mine is None or mine.epoch_id < done.epoch_id):
            self._ledger.note_done(done)

    # ----------------------------------------------------------------------------------------- end

    def stop_requested(self, *, poll: bool = False) -> StopNote | None:
        """Return the stop request that this driver must obey, ``None`` if there is none.

        Reads the handle's own config, without I/O; ``poll=True`` opens the newest version, and
        leaves the handle to the thread that commits. Before the claim, a request counts if it names
        the recorded owner or the token that this driver would get. A request that existed at the
        start is meant for another driver, unless it names this launch.

        :raises FencedError: polling showed a newer owner; without polling, the next commit shows
            it.
        """
        return self._ownership.stop_requested(poll=poll)

    def release(self) -> bool:
        """End in order: fold the watermark and mark the owner ``released``, in one commit.

        Returns ``False`` and leaves the owner ``active`` for the next claim's barrier if there is
        nothing to release, a newer owner exists, or a claim or commit ended in doubt. A stop
        request that this driver obeyed is removed in the same commit.

        :raises StorageUnavailableError: the store did not answer.
        """
        return self._ownership.release()
