"""What one version of a dataset changed, proven from its manifest and the one before it.

A transaction says what a commit meant to do. What it did is the difference of two manifests: row
counts are compared, and an operation that is not known is neutral only if nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_lance.exceptions import SourceDataLossError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.source.parts import (
    Part,
    changed_rows,
    commit_time,
    first_file,
    stored_values,
    summary,
    table_rows,
    whole_fragments,
)
from airflow_provider_lance.source.slices import ChangeType, Slice

__all__ = ["Effect", "VersionChange", "effect_of", "snapshot"]


class Effect(Enum):
    """What a version did to the rows of the table."""

    NONE = "changes no rows"
    APPEND = "appends rows"
    DELETE = "deletes rows"
    UPDATE = "updates rows"
    OVERWRITE = "overwrites all rows"
    RESTORE = "restores an older version"
    UNKNOWN = "changes data in a way that its transaction does not tell"


_EFFECTS = {
    "Append": Effect.APPEND,
    "Delete": Effect.DELETE,
    "Update": Effect.UPDATE,
    "Overwrite": Effect.OVERWRITE,
    "Restore": Effect.RESTORE,
    "Rewrite": Effect.NONE,
    "CreateIndex": Effect.NONE,
    "UpdateConfig": Effect.NONE,
    "Project": Effect.NONE,
    "Merge": Effect.NONE,
}
"""By pylance's names of operations; what is missing here is compared manifest by manifest."""

_SAME_FRAGMENTS = ("CreateIndex", "UpdateConfig", "Project")
"""Operations after which the table has exactly the same fragments."""

_SAME_FILES = ("Append", "Delete", "Update", "Rewrite", "CreateIndex", "UpdateConfig")
"""Operations after which a fragment that is still there has its files, unless they name it."""


@dataclass(frozen=True)
class VersionChange:
    """What one version changed: its parts in the order in which they are read."""

    version: int
    timestamp: int
    effect: Effect
    operation: str = ""
    parts: Sequence[Part] = field(default=(), repr=False)
    breaks_fragments: bool = False
    """Whether fragments of earlier versions may be missing or changed from this version on."""

    @property
    def units(self) -> int:
        """Return the number of units in all parts."""
        return sum(part.units for part in self.parts)

    def slices(self, first: int, last: int | None) -> list[Slice]:
        """Return the rows of a range of units; ``None`` for its end: to the last one."""
        found: list[Slice] = []
        before = 0
        for part in self.parts:
            low = max(0, first - before)
            high = part.units if last is None else min(part.units, last - before)
            if low < high:
                found.extend(part.slices(low, high))
            before += part.units
        return found


def snapshot(port: LanceDatasetPort) -> VersionChange:
    """Return a whole version as inserted rows."""
    return VersionChange(
        port.version,
        commit_time(port),
        Effect.APPEND,
        "snapshot",
        whole_fragments(port, port.dataset.fragment_ids(), ChangeType.INSERT, port),
    )


