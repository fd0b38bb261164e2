"""One epoch's way into the dataset, in numbered steps: decided, written by the caller, committed.

*After each doubt, look once*: a commit whose outcome is unclear is searched for in history before
it is sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetRestoredError,
    FencedError,
    HistoryGapError,
    RowsChangedError,
    SchemaMismatchError,
)
from airflow_provider_lance.protocol.backoff import Attempt
from airflow_provider_lance.protocol.chain import Chain
from airflow_provider_lance.protocol.codec import encode_stamp
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import CommitResult, Failpoint
from airflow_provider_lance.protocol.model import DoneEpoch, EndOffsets, Epoch
from airflow_provider_lance.protocol.ownership import Ownership
from airflow_provider_lance.protocol.port import DatasetPort, change_for
from airflow_provider_lance.protocol.schema_change import add_columns, refuse_other_layout
from airflow_provider_lance.protocol.watermark import find_epoch, versions_of

__all__ = ["EpochPlan"]

log = logging.getLogger(__name__)


class EpochPlan:
    """What one driver does with one epoch; made by :meth:`.session.DriverSession.begin`.

    If ``decision`` is ``FULL_COMMIT``, write the epoch's rows at ``port`` and call :meth:`commit`.
    In every other case, and for an epoch that changes nothing, call :meth:`finish`.
    """

    def __init__(self, ownership: Ownership, epoch_id: int) -> None:
        """Decide, as seen from the handle; no I/O.

        :raises TerminalError: the decision ends the query; see :mod:`.errors`.
        """
        self.epoch_id = epoch_id
        self._ownership, self._ledger, self._chain = ownership, ownership.ledger, ownership.chain
        self.decision = self._decide()
        self._decided_at = self.port

    @property
    def port(self) -> DatasetPort:
        """Return the handle to write fragments with, at this driver's last commit."""
        return self._chain.port

    def _decide(self) -> Decision:
        decision = self._ledger.decide(self.epoch_id)
        self._ledger.refuse(decision)
        return decision

    def finish(self, ends: EndOffsets | None = None) -> None:
        """Finish an epoch that adds nothing to the dataset; claim if a trace or a fold is missing.

        The first epoch of a query must leave a trace even when it is empty. Only then does a
        `commits/N` in a checkpoint prove that a dataset without a trace is not the query's.

        :param ends: where the epoch ends, if Spark says so.
        :raises TerminalError, TransientError: as :meth:`.session.DriverSession.claim`.
        """
        if self.decision is Decision.RECOVERY_TXN2_ONLY:
            self._ownership.claim(self.epoch_id)  # which folds
        elif self.decision is Decision.FULL_COMMIT:
            if self._chain.owner is None and not self._chain.state.known:
                self._ownership.claim(self.epoch_id)
            self._ledger.note_done(DoneEpoch(self.epoch_id, ends))

    def add_columns(self, columns: Any, types: Mapping[str, str]) -> None:
        """Add columns to the dataset before the epoch's rows are written; claim first.

        Does nothing if the claim shows that the epoch is committed: look at ``decision`` after it.

        :param columns: an Arrow schema; a struct's new fields as a struct of these.
        :param types: the same for people: a type by path.
        :raises FencedError: a newer owner holds the query.
        :raises SchemaMismatchError: others have changed the schema since this driver started.
        :raises TransientError: the store refused too often.
        """
        if self._chain.owner is None:
            self._ownership.claim(self.epoch_id)
        self.decision, self._decided_at = self._decide(), self.port
        if self.decision is Decision.FULL_COMMIT:
            add_columns(self._ownership, self.epoch_id, columns, types)

    def commit(self, epoch: Epoch) -> CommitResult:
        """Make the written epoch visible exactly once; claim first if this driver has not.

        :raises FencedError: a newer owner holds the query; nothing of this epoch will land.
        :raises SchemaMismatchError, DatasetNotFoundError: the dataset's schema changed, or the
            dataset was dropped, while this driver ran.
        :raises CommitPreemptedError: preempted in every one of the bounded attempts.
        :raises RowsChangedError: others changed rows since ``epoch.compared_at``; nothing landed.
            Compare at :attr:`port` again, and write the epoch again.
        :raises CommitStateUnknownError: the outcome is not known; this driver must end.
        """
        ownership, chain = self._ownership, self._chain
        if chain.owner is None:
            ownership.claim(epoch.epoch_id)
        # 1. A committed epoch is not written again. At the same handle, the answer is the same.
        if self._decided_at is not chain.port:
            self.decision = self._decide()
        if self.decision is not Decision.FULL_COMMIT:
            return CommitResult(self.decision, epoch.epoch_id, chain.port.version)
        ownership.on_step(Failpoint.COMMIT_CHECKED)
        began = time.perf_counter()
        committed_at = self._land(epoch)
        commit_ms = (time.perf_counter() - began) * 1000
        ownership.note_landed(epoch, committed_at)
        ownership.on_step(Failpoint.COMMIT_LANDED)
        # 5. From time to time the watermark is folded into the config.
        ownership.fold_when_due()
        ownership.on_step(Failpoint.COMMIT_FOLDED)
        return CommitResult(Decision.FULL_COMMIT, epoch.epoch_id, chain.port.version, commit_ms)

    def _land(self, epoch: Epoch) -> str:
        """Do steps 2 to 4 of a commit until the epoch has landed; return when it was sent."""
        ownership, ledger, chain = self._ownership, self._ledger, self._chain
        # An append is rebased over others' commits. The other two must see them: an upsert from
        # before a compaction would not delete what the compaction replaced, if that version was
        # cleaned up.
        strictly = epoch.mode.effect.strict
        known = chain.port.version
        chain.refresh(strictly=strictly or ownership.crowded)
        if chain.port.version != known:
            ledger.refuse_if_fenced()
            ledger.refuse_overtaken(epoch.epoch_id)
        for attempt in ownership.policy.backoff:
            # 2. The handle's own config must name our token; no I/O while the handle is fresh.
            if attempt.number:
                # The wait was long beside many other writers, and Lance compares an append with
                # each version since its handle.
                chain.refresh(strictly=True)
            if chain.port.is_local:
                chain.refuse_dropped()  # costs no request there
            ledger.refuse_if_fenced()
            refuse_other_layout(chain)
            _refuse_changed_rows(chain, epoch)
            assert chain.owner is not None
            # 3. One commit carries data and stamp.
            ownership.doubt(True)
            sent = datetime.now(UTC)
            took = sent - datetime.fromisoformat(epoch.started_at)
            milliseconds = int(took.total_seconds() * 1000)
            stamp = encode_stamp(chain.query_id, chain.owner, epoch, milliseconds, ownership.run_id)
            before = chain.port
            try:
                slow = chain.send(change_for(epoch), stamp)
                _inspect(chain, epoch, before.version)
                if slow and not _is_part(chain, epoch, before):
                    # It landed beside the chain, where no reader will ever see it.
                    self._leave_orphan(epoch.epoch_id, attempt)
                    continue
                chain.note_epoch(epoch, before)
                ownership.note_passed(chain.port.version - known)
                ownership.doubt(False)
                return sent.isoformat(timespec="milliseconds")
            except CommitPreemptedError as error:
                attempt.error = error
                chain.reopen()
                ledger.refuse_if_fenced()
                ledger.refuse_overtaken(epoch.epoch_id)
            except CommitStateUnknownError as error:
                if chain.broken:
                    raise
                attempt.error = error
                log.warning("Outcome unknown, looking. epoch=%d error=%s", epoch.epoch_id, error)
                self._settle()
            # 4. Whatever went wrong, look for this epoch before it is sent again. It can only be
            # above the version on which it was sent, and each attempt before was looked for.
            found = find_epoch(
                chain.port, chain.query_id, chain.owner, epoch.epoch_id, after=before.version
            )
            ownership.doubt(False)
            if found:
                chain.note_found()
                return found.committed_at
        raise AssertionError("a backoff ends in its last error")

    def _leave_orphan(self, epoch_id: int, attempt: Attempt) -> None:
        """Move to the newest version, with history folded over the orphan."""
        chain, landed = self._chain, self._chain.port.version
        attempt.error = CommitPreemptedError(
            f"epoch {epoch_id} landed as version {landed} of {chain.port.uri}, a number that a "
            "cleanup had freed while its commit was on its way"
        )
        log.warning("Sent again. %s", attempt.error)
        chain.reopen()
        self._ledger.refuse_if_fenced()
        self._ownership.fold()

    def _settle(self) -> None:
        """Move to a version behind which the write of unknown outcome can no longer land.

        A late request carries one manifest for one version number, at most the one after the
        current newest. Once a barrier has taken that number, the request can only be refused.
        """
        self._chain.reopen()
        if not self._chain.fenced:
            self._ownership.bar()


