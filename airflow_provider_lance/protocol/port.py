"""The one port: what the protocol asks of a dataset, and the changes it may commit.

Two adapters: :mod:`~airflow_provider_lance.protocol.dataset` over pylance and
:mod:`~airflow_provider_lance.testing.dataset` in memory, for fast tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from airflow_provider_lance.protocol.model import Epoch, OutputMode
from airflow_provider_lance.protocol.row_ids import KeyLookup

__all__ = [
    "AddColumns",
    "Append",
    "Barrier",
    "Change",
    "Configure",
    "DatasetPort",
    "Overwrite",
    "Upsert",
    "change_for",
]


@dataclass(frozen=True, slots=True)
class Append:
    """Add fragments. Lance rebases it over others' commits, also from a stale handle."""

    fragments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replace all rows, keep schema and config. Strict: any commit since the handle preempts it."""

    fragments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Delete the rows whose merge keys are in ``keys`` and add the fragments, in one commit.

    ``keys`` is an Arrow table with exactly the columns ``merge_keys``, one row per key: first those
    of the fragments' rows, in the rows' order, then those that are only deleted. ``lookup`` is what
    :func:`.row_ids.look_up` found of them, if their writer needed it.
    """

    fragments: Sequence[Any]
    keys: Any
    merge_keys: tuple[str, ...]
    lookup: KeyLookup | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    """Set manifest config keys, or remove those whose value is ``None``.

    Two of these on one key, from the same version, exclude each other.
    """

    updates: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Change nothing, and preempt every Append or Upsert sent from an older version."""


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Add nullable columns, null in every row so far; otherwise as a :class:`Barrier`.

    ``columns`` is an Arrow schema; a struct's new fields are a struct of these.
    """

    columns: Any


Change = Append | Overwrite | Upsert | Configure | Barrier | AddColumns


def change_for(epoch: Epoch) -> Change:
    """Return the one change that makes an epoch visible."""
    match epoch.mode:
        case OutputMode.APPEND:
            return Append(epoch.fragments)
        case OutputMode.COMPLETE:
            return Overwrite(epoch.fragments)
        case OutputMode.UPDATE if epoch.keys is None:
            return Append(epoch.fragments)  # no row landed; the commit carries the epoch's counts
        case OutputMode.UPDATE:
            return Upsert(epoch.fragments, epoch.keys, epoch.merge_keys, epoch.lookup)


class DatasetPort(Protocol):
    """A handle at one version of one dataset; it never moves."""

    @property
    def uri(self) -> str:
        """Return the dataset's URI."""

    @property
    def version(self) -> int:
        """Return the version at which the handle stands."""

    @property
    def is_local(self) -> bool:
        """Return whether a read of the store costs microseconds, as on this host's disks."""

    @property
    def config(self) -> Mapping[str, str]:
        """Return the manifest config at that version; costs no I/O."""

    @property
    def layout(self) -> object:
        """Return what fragments must agree with: equal while earlier fragments still fit.

        Column names are not enough: a column that was altered, or dropped and added again, has a
        new field id, and a fragment with the old id would be read as null.
        """

    def latest(self) -> Self:
        """Return a handle at the newest version.

        :raises DatasetNotFoundError: the dataset is gone.
        :raises StorageUnavailableError: the store did not answer.
        """

    def at(self, version: int) -> Self | None:
        """Return a handle at a version, ``None`` if it was cleaned up.

        :raises StorageUnavailableError: the store did not answer.
        """

    def properties(self, version: int) -> Mapping[str, str] | None:
        """Return the transaction properties of a version, or ``None`` if it was cleaned up.

        :raises StorageUnavailableError: the store did not answer.
        """

    def restored(self, version: int) -> int | None:
        """Return the version that a version restored, ``None`` if it did something else.

        Call it for a version whose properties were read: the answer comes with them.
        """

    def changed_rows(self, version: int) -> bool:
        """Return whether a version may have changed rows: not by compaction, index or config.

        ``True`` for a version that was cleaned up.

        :raises StorageUnavailableError: the store did not answer.
        """

    def oldest_fragment(self) -> object | None:
        """Return what identifies the first fragment; costs no I/O."""

    def added_since(self, earlier: Self) -> object | None:
        """Return what identifies the newest fragment that an earlier version lacks; no I/O."""

    def has_fragment(self, fragment: object) -> bool:
        """Return whether this version has a fragment; costs no I/O."""

    def is_made_without(self, fragment: object) -> bool:
        """Return whether this version was certainly not made from the one that added a fragment.

        ``False`` where the version has it, and where a compaction may have replaced it; no I/O.
        """

    def is_intact(self) -> bool:
        """Return whether the oldest data file that this version references exists: one request.

        It does not exist once the dataset was dropped, even if another was created in its place.

        :raises StorageUnavailableError: the store did not answer.
        """

    def newest_intact(self) -> int | None:
        """Return the newest version in the store that is intact; reads every version's manifest.

        :raises StorageUnavailableError: the store did not answer.
        """

    def commit(self, change: Change, properties: Mapping[str, str] | None = None) -> Self:
        """Commit one change on top of this version; return a handle at the version it became.

        :raises CommitPreemptedError: a conflicting commit landed first; nothing of this one did.
        :raises CommitStateUnknownError: the commit may or may not have landed.
        """
