"""Proof that the version a driver sees was made from the driver's own epochs.

A dataset can be dropped and recreated. An older version can be restored over the newest. A paused
commit can land under a version number that a cleanup freed. Each time, a commit succeeds on top of
a version that lacks earlier epochs.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    DatasetNotFoundError,
    DatasetRestoredError,
    FencedError,
    HistoryGapError,
    LanceStreamError,
    SchemaMismatchError,
)
from airflow_provider_lance.protocol.commands import restore_line
from airflow_provider_lance.protocol.model import Epoch, OutputMode, Owner
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.watermark import versions_of

if TYPE_CHECKING:
    from airflow_provider_lance.protocol.session import DriverSession

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


class Known(NamedTuple):
    """What a driver knew of the dataset at one moment: version, owner and last fold."""

    version: int
    owner: Owner | None
    fold: int


class Chain:
    """One driver's proof; costs no I/O where the driver's newest fragment is in the manifest."""

    def __init__(self, view: DriverSession) -> None:
        self._view = view
        self._landmark: _Landmark = None
        self._fold = 0
        self._claimed = False
        self._layout = view.port.layout
        self.broken = False
        """Whether a proof has failed; the driver then no longer commits or releases."""

    def note_fold(self) -> None:
        """Record that the config proves all epochs; called after a claim and after a fold."""
        self._landmark, self._claimed = _FOLDED, True
        self._fold = self._view.state.folded_version

    def note_epoch(self, epoch: Epoch, base: DatasetPort) -> None:
        """Record what proves an epoch that has just landed on top of ``base``."""
        # A complete epoch is a strict commit, and each one replaces the fragments before.
        adds = epoch.fragments and epoch.mode is not OutputMode.COMPLETE
        self._landmark = _Added(self._view.port, base) if adds else None

    def note_found(self) -> None:
        """Record that only history proves an epoch found after its answer was lost."""
        self._landmark = None

    @property
    def known(self) -> Known:
        """Return what every handle opened from now on must show."""
        view = self._view
        fold = max(self._fold, view.state.folded_version)
        return Known(view.port.version, view.owner or view.state.owner, fold)

    def recognise(self, port: DatasetPort, known: Known) -> None:
        """Refuse another dataset, or an older state of this one; no I/O.

        :param known: what was known before the port was opened: another thread may commit.
        :raises DatasetNotFoundError: the dataset has fewer versions or no trace of the query.
        :raises DatasetRestoredError: its owner record or its fold is older than the driver's.
        """
        view = self._view
        if not view.policy.chain_proof:
            return
        if port.version < known.version:
            raise self._broken(_dropped(port, f"was at version {known.version}, is at "))
        seen = view.state_at(port)
        held, found = known.owner, seen.owner
        if held is None:
            return
        if found is None:
            raise self._broken(
                _dropped(port, f"has no trace of query {view.query_id!r} any more at ")
            )
        # Each claim folds, so a restored older owner has an older fold. If the fold is not older,
        # another driver's claim hung until the newer claims were cleaned up: this driver is fenced.
        older = found.token < held.token or found == held
        if older and seen.folded_version < known.fold:
            raise self._broken(
                DatasetRestoredError(
                    f"query {view.query_id!r} in {port.uri} is held by token {found.token} at "
                    f"version {port.version}, with history folded up to version "
                    f"{seen.folded_version}; this driver has seen token {held.token} and fold "
                    f"{known.fold}. Somebody restored an older version, "
                    "and epochs went with it. Start the stream again: it names them and both ways "
                    "out"
                )
            )

    def refuse_other(self, landed: DatasetPort) -> None:
        """Refuse a commit that landed right after the handle's version without its oldest fragment.

        The dataset was then dropped, and another one has reached the same version number. No I/O.

        :raises DatasetNotFoundError: it is another dataset.
        """
        view = self._view
        oldest = view.port.oldest_fragment()
        if landed.version != view.port.version + 1 or not view.policy.chain_proof:
            return
        if oldest is not None and not landed.has_fragment(oldest):
            raise self._broken(_dropped(landed, f"was at version {view.port.version}, is at "))

    def prove(self, *, since: int) -> None:
        """Prove that the handle's version was made from the version the handle stood at before.

        :param since: the version at which the driver's epochs were last proven.
        :raises DatasetRestoredError: an older version was restored meanwhile.
        :raises CommitStateUnknownError: versions were cleaned up, so it cannot be proven.
        """
        view = self._view
        port = view.port
        if not view.policy.chain_proof or view.owner is None or port.version == since:
            return
        if not self._claimed:
            return  # the claim reads the whole history itself
        if view.state.owner is None or view.state.owner.token > view.owner.token:
            return  # the newer owner checks, and this driver no longer commits
        added = self._landmark.fragment if isinstance(self._landmark, _Added) else None
        if added is not None and port.has_fragment(added):
            return
        if self._landmark is _FOLDED and view.state.owner == view.owner:
            return  # recognised: the config has this fold or a later one
        for version, properties in versions_of(port, since):
            if properties is None:
                raise self._broken(
                    CommitStateUnknownError(
                        f"whether epoch {view.watermark.epoch} of query {view.query_id!r} is "
                        f"still in {port.uri} cannot be seen: version {version} was cleaned up "
                        f"between version {since} and {port.version}, and it may have restored an "
                        "older one. The next start compares dataset and checkpoint; let cleanup "
                        "keep versions for longer than an hour"
                    )
                )
            restored = port.restored(version)
            if restored is not None and restored < since:
                self.broken = True
                view.refuse_lost()
                raise self._broken(
                    DatasetRestoredError(
                        f"version {version} of {port.uri} brought version {restored} back under "
                        f"the driver of query {view.query_id!r}, which had committed epoch "
                        f"{view.watermark.epoch} by version {since}. Start the stream again: it "
                        "names the epochs that are gone and both ways out"
                    )
                )
        self._refuse_beside(since)

    def _refuse_beside(self, since: int) -> None:
        """Refuse if the version after the driver's own was certainly not made from it."""
        view, landmark = self._view, self._landmark
        added = landmark.fragment if isinstance(landmark, _Added) else None
        self._landmark = None  # something replaced it; from here on, history proves the epoch
        following = view.port.at(since + 1) if added is not None else None
        if following and following.is_made_without(added):
            raise self._broken(
                CommitStateUnknownError(
                    f"epoch {view.watermark.epoch} of query {view.query_id!r} landed as version "
                    f"{since} of {view.port.uri}, and version {since + 1} was not made from it. "
                    "The next start compares dataset and checkpoint"
                )
            )

    def refuse_dropped(self) -> None:
        """Refuse a dataset whose files are gone; one request.

        :raises DatasetNotFoundError: the newest version references data files that do not exist.
        """
        view = self._view
        if not view.policy.chain_proof or view.port.is_intact():
            return
        view.reopen()  # a cleanup may have removed what the handle's version references
        if not view.port.is_intact():
            raise self._broken(_overwritten(view.port))

    def holds_landed(self, epoch: Epoch, base: DatasetPort) -> bool:
        """Return whether an epoch whose commit was slow is part of the newest version.

        Lance writes a manifest under the number that was free when it checked. If others took that
        number while the writer was paused, and a cleanup freed it again, the write succeeds below
        the newest version (seen on pylance 14.0.2).

        :raises DatasetRestoredError: an older version was restored over it.
        :raises CommitStateUnknownError: it cannot be proven.
        """
        view = self._view
        landed = view.port
        known = self.known
        newest = landed.latest()
        self.recognise(newest, known)
        if not view.policy.chain_proof or newest.version == landed.version:
            return True
        added = landed.added_since(base) if epoch.fragments else None
        if added is not None and newest.has_fragment(added):
            return True
        missing = False
        for version, properties in versions_of(newest, landed.version):
            restored = None if properties is None else newest.restored(version)
            missing |= properties is None
            if restored is not None and restored < landed.version:
                raise self._broken(
                    DatasetRestoredError(
                        f"version {version} of {newest.uri} brought version {restored} back, and "
                        f"took epoch {epoch.epoch_id} of query {view.query_id!r} with it. Start "
                        "the stream again: the epoch is written again"
                    )
                )
        following = newest.at(landed.version + 1) or newest
        if added is not None and following.is_made_without(added):
            return False
        if not missing:
            return True
        raise CommitStateUnknownError(
            f"epoch {epoch.epoch_id} of query {view.query_id!r} landed as version "
            f"{landed.version} of {newest.uri} after its commit was held up, and versions up to "
            f"{newest.version} that would show whether it is part of the table were cleaned up. "
            "The next start says what to do; let cleanup keep versions for longer"
        )

    def refuse_other_layout(self) -> None:
        """Raise :class:`SchemaMismatchError` if the schema changed since this driver started."""
        view = self._view
        if view.port.layout != self._layout:
            raise SchemaMismatchError(
                f"the schema of {view.port.uri} was changed while query {view.query_id!r} was "
                f"running (seen at version {view.port.version}); nothing of this epoch was "
                "committed. Start it again: the stream's columns are then checked against the new "
                "schema"
            )

    def inspect_landing(self, epoch: Epoch, base: int) -> None:
        """Raise if a commit landed where it should not have.

        Reads the versions that others committed meanwhile, if a newer owner is among them or the
        epoch is an upsert.

        Lance rebases an append over a changed schema (seen on pylance 14.0.2). A stale append that
        lands before the newer owner's barrier is allowed: that owner sees it.

        :raises SchemaMismatchError, FencedError, HistoryGapError: the message names the epoch's
            version.
        """
        view, epoch_id = self._view, epoch.epoch_id
        if view.port.layout != self._layout:
            raise SchemaMismatchError(
                f"the schema of {view.port.uri} was changed at the moment in which epoch "
                f"{epoch_id} of query {view.query_id!r} landed, as version {view.port.version}: "
                "its values in columns that were altered or added read as null there. Write that "
                "epoch's rows again from the source, and stop streams before a schema is changed"
            )
        between = range(base + 1, view.port.version)
        upsert = epoch.mode is OutputMode.UPDATE
        if not (view.fenced or upsert):
            return
        if all(view.port.properties(version) is not None for version in between):
            return
        if view.fenced:
            raise FencedError(
                f"epoch {epoch_id} of query {view.query_id!r} landed as version "
                f"{view.port.version} of {view.port.uri} although a newer owner holds the query, "
                f"and versions after {base} that would show which of them came first were cleaned "
                "up: its rows may be there twice. Compare them with the source, and let cleanup "
                "keep versions for longer than a driver may hang"
            )
        raise HistoryGapError(
            f"epoch {epoch_id} of query {view.query_id!r} landed as version {view.port.version} of "
            f"{view.port.uri}, and versions after {base} were cleaned up while its commit was on "
            "its way. If one of them was a compaction, rows that the epoch replaces are there "
            "twice. Look for merge keys that occur twice, and let cleanup keep versions for longer"
        )

    def _broken(self, error: LanceStreamError) -> LanceStreamError:
        self.broken = True
        return error


def _overwritten(port: DatasetPort) -> DatasetNotFoundError:
    """Return the error that names the version hidden by a commit on a dropped dataset."""
    intact = port.newest_intact()
    back = (
        "No version in the store is intact. Start"
        if intact is None
        else f"Version {intact} is the newest that can be read: {restore_line(port.uri, intact)} "
        "makes it the newest again. Then start"
    )
    return DatasetNotFoundError(
        f"version {port.version} of {port.uri} refers to data files that are not there: the "
        f"dataset was dropped, and a commit of a running stream landed on what replaced it. {back} "
        "the query with a new checkpointLocation, which reads the source again"
    )


def _dropped(port: DatasetPort, what: str) -> DatasetNotFoundError:
    return DatasetNotFoundError(
        f"{port.uri} {what}version {port.version}: it was dropped and recreated under this driver. "
        "Start the query with a new checkpointLocation, which reads the source again"
    )