def _is_part(chain: Chain, epoch: Epoch, base: DatasetPort) -> bool:
    """Return whether an epoch whose commit was slow is part of the newest version.

    Lance writes a manifest under the number that was free when it checked. If others took that
    number while the writer was paused, and a cleanup freed it again, the write succeeds below
    the newest version (seen on pylance 14.0.2).

    :raises DatasetRestoredError: an older version was restored over it.
    :raises CommitStateUnknownError: it cannot be proven.
    """
    landed = chain.port
    known = chain.known
    newest = landed.latest()
    chain.recognise(newest, known)
    if not chain.proves or newest.version == landed.version:
        return True
    added = landed.added_since(base) if epoch.fragments else None
    if added is not None and newest.has_fragment(added):
        return True
    missing = False
    for version, properties in versions_of(newest, landed.version):
        restored = None if properties is None else newest.restored(version)
        missing |= properties is None
        if restored is not None and restored < landed.version:
            raise chain.broke(
                DatasetRestoredError(
                    f"version {version} of {newest.uri} restored version {restored}, and epoch "
                    f"{epoch.epoch_id} of query {chain.query_id!r} is gone. Start the stream "
                    "again: it writes the epoch again"
                )
            )
    following = newest.at(landed.version + 1) or newest
    if added is not None and following.is_made_without(added):
        return False
    if not missing:
        return True
    raise CommitStateUnknownError(
        f"epoch {epoch.epoch_id} of query {chain.query_id!r} landed as version "
        f"{landed.version} of {newest.uri} after its commit was held up, and versions up to "
        f"{newest.version} that would show whether it is part of the table were cleaned up. "
        "The next start says what to do; let cleanup keep versions for longer"
    )