def effect_of(
    port: LanceDatasetPort,
    before: LanceDatasetPort | None,
    *,
    columns: Sequence[str],
    feed: bool = False,
) -> VersionChange:
    """Return what a version changed.

    :param port: the dataset at the version.
    :param before: the dataset at the version before; ``None`` if it was cleaned up.
    :param columns: the columns that are read; what happens to others is no change.
    :param feed: find the rows that an update or delete changed; needs stable row ids.
    :raises SourceDataLossError: the version before is needed, and was cleaned up, or another
        version has its number.
    """
    transaction = port.transaction(port.version)
    operation: Any = transaction.operation if transaction else None
    name = type(operation).__name__
    at = port.version, commit_time(port)
    if port.version == 1:
        rows = whole_fragments(port, port.dataset.fragment_ids(), ChangeType.INSERT, port)
        return VersionChange(*at, Effect.APPEND, name, rows, breaks_fragments=True)
    if before is not None:
        _check_descent(port, before, name, operation)
    effect = _EFFECTS.get(name, Effect.UNKNOWN)
    if effect in (Effect.UPDATE, Effect.DELETE) and not _changes_fragments(operation):
        effect = Effect.APPEND
    if effect in (Effect.NONE, Effect.UNKNOWN) and before is not None:
        effect = _neutral(port, before, name, columns)
    if effect is Effect.UNKNOWN and before is None:
        raise _needs_before(port, f"to tell what {name or 'it'} changed")
    parts: Sequence[Part] = ()
    if effect is Effect.APPEND:
        new = _new_fragments(operation)
        parts = whole_fragments(port, _appended(port, new), ChangeType.INSERT, port)
        added = sum(part.units for part in parts)
        said = sum(each.physical_rows for each in new)
        if added != said or (before and table_rows(before) + added != table_rows(port)):
            effect, parts = Effect.UNKNOWN, ()
    elif feed and effect in (Effect.DELETE, Effect.UPDATE, Effect.OVERWRITE):
        if before is None:
            raise _needs_before(port, "for the rows as they were")
        if effect is Effect.OVERWRITE:
            parts = [
                *whole_fragments(before, before.dataset.fragment_ids(), ChangeType.DELETE, port),
                *whole_fragments(port, port.dataset.fragment_ids(), ChangeType.INSERT, port),
            ]
        elif (found := changed_rows(before, port, operation)) is not None:
            parts = found
        else:
            effect = Effect.UNKNOWN
    # Columns that are renamed or dropped make values disappear from fragments that are the same.
    same = name in _SAME_FRAGMENTS and before is not None and before.layout == port.layout
    breaks = effect is not Effect.APPEND and not same
    return VersionChange(*at, effect, name, parts, breaks_fragments=breaks)


def _needs_before(port: LanceDatasetPort, why: str) -> SourceDataLossError:
    return SourceDataLossError(
        f"version {port.version - 1} of {port.uri} was cleaned up, and version {port.version} "
        f"cannot be read without it {why}. Begin at a later version: start the query with a new "
        "checkpointLocation and query id"
    )


def _changes_fragments(operation: Any) -> bool:
    """Return whether an update or delete changed rows that were there before."""
    gone = getattr(operation, "removed_fragment_ids", None) or getattr(
        operation, "deleted_fragment_ids", None
    )
    return bool(operation.updated_fragments or gone)


def _new_fragments(operation: Any) -> list[Any]:
    """Return the fragments that an append, or an update that only inserts, added."""
    if type(operation).__name__ == "Append":
        return list(operation.fragments)
    return list(getattr(operation, "new_fragments", ()))


def _check_descent(
    port: LanceDatasetPort, before: LanceDatasetPort, name: str, operation: Any
) -> None:
    """Refuse a version before that this one was not made from.

    A commit that was paused may take the number of a version that was cleaned up meanwhile. Its
    last fragment then has an id that this version gives to other rows.
    """
    last = max(before.dataset.fragment_ids(), default=None)
    if last is None or name not in _SAME_FILES:
        return
    if name == "Update" and last in {each.id for each in operation.updated_fragments}:
        return
    here, there = first_file(port, last), first_file(before, last)
    if here and here != there:
        raise SourceDataLossError(
            f"version {port.version} of {port.uri} was not made from the version {before.version} "
            f"that is there now: its fragment {last} is {here}, not {there}. Version "
            f"{before.version} was cleaned up, and a commit that had been paused took its number, "
            "so the rows that it changed can no longer be read. Start the query with a new "
            "checkpointLocation and query id: it begins with a snapshot of what the table holds now"
        )


def _neutral(
    port: LanceDatasetPort, before: LanceDatasetPort, name: str, columns: Sequence[str]
) -> Effect:
    """Return whether a version changed no rows: a compaction keeps their number, others all."""
    if name == "Rewrite":
        same = table_rows(port) == table_rows(before)
    elif name in _SAME_FRAGMENTS:
        ids = port.dataset.fragment_ids() == before.dataset.fragment_ids()
        same = ids and summary(port) == summary(before)
    else:
        same = stored_values(port, columns) == stored_values(before, columns)
    return Effect.NONE if same else Effect.UNKNOWN


def _appended(port: LanceDatasetPort, added: Sequence[Any]) -> list[int]:
    """Return the ids of added fragments: the last ones, by the names of their files."""
    ids = list(port.dataset.fragment_ids())[-len(added) :] if added else []
    files = {each.files[0].path for each in added if each.files}
    return [number for number in ids if first_file(port, number) in files]
