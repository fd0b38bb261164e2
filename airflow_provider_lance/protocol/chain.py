"""One driver's handle on the dataset, and the proof that its own epochs are part of that version.

A dataset can be dropped and recreated. An older version can be restored over the newest. A paused
commit can land under a version number that a cleanup freed. Each time, a commit succeeds on top of
a version that lacks earlier epochs. So a driver reads the newest version, and commits, only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple, Protocol

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    DatasetNotFoundError,
    DatasetRestoredError,
    LanceStreamError,
)
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.model import Epoch, Owner, QueryState, Watermark
from airflow_provider_lance.protocol.port import Change, DatasetPort, Overwrite, Upsert
from airflow_provider_lance.protocol.watermark import versions_of

__all__ = ["Chain"]


class _Added:
    """What the newest epoch added; a version that has it was made from that epoch's version."""

    def __init__(self, landed: DatasetPort, base: DatasetPort) -> None:
        self._landed, self._base = landed, base

    @cached_property
    def fragment(self) -> object | None:
        """Return the newest added fragment; read only after others have committed."""
        return self._landed.added_since(self._base)


_FOLDED: Final = "folded"
"""All epochs are folded: a config with this fold, or a later one, proves them."""

_Landmark = Literal["folded"] | _Added | None
"""What proves the newest epoch; ``None`` where only history can, as after an epoch of deletes."""


_START_AGAIN: Final = "Start the stream again: it names the epochs that are gone and both ways out"


class Known(NamedTuple):
    """What a driver knew of the dataset at one moment: version, owner and last fold."""

    version: int
    owner: Owner | None
    fold: int


class _Epochs(Protocol):
    """What an error says of the driver's epochs."""

    watermark: Watermark

    def refuse_lost(self) -> None:
        """Raise the error that names the epochs removed by a restored version, if any."""