def _refuse_changed_rows(chain: Chain, epoch: Epoch) -> None:
    """Raise :class:`RowsChangedError` if the rows that the epoch was compared with are others."""
    if epoch.compared_at is None:
        return
    for version in range(epoch.compared_at + 1, chain.port.version + 1):
        if chain.port.changed_rows(version):
            raise RowsChangedError(
                f"epoch {epoch.epoch_id} of query {chain.query_id!r} was compared with version "
                f"{epoch.compared_at} of {chain.port.uri}, and version {version} has changed rows "
                "since; nothing of it was committed"
            )


def _inspect(chain: Chain, epoch: Epoch, base: int) -> None:
    """Raise if a commit landed where it should not have.

    Reads the versions that others committed meanwhile, if a newer owner is among them or the
    epoch is an upsert.

    Lance rebases an append over a changed schema (seen on pylance 14.0.2). A stale append that
    lands before the newer owner's barrier is allowed: that owner sees it.

    :raises SchemaMismatchError, FencedError, HistoryGapError: the message names the epoch's
        version.
    """
    epoch_id = epoch.epoch_id
    if chain.port.layout != chain.layout:
        raise SchemaMismatchError(
            f"the schema of {chain.port.uri} was changed at the moment when epoch "
            f"{epoch_id} of query {chain.query_id!r} landed, as version {chain.port.version}: "
            "its values in columns that were altered or added read as null there. Write that "
            "epoch's rows again from the source, and stop streams before a schema is changed"
        )
    between = range(base + 1, chain.port.version)
    upsert = epoch.mode.effect.replaces_rows
    if not (chain.fenced or upsert):
        return
    if all(chain.port.properties(version) is not None for version in between):
        return
    if chain.fenced:
        raise FencedError(
            f"epoch {epoch_id} of query {chain.query_id!r} landed as version "
            f"{chain.port.version} of {chain.port.uri} although a newer owner holds the query, "
            f"and versions after {base} that would show which of them came first were cleaned "
            "up: its rows may be duplicated. Compare them with the source, and let cleanup "
            "keep versions for longer than a driver may hang"
        )
    raise HistoryGapError(
        f"epoch {epoch_id} of query {chain.query_id!r} landed as version {chain.port.version} of "
        f"{chain.port.uri}, and versions after {base} were cleaned up while its commit was on "
        "its way. If one of them was a compaction, rows that the epoch replaces are still there. "
        "Look for merge keys that occur twice, and let cleanup keep versions for longer"
    )
