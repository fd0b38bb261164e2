"""Claim and release: how one driver becomes the owner of a query, and how it gives the query up.

*One manifest per attempt*: the port never retries on its own, so a failed attempt landed at most
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    StorageUnavailableError,
    TerminalError,
)
from airflow_provider_lance.protocol.codec import (
    encode_owner,
    encode_stop,
    fold_updates,
    key,
)
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import (
    NO_EPOCH,
    Owner,
    OwnerState,
    Watermark,
    utc_now,
)
from airflow_provider_lance.protocol.port import (
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.protocol.session import DriverSession

__all__ = ["UNSURE", "Ownership"]

log = logging.getLogger(__name__)

UNSURE = (CommitPreemptedError, CommitStateUnknownError)
"""After these errors, the dataset is read before anything is sent again."""


class Ownership:
    """One driver's hold on its query: the commits that change the owner and the config.

    ``in_doubt`` says that something was sent whose outcome is not known. ``since_fold`` counts the
    epochs that are not folded yet. ``manifest_updates`` counts this driver's commits.
    """

    def __init__(
        self, view: DriverSession, policy: CommitPolicy, on_step: Callable[[Failpoint], None]
    ) -> None:
        self.in_doubt = False
        self.since_fold = 0
        self.manifest_updates = 0
        self._view, self._policy, self._on_step = view, policy, on_step

    def claim(self, epoch_id: int) -> None:
        """Become the owner; see :meth:`.committer.Committer.claim`."""
        view = self._view
        previous, mine = self._take(epoch_id)
        # Until the end of the claim, a stale writer may still land an epoch that was not seen.
        view.owner, self.in_doubt = mine, True
        self._on_step(Failpoint.CLAIM_OWNED)
        # 3. A previous owner that did not release may have a commit in flight: stop it.
        if self._policy.barrier and previous and previous.state is OwnerState.ACTIVE:
            self.bar()
        self._on_step(Failpoint.CLAIM_BARRED)
        # 4. A stale writer can no longer land anything: what history shows now is exact. It is
        # ahead of the config only if something landed between 1. and 3.
        view.refuse_if_fenced()
        view.read_watermark()
        view.refuse(view.decide(epoch_id))
        if view.watermark.epoch > view.state.watermark:
            self.fold()
        view.chain.note_fold()
        self.in_doubt = False
        self._on_step(Failpoint.CLAIM_REPAIRED)
        log.info("Claimed. %s after=%s", view, previous.state.value if previous else "nobody")

    def _take(self, epoch_id: int) -> tuple[Owner | None, Owner]:
        """Do steps 1 and 2 of the claim; return the previous owner and this one."""
        view = self._view
        if view.driver is None:
            raise RuntimeError("identify() comes before claim()")
        mine: Owner | None = None
        previous: Owner | None = None
        now = utc_now()  # one for all attempts, so that one that lands late is recognised
        for attempt in self._policy.backoff:
            # 1. Open the latest version; the checkpoint must still be the recorded one. If a driver
            # changes the owner from here on, step 2 fails. Epochs that land from here on are above
            # what is folded here.
            view.refresh(strictly=True)
            if mine is not None and view.state.owner == mine:
                return previous, mine  # an earlier attempt landed and its answer was lost
            fresh = view.starts_generation()
            if not fresh:
                view.read_watermark()
                view.refuse(view.decide(epoch_id))
            self._on_step(Failpoint.CLAIM_OPENED)
            # 2. Token + 1, active, and the watermark as of this version; what a stale writer lands
            # from now on is above it. Lance lets only one of two updates of a key land.
            previous = view.state.owner
            mine = Owner(
                token=view.next_token,
                state=OwnerState.ACTIVE,
                generation=view.state.generation + (1 if fresh and view.state.known else 0),
                driver=view.driver,
                time=now,
            )
            updates = self._fold_updates(fresh=fresh) | self._owner_updates(mine)
            try:
                self.send(Configure(updates))
            except UNSURE as error:
                attempt.error = error
            else:
                return previous, mine
        raise AssertionError("a backoff ends in its last error")

    def bar(self) -> None:
        """Commit a barrier.

        :raises TransientError: the store refused too often.
        """
        for attempt in self._policy.backoff:
            try:
                self.send(Barrier())
            except UNSURE as error:
                attempt.error = error
                self._view.reopen()
                if self._view.fenced:
                    return  # the newer owner bars; this driver sends nothing more
            else:
                return

    def fold(self) -> None:
        """Write the watermark into the config; after a failure, a later epoch tries again."""
        view = self._view
        try:
            view.chain.refuse_dropped()
            if view.fenced:
                return  # the handle may be the newer owner's, whose epochs this watermark lacks
            self.send(Configure(self._fold_updates()))
            view.chain.note_fold()
        except (CommitStateUnknownError, StorageUnavailableError) as error:
            if view.chain.broken:
                raise
            log.warning("Fold not confirmed; the next will repeat it. error=%s", error)
        except CommitPreemptedError:
            view.reopen()
            view.refuse_if_fenced()
        else:
            self.since_fold = 0

    def release(self) -> bool:
        """Fold the watermark and give the query up; see :meth:`.committer.Committer.release`."""
        if self._view.owner is None or self.in_doubt or self._view.chain.broken:
            return False
        try:
            return self._release()
        except (CommitStateUnknownError, TerminalError) as error:
            log.warning("Not released; the next start looks. %s error=%s", self._view, error)
            return False

    def _release(self) -> bool:
        view = self._view
        assert view.owner is not None
        released = replace(view.owner, state=OwnerState.RELEASED, time=utc_now())
        before = view.port.version
        view.reopen()
        view.chain.refuse_dropped()
        if view.port.version != before and not view.fenced:
            done = view.done.epoch_id if view.done else NO_EPOCH
            view.refuse_overtaken(max(done, view.watermark.epoch) + 1)
        for _ in self._policy.backoff:
            if view.state.owner == released:
                break  # an earlier attempt landed and its answer was lost
            if view.fenced:
                return False
            self._on_step(Failpoint.RELEASE_CHECKED)
            try:
                self.send(Configure(self._fold_updates() | self._owner_updates(released)))
            except (*UNSURE, TerminalError):
                if view.chain.broken:
                    # It landed on an older version that was restored meanwhile. Only while the
                    # owner is active do all readers read the history that shows it.
                    self.send(Configure(self._owner_updates(view.owner)), prove=False)
                    raise
                view.reopen()
            else:
                break
        else:
            return False
        log.info("Released. %s", view)
        view.owner = None
        self._on_step(Failpoint.RELEASE_DONE)
        return True

    def _fold_updates(self, *, fresh: bool = False) -> dict[str, str | None]:
        """Return the config updates that fold history up to the handle.

        :param fresh: a new generation begins: nothing of the old one counts.
        """
        view = self._view
        watermark = Watermark(NO_EPOCH, view.port.version, None) if fresh else view.watermark
        done = None if fresh else view.done
        return fold_updates(
            view.query_id, watermark.epoch, view.port.version, watermark.committed_at, done
        )

    def _owner_updates(self, owner: Owner) -> dict[str, str | None]:
        """Return the config updates of a claim or a release.

        A release removes the stop request. A claim removes a request that names its token and is
        not meant for this driver: it was for another driver that waited and never claimed.
        """
        view = self._view
        updates: dict[str, str | None] = {key("owner", view.query_id): encode_owner(owner)}
        asked = view.state.stop_token
        if asked is None:
            return updates
        if owner.state is OwnerState.RELEASED:
            over = asked <= owner.token
        else:
            over = asked == owner.token and view.stop_requested(poll=False) is None
        return updates | encode_stop(view.query_id, None) if over else updates

    def send(
        self, change: Change, stamp: Mapping[str, str] | None = None, *, prove: bool = True
    ) -> bool:
        """Commit one change on top of the handle, once, and move to the version it became.

        :returns: whether it took so long that it may have landed below the newest version.
        :raises DatasetNotFoundError, DatasetRestoredError, CommitStateUnknownError: it landed, and
            the version below it does not hold this driver's epochs; see :mod:`.chain`.
        """
        view, began = self._view, self._policy.clock()
        before = view.port.version
        landed = view.port.commit(change, stamp)
        self.manifest_updates += 1
        slow = self._policy.clock().since(began) > self._policy.slow_seconds
        if slow and stamp is None and landed.latest().version != landed.version:
            raise CommitStateUnknownError(
                f"{type(change).__name__} landed as version {landed.version} of {landed.uri} after "
                "it was held up, and others have committed since"
            )
        if prove:
            view.chain.recognise(landed, view.chain.known)
            # On a local disk, the dataset's files were checked before the epoch.
            looked = stamp is not None and view.port.is_local
            if not looked and not isinstance(change, Overwrite | Upsert):
                view.chain.refuse_other(landed)
        view.move_to(landed)
        if prove and landed.version > before + 1:
            view.chain.prove(since=before)
        return slow