class Chain:
    """One driver's handle and owner record, and the proof of each version that it moves to.

    A proof costs no I/O where the driver's newest fragment is in the manifest.
    """

    def __init__(
        self, port: DatasetPort, query_id: str, policy: CommitPolicy, epochs: _Epochs
    ) -> None:
        self.query_id, self._policy, self._epochs = query_id, policy, epochs
        self.port = port
        """The handle: the dataset at the version on which this driver commits next."""
        self.state = decode_query(port.config, query_id, port.version)
        """The query's state in the handle's config."""
        self.owner: Owner | None = None
        """This driver's own ownership, ``None`` before its claim and after its release."""
        self.broken = False
        """Whether a proof has failed; the driver then no longer commits or releases."""
        self.manifest_updates = 0
        """How many versions this driver has added to the dataset."""
        self.layout = port.layout
        """What fragments had to agree with when this driver started."""
        self.proves = policy.chain_proof
        """Whether versions are proven; off only in the experiment that shows why."""
        self._looked = policy.clock()
        self._landmark: _Landmark = None
        self._fold = 0
        self._claimed = False

    @property
    def fenced(self) -> bool:
        """Return whether the handle's config names another owner than this driver; no I/O."""
        return self.owner is None or self.state.owner != self.owner

    @property
    def next_token(self) -> int:
        """Return the token of the next driver to claim."""
        return (self.state.owner.token if self.state.owner else 0) + 1

    def reopen(self) -> None:
        """Read the store, and move to the newest version.

        :raises DatasetNotFoundError, DatasetRestoredError, CommitStateUnknownError: it does not
            hold this driver's epochs, or that cannot be proven.
        """
        before, known = self.port.version, self.known
        newest = self.port.latest()
        self._looked = self._policy.clock()
        self.recognise(newest, known)
        self._move_to(newest)
        self._prove(since=before)

    def refresh(self, *, strictly: bool) -> None:
        """Read the store if the last read is long ago; with ``strictly`` in any case.

        Lance checks a commit against the versions since its handle, and ignores those that were
        cleaned up, barriers included (seen on pylance 14.0.2). So a driver that hung until its
        successor's barrier was gone must read for itself. A commit does not count as a read: it
        lands on top of its handle, even if the dataset was dropped.
        """
        aged = self._policy.clock().since(self._looked) > self._policy.fresh_seconds
        if strictly or aged:
            self.reopen()
        if aged:
            self.refuse_dropped()

    def newest_state(self) -> QueryState:
        """Read the query's state at the newest version; the handle stays."""
        known = self.known
        port = self.port.latest()
        self.recognise(port, known)
        return decode_query(port.config, self.query_id, port.version)

    def send(
        self, change: Change, stamp: Mapping[str, str] | None = None, *, prove: bool = True
    ) -> bool:
        """Commit one change on top of the handle, once, and move to the version it became.

        :returns: whether it took so long that it may have landed below the newest version.
        :raises DatasetNotFoundError, DatasetRestoredError, CommitStateUnknownError: it landed, and
            the version below it does not hold this driver's epochs.
        """
        began, before = self._policy.clock(), self.port.version
        landed = self.port.commit(change, stamp)
        self.manifest_updates += 1
        slow = self._policy.clock().since(began) > self._policy.slow_seconds
        if slow and stamp is None and landed.latest().version != landed.version:
            raise CommitStateUnknownError(
                f"{type(change).__name__} landed as version {landed.version} of {landed.uri} after "
                "it was held up, and others have committed since"
            )
        if prove:
            self.recognise(landed, self.known)
            # On a local disk, the dataset's files were checked before the epoch.
            looked = stamp is not None and self.port.is_local
            if not looked and not isinstance(change, Overwrite | Upsert):
                self._refuse_other(landed)
        self._move_to(landed)
        if prove and landed.version > before + 1:
            self._prove(since=before)
        return slow

    def _move_to(self, port: DatasetPort) -> None:
        self.state = self._state_at(port)
        self.port = port

    def _state_at(self, port: DatasetPort) -> QueryState:
        """Return the state in a handle's config; most commits leave it unchanged."""
        if port.config is self.port.config or port.config == self.port.config:
            return self.state
        return decode_query(port.config, self.query_id, port.version)

    def hold(self, owner: Owner | None) -> None:
        """Record that this driver has become the owner, or has given the query up."""
        self.owner = owner

    def adopt_layout(self) -> None:
        """Record that this driver has changed the schema itself."""
        self.layout = self.port.layout

    def note_fold(self) -> None:
        """Record that the config proves all epochs; called after a claim and after a fold."""
        self._landmark, self._claimed = _FOLDED, True
        self._fold = self.state.folded_version

    def note_epoch(self, epoch: Epoch, base: DatasetPort) -> None:
        """Record what proves an epoch that has just landed on top of ``base``."""
        # A complete epoch is a strict commit, and each one replaces the fragments before.
        adds = epoch.fragments and epoch.mode.effect.always_adds
        self._landmark = _Added(self.port, base) if adds else None

    def note_found(self) -> None:
        """Record that only history proves an epoch found after its answer was lost."""
        self._landmark = None

    @property
    def known(self) -> Known:
        """Return what every handle opened from now on must show."""
        fold = max(self._fold, self.state.folded_version)
        return Known(self.port.version, self.owner or self.state.owner, fold)

    def recognise(self, port: DatasetPort, known: Known) -> None:
        """Refuse another dataset, or an older state of this one; no I/O.

        :param known: what was known before the port was opened: another thread may commit.
        :raises DatasetNotFoundError: the dataset has fewer versions or no trace of the query.
        :raises DatasetRestoredError: its owner record or its fold is older than the driver's.
        """
        if not self.proves:
            return
        if port.version < known.version:
            raise self.broke(_dropped(port, f"was at version {known.version}, is at "))
        seen = self._state_at(port)
        held, found = known.owner, seen.owner
        if held is None:
            return
        if found is None:
            raise self.broke(_dropped(port, f"no longer knows query {self.query_id!r} at "))
        # Each claim folds, so a restored older owner has an older fold. If the fold is not older,
        # another driver's claim hung until the newer claims were cleaned up: this driver is fenced.
        older = found.token < held.token or found == held
        if older and seen.folded_version < known.fold:
            raise self.broke(
                DatasetRestoredError(
                    f"query {self.query_id!r} in {port.uri} is held by token {found.token} at "
                    f"version {port.version}, with history folded up to version "
                    f"{seen.folded_version}; this driver has seen token {held.token} and fold "
                    f"{known.fold}. An older version was restored, and epochs are gone. "
                    f"{_START_AGAIN}"
                )
            )

    def _refuse_other(self, landed: DatasetPort) -> None:
        """Refuse a commit that landed right after the handle's version without its oldest fragment.

        The dataset was then dropped, and another one has reached the same version number. No I/O.

        :raises DatasetNotFoundError: it is another dataset.
        """
        oldest = self.port.oldest_fragment()
        if landed.version != self.port.version + 1 or not self.proves:
            return
        if oldest is not None and not landed.has_fragment(oldest):
            raise self.broke(_dropped(landed, f"was at version {self.port.version}, is at "))

    def _prove(self, *, since: int) -> None:
        """Prove that the handle's version was made from the version the handle stood at before.

        :param since: the version at which the driver's epochs were last proven.
        :raises DatasetRestoredError: an older version was restored meanwhile.
        :raises CommitStateUnknownError: versions were cleaned up, so it cannot be proven.
        """
        port = self.port
        if not self.proves or self.owner is None or port.version == since:
            return
        if not self._claimed:
            return  # the claim reads the whole history itself
        if self.state.owner is None or self.state.owner.token > self.owner.token:
            return  # the newer owner checks, and this driver no longer commits
        added = self._landmark.fragment if isinstance(self._landmark, _Added) else None
        if added is not None and port.has_fragment(added):
            return
        if self._landmark is _FOLDED and self.state.owner == self.owner:
            return  # recognised: the config has this fold or a later one
        newest = self._epochs.watermark.epoch
        for version, properties in versions_of(port, since):
            if properties is None:
                raise self.broke(
                    CommitStateUnknownError(
                        f"whether epoch {newest} of query {self.query_id!r} is still in {port.uri} "
                        f"cannot be seen: version {version}, between {since} and {port.version}, "
                        "was cleaned up, and it may have restored an older one. The next start "
                        "compares dataset and checkpoint; let cleanup keep versions for longer "
                        "than an hour"
                    )
                )
            restored = port.restored(version)
            if restored is not None and restored < since:
                error = self.broke(
                    DatasetRestoredError(
                        f"version {version} of {port.uri} restored version {restored} under the "
                        f"driver of query {self.query_id!r}, which had committed epoch {newest} by "
                        f"version {since}. {_START_AGAIN}"
                    )
                )
                self._epochs.refuse_lost()
                raise error
        self._refuse_beside(since)

    def _refuse_beside(self, since: int) -> None:
        """Refuse if the version after the driver's own was certainly not made from it."""
        landmark = self._landmark
        added = landmark.fragment if isinstance(landmark, _Added) else None
        self._landmark = None  # something replaced it; from here on, history proves the epoch
        following = self.port.at(since + 1) if added is not None else None
        if following and following.is_made_without(added):
            raise self.broke(
                CommitStateUnknownError(
                    f"epoch {self._epochs.watermark.epoch} of query {self.query_id!r} landed as "
                    f"version {since} of {self.port.uri}, and version {since + 1} was not made "
                    "from it. The next start compares dataset and checkpoint"
                )
            )

    def refuse_dropped(self) -> None:
        """Refuse a dataset whose files are gone; one request.

        :raises DatasetNotFoundError: the newest version references data files that do not exist.
        """
        if not self.proves or self.port.is_intact():
            return
        self.reopen()  # a cleanup may have removed what the handle's version references
        if not self.port.is_intact():
            raise self.broke(_overwritten(self.port, self.query_id))

    def broke(self, error: LanceStreamError) -> LanceStreamError:
        """Record that a proof failed; return the error that says so."""
        self.broken = True
        return error


def _overwritten(port: DatasetPort, query_id: str) -> DatasetNotFoundError:
    """Return the error that names the version hidden by a commit on a dropped dataset."""
    intact = port.newest_intact()
    back = "Start the query with a new checkpointLocation, which reads the source again"
    if intact is not None:
        typed = command_line("resolve", "rewind", port.uri, query_id, "--intact", "--yes")
        back = f"Take the query back to version {intact}, the newest that can be read: {typed}"
    return DatasetNotFoundError(
        f"version {port.version} of {port.uri} refers to data files that are not there: the "
        f"dataset was dropped, and a commit of a running stream landed on what replaced it. {back}"
    )


def _dropped(port: DatasetPort, what: str) -> DatasetNotFoundError:
    return DatasetNotFoundError(
        f"{port.uri} {what}version {port.version}: it was dropped and recreated under this driver. "
        "Start the query with a new checkpointLocation, which reads the source again"
    )
