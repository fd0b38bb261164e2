"""Claim, fold and release: how one driver becomes the owner of a query, and how it gives it up.

*One manifest per attempt*: the port never retries on its own, so a failed attempt landed at most
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    StorageUnavailableError,
    TerminalError,
)
from airflow_provider_lance.protocol.codec import encode_owner, encode_stop, fold_updates, key
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.ledger import Ledger
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Driver,
    Epoch,
    Owner,
    OwnerState,
    QueryState,
    StopNote,
    utc_now,
)
from airflow_provider_lance.protocol.port import Barrier, Configure
from airflow_provider_lance.protocol.sides import encode_side
from airflow_provider_lance.protocol.stop_requests import (
    found_request,
    standing_request,
    stop_for,
)

__all__ = ["Ownership"]

log = logging.getLogger(__name__)

_UNSURE = (CommitPreemptedError, CommitStateUnknownError)
"""After these errors, the dataset is read before anything is sent again."""


_CROWD = 8
"""So many versions between two epochs of this driver are a crowd."""


class Ownership:
    """One driver's hold on its query: the commits that change the owner and the config."""

    def __init__(
        self,
        ledger: Ledger,
        policy: CommitPolicy,
        launch_id: str,
        on_step: Callable[[Failpoint], None],
        launched_at: datetime | None = None,
    ) -> None:
        self.ledger, self.chain, self.policy, self.on_step = ledger, ledger.chain, policy, on_step
        self.driver: Driver | None = None
        self.crowded = False
        """Whether others commit much, so that a commit is quicker after a look at the store."""
        self._in_doubt = False
        self._since_fold, self._fold_every = 0, policy.watermark_every
        self._launch_id = launch_id
        self._found_stop = found_request(self.chain.state, launched_at)
        self._found_token = self.chain.next_token - 1

    def __str__(self) -> str:
        owner, watermark = self.chain.owner, self.ledger.watermark.epoch
        held = f"token={owner.token} generation={owner.generation} " if owner else ""
        at = f"watermark={watermark} version={self.chain.port.version}"
        return f"query_id={self.chain.query_id} {held}{at}"

    @property
    def run_id(self) -> str:
        """Return Spark's name for the run, empty before :meth:`identify`."""
        return self.driver.run_id if self.driver else ""

    def note_passed(self, versions: int) -> None:
        """Record how many versions the dataset got from before this epoch until it landed."""
        self.crowded = versions > _CROWD

    def identify(self, driver: Driver) -> None:
        """Record the run; see :meth:`.session.DriverSession.identify`."""
        self.driver = driver
        self.ledger.identify(driver.checkpoint_id)

    def doubt(self, in_doubt: bool) -> None:
        """Record whether something was sent whose outcome is not known."""
        self._in_doubt = in_doubt

    def claim(self, epoch_id: int) -> None:
        """Become the owner; see :meth:`.session.DriverSession.claim`."""
        previous, mine = self._take(epoch_id)
        # Until the end of the claim, a stale writer may still land an epoch that was not seen.
        self.chain.hold(mine)
        self.doubt(True)
        self.on_step(Failpoint.CLAIM_OWNED)
        # 3. A previous owner that did not release may have a commit in flight: stop it.
        if self.policy.barrier and previous and previous.state is OwnerState.ACTIVE:
            self.bar()
        self.on_step(Failpoint.CLAIM_BARRED)
        # 4. A stale writer can no longer land anything: what history shows now is exact. It is
        # ahead of the config only if something landed between 1. and 3.
        self.ledger.refuse_if_fenced()
        self.ledger.read()
        self.ledger.refuse(self.ledger.decide(epoch_id))
        if self.ledger.watermark.epoch > self.chain.state.watermark:
            self.fold()
        self.chain.note_fold()
        self.doubt(False)
        self.on_step(Failpoint.CLAIM_REPAIRED)
        log.info("Claimed. %s after=%s", self, previous.state.value if previous else "none")

    def _take(self, epoch_id: int) -> tuple[Owner | None, Owner]:
        """Do steps 1 and 2 of the claim; return the previous owner and this one."""
        if self.driver is None:
            raise RuntimeError("identify() comes before claim()")
        chain, ledger = self.chain, self.ledger
        mine: Owner | None = None
        previous: Owner | None = None
        now = utc_now()  # one for all attempts, so that one that lands late is recognised
        for attempt in self.policy.backoff:
            # 1. Open the latest version; the checkpoint must still be the recorded one. If a driver
            # changes the owner from here on, step 2 fails. Epochs that land from here on are above
            # what is folded here.
            chain.refresh(strictly=True)
            if mine is not None and chain.state.owner == mine:
                return previous, mine  # an earlier attempt landed and its answer was lost
            fresh = ledger.starts_generation()
            if not fresh:
                ledger.read()
                ledger.refuse(ledger.decide(epoch_id))
            self.on_step(Failpoint.CLAIM_OPENED)
            # 2. Token + 1, active, and the watermark as of this version; what a stale writer lands
            # from now on is above it. Lance lets only one of two updates of a key land.
            previous = chain.state.owner
            mine = Owner(
                token=chain.next_token,
                state=OwnerState.ACTIVE,
                generation=chain.state.generation + (1 if fresh and chain.state.known else 0),
                driver=self.driver,
                time=now,
            )
            try:
                chain.send(Configure(self._fold_updates(fresh=fresh) | self._owner_updates(mine)))
            except _UNSURE as error:
                attempt.error = error
            else:
                return previous, mine
        raise AssertionError("a backoff ends in its last error")

    def bar(self) -> None:
        """Commit a barrier.

        :raises TransientError: the store refused too often.
        """
        for attempt in self.policy.backoff:
            try:
                self.chain.send(Barrier())
            except _UNSURE as error:
                attempt.error = error
                self.chain.reopen()
                if self.chain.fenced:
                    return  # the newer owner bars; this driver sends nothing more
            else:
                return

    def fold(self) -> None:
        """Write the watermark into the config; after a failure, a later epoch tries again."""
        chain = self.chain
        try:
            chain.refuse_dropped()
            if chain.fenced:
                return  # the handle may be the newer owner's, whose epochs this watermark lacks
            chain.send(Configure(self._fold_updates()))
            chain.note_fold()
        except (CommitStateUnknownError, StorageUnavailableError) as error:
            if chain.broken:
                raise
            log.warning("Fold not confirmed; the next will repeat it. error=%s", error)
        except CommitPreemptedError:
            chain.reopen()
            self.ledger.refuse_if_fenced()
        else:
            self._since_fold = 0

    def register_side(self, name: str, uri: str) -> None:
        """Write a side table into the config; see :meth:`.session.DriverSession.register_side`.

        The owner is written again as it is: so this update and a claim exclude each other.
        """
        chain = self.chain
        for attempt in self.policy.backoff:
            chain.refresh(strictly=True)
            self.ledger.refuse_if_fenced()
            assert chain.owner is not None
            record = encode_side(chain.query_id, name, uri)
            if record.items() <= chain.port.config.items():
                return  # an earlier attempt landed and its answer was lost
            mine = {key("owner", chain.query_id): encode_owner(chain.owner)}
            try:
                chain.send(Configure(record | mine))
            except _UNSURE as error:
                attempt.error = error
            else:
                return

    def note_landed(self, epoch: Epoch, committed_at: str) -> None:
        """Record an epoch that landed; the next fold has one more to write."""
        self.ledger.note_landed(epoch, committed_at)
        self._since_fold += 1

    def fold_each_epoch(self) -> None:
        """Fold after each epoch from here on, because versions may be removed at any time."""
        self._fold_every = 1

    def fold_when_due(self) -> None:
        """Fold if enough epochs have landed since the last fold."""
        if self._since_fold >= self._fold_every:
            self.fold()

    def release(self) -> bool:
        """Fold and give the query up; see :meth:`.session.DriverSession.release`."""
        if self.chain.owner is None or self._in_doubt or self.chain.broken:
            return False
        try:
            return self._release(self.chain.owner)
        except (CommitStateUnknownError, TerminalError) as error:
            log.warning("Not released; the next start looks. %s error=%s", self, error)
            return False

    def _release(self, owner: Owner) -> bool:
        chain, ledger = self.chain, self.ledger
        released = replace(owner, state=OwnerState.RELEASED, time=utc_now())
        before = chain.port.version
        chain.reopen()
        chain.refuse_dropped()
        if chain.port.version != before and not chain.fenced:
            done = ledger.done.epoch_id if ledger.done else NO_EPOCH
            ledger.refuse_overtaken(max(done, ledger.watermark.epoch) + 1)
        for _ in self.policy.backoff:
            if chain.state.owner == released:
                break  # an earlier attempt landed and its answer was lost
            if chain.fenced:
                return False
            self.on_step(Failpoint.RELEASE_CHECKED)
            try:
                chain.send(Configure(self._fold_updates() | self._owner_updates(released)))
            except (*_UNSURE, TerminalError):
                if chain.broken:
                    # It landed on an older version that was restored meanwhile. Only while the
                    # owner is active do all readers read the history that shows it.
                    chain.send(Configure(self._owner_updates(owner)), prove=False)
                    raise
                chain.reopen()
            else:
                break
        else:
            return False
        log.info("Released. %s", self)
        chain.hold(None)
        self.on_step(Failpoint.RELEASE_DONE)
        return True

    def _fold_updates(self, *, fresh: bool = False) -> dict[str, str | None]:
        """Return the config updates that fold history up to the handle.

        :param fresh: a new generation begins: nothing of the old one counts.
        """
        version, mark = self.chain.port.version, self.ledger.watermark
        if fresh:
            return fold_updates(self.chain.query_id, NO_EPOCH, version, None)
        return fold_updates(
            self.chain.query_id, mark.epoch, version, mark.committed_at, self.ledger.done
        )

    def _owner_updates(self, owner: Owner) -> dict[str, str | None]:
        """Return the config updates of a claim or a release.

        A release removes the stop request. A claim gives a request that this driver must obey its
        token, and removes one that names its token and is not meant for it: that was for another
        driver that waited and never claimed.
        """
        updates: dict[str, str | None] = {key("owner", self.chain.query_id): encode_owner(owner)}
        asked = standing_request(self.chain.state)
        if asked is None:
            return updates
        obeyed = None
        if owner.state is OwnerState.RELEASED:
            changed = asked.token <= owner.token
        elif self.stop_requested() is None:
            changed = asked.token == owner.token
        else:
            obeyed = replace(asked, token=owner.token)
            changed = asked.token != owner.token
        return updates | encode_stop(self.chain.query_id, obeyed) if changed else updates

    def stop_requested(self, *, poll: bool = False) -> StopNote | None:
        """Return the request to obey; see :meth:`.session.DriverSession.stop_requested`."""
        state = self.chain.newest_state() if poll else self.chain.state
        if poll and self._overtaken(state):
            self.ledger.refuse(Decision.FENCED, state)
        return stop_for(
            state, launch_id=self._launch_id, owner=self.chain.owner, found=self._found_stop
        )

    def _overtaken(self, state: QueryState) -> bool:
        """Return whether another driver claimed after this one, or since its start if unclaimed.

        It matters before the claim too: the driver that claimed has an epoch in Spark's log, at the
        number that this driver would plan next. A new generation has its own log.
        """
        held = self.chain.owner.token if self.chain.owner else self._found_token
        if state.owner is None or state.owner.token <= held or self.ledger.starts_generation():
            return False
        return state.owner.driver != self.driver  # a claim of its own may just have landed
