"""Lance behind the port: open a dataset, commit to it; pylance's errors become this package's."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, assert_never

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    LanceStreamError,
)
from airflow_provider_lance.protocol.added_columns import larger_schema
from airflow_provider_lance.protocol.lance_errors import (
    LANCE_ERRORS,
    is_missing,
    is_panic,
    named_panics,
    read_error,
    reading,
)
from airflow_provider_lance.protocol.port import (
    AddColumns,
    Append,
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.protocol.primary_key import is_primary_key, with_meeting_point
from airflow_provider_lance.protocol.row_ids import carry_row_ids, deletion_of
from airflow_provider_lance.protocol.store_answers import short_answer

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation

__all__ = [
    "CACHE_BYTES",
    "LOOK_CACHE_BYTES",
    "LanceDatasetPort",
    "lance_session",
    "open_dataset",
]

CACHE_BYTES = 256 * 1024 * 1024
"""The memory that Lance may use for one dataset that is written."""

LOOK_CACHE_BYTES = 2 * 1024 * 1024
"""The same for a dataset that is only read: a triggerer may hold a hundred of them."""

_KEEPING_ROWS = {"BaseOperation", "CreateIndex", "Project", "Rewrite", "UpdateConfig"}
"""Operations that change no row. `BaseOperation` has no class of its own in pylance 14.0.2."""

_METADATA_SHARE = 8
"""The fraction that holds manifests and file footers, as a divisor. Indices, which an upsert reads
whole, get the rest: 16 bytes for each integer key (pylance 14.0.2)."""


def lance_session(cache_bytes: int = CACHE_BYTES) -> Any:
    """Return a new Lance session for one handle, with caches of at most ``cache_bytes``.

    Lance's own default keeps each version's manifest, up to 1 GiB, and 6 GiB of index. Separately
    opened handles share no cache: Lance finds some of what it cached by URI and version alone
    (lance-format/lance#8916), even if the dataset was dropped and recreated since.
    """
    import lance

    metadata = cache_bytes // _METADATA_SHARE
    return lance.Session(  # type: ignore[attr-defined]
        metadata_cache_size_bytes=metadata, index_cache_size_bytes=cache_bytes - metadata
    )


def open_dataset(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> LanceDatasetPort:
    """Open a Lance dataset at its newest version, or at the given one.

    :param cache_bytes: the most that Lance's caches hold, for this handle and all derived from it.
    :raises DatasetNotFoundError: there is no dataset at ``uri``, or it does not have this version.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    import lance

    chosen = dict(storage_options or {})
    with reading(uri):
        dataset = lance.dataset(
            uri,
            version=version,
            storage_options=chosen or None,
            session=lance_session(cache_bytes),
        )
        return LanceDatasetPort(dataset, chosen)


class LanceDatasetPort:
    """A live pylance handle; commits on it cost no listing of versions."""

    def __init__(
        self,
        dataset: lance.LanceDataset,
        storage_options: Mapping[str, str] | None = None,
        *,
        seen_file: str = "",
    ) -> None:
        self._dataset = dataset
        self._seen_file = seen_file
        self.uri = str(dataset.uri)
        """The dataset's URI."""
        self.is_local = self.uri.startswith("/")
        """Whether the dataset is on a disk, or on what looks like one."""
        self.version = int(dataset.version)
        """The version at which the handle stands."""
        self.storage_options = dict(storage_options or {})
        """The options that opened the dataset, secrets included."""
        self._config: Mapping[str, str] | None = None
        self._history: lance.LanceDataset | None = None
        self._restored: dict[int, int] = {}
        self._reading = threading.Lock()

    @property
    def dataset(self) -> lance.LanceDataset:
        """Return the pylance handle, for writers and for maintenance."""
        return self._dataset

    @property
    def config(self) -> Mapping[str, str]:
        """Return the manifest config at that version; costs no I/O."""
        if self._config is None:
            self._config = self._dataset.config()
        return self._config

    @property
    def layout(self) -> object:
        """Return the schema with its field ids; costs no I/O."""
        return self._dataset.lance_schema

    def latest(self) -> LanceDatasetPort:
        """Return a handle at the newest version; one listing, with shared caches."""
        with reading(self.uri):
            newest = self._dataset.checkout_version(int(self._dataset.latest_version))
            return LanceDatasetPort(newest, self.storage_options)

    def at(self, version: int) -> LanceDatasetPort | None:
        """Return a handle at a version, ``None`` if it was cleaned up."""
        try:
            return LanceDatasetPort(self._dataset.checkout_version(version), self.storage_options)
        except LANCE_ERRORS as error:
            if is_missing(error):
                return None
            raise read_error(self.uri, error) from error

    def properties(self, version: int) -> Mapping[str, str] | None:
        """Return a version's transaction properties, ``None`` if it was cleaned up.

        Reading one loads that version's whole manifest: 0.5 ms at few fragments, 46 ms at 25,000.
        """
        transaction = self.transaction(version)
        if transaction is None:
            return None
        operation: Any = transaction.operation
        if type(operation).__name__ == "Restore":
            self._restored[version] = int(operation.version)
        return transaction.transaction_properties or {}

    def transaction(self, version: int) -> lance.Transaction | None:
        """Return what a version's commit did, ``None`` if it was cleaned up.

        :raises StorageUnavailableError: the store did not answer.
        """
        import lance

        try:
            # In pylance 14.0.2 a handle cannot be used while a transaction is read from it, nor the
            # other way round ("Already mutably borrowed"), and threads share this port.
            with named_panics(self.uri), self._reading:
                if self._history is None:
                    self._history = self._dataset.checkout_version(self.version)
                found = self._history.read_transaction(version)
        except TypeError as error:
            # pylance 14.0.2 cannot read a compaction that remapped an index; it carries no epoch.
            if "RewrittenIndex" not in str(error):
                raise
            found = lance.Transaction(version - 1, lance.LanceOperation.Rewrite([], []))
        except LANCE_ERRORS as error:
            if is_missing(error):
                return None
            raise read_error(self.uri, error) from error
        return found or lance.Transaction(version - 1, lance.LanceOperation.BaseOperation())

    def restored(self, version: int) -> int | None:
        """Return the version that a version restored; see :class:`.port.DatasetPort`."""
        return self._restored.get(version)

    def changed_rows(self, version: int) -> bool:
        """Return whether a version may have changed rows; see :class:`.port.DatasetPort`."""
        transaction = self.transaction(version)
        operation: Any = transaction.operation if transaction else None
        if type(operation).__name__ == "Append":
            return bool(operation.fragments)
        return type(operation).__name__ not in _KEEPING_ROWS

    def oldest_fragment(self) -> object | None:
        """Return the lowest fragment id and its first data file, since ids alone are reused."""
        ids = self._dataset.fragment_ids()  # in order
        return self._fragment(next(iter(ids))) if ids else None

    def added_since(self, earlier: LanceDatasetPort) -> object | None:
        """Return the highest new fragment id and its first data file."""
        added = self._dataset.fragment_ids().difference(earlier.dataset.fragment_ids())
        return self._fragment(max(added)) if added else None

    def has_fragment(self, fragment: Any) -> bool:
        """Return whether this version has a fragment; microseconds at 25,000 fragments."""
        return bool(self._fragment(fragment[0]) == fragment)

    def is_made_without(self, fragment: Any) -> bool:
        """Compare ids: they grow, and a chain of versions gives each id to one fragment only."""
        found = self._fragment(fragment[0])
        later = max(self._dataset.fragment_ids(), default=-1) > fragment[0]
        return found != fragment if found else not later

    def _fragment(self, number: int) -> tuple[int, str] | None:
        found = self._dataset.get_fragment(number)
        files = found.data_files() if found else []
        return (number, files[0].path) if files else None

    def is_intact(self) -> bool:
        """Return whether the oldest data file that this version references is in the store.

        On a local disk, the file that was seen last is checked instead: a dropped dataset has
        neither.
        """
        if self._seen_file and os.path.exists(self._seen_file):
            return True
        ids = self._dataset.fragment_ids()
        oldest = self._dataset.get_fragment(next(iter(ids))) if ids else None
        files = oldest.data_files() if oldest else []
        if files and files[0].base_id is not None:
            return True  # it is in another place, which a shallow clone references
        # Without rows, check the manifest instead; Lance's newer names for manifests count down.
        named = (2**64 - 1 - self.version, self.version)
        names = [f"data/{files[0].path}"] if files else [f"_versions/{n}.manifest" for n in named]
        if self.is_local:
            seen = next((each for each in names if os.path.exists(f"{self.uri}/{each}")), "")
            # Manifests have the same names in every dataset; data files do not.
            self._seen_file = f"{self.uri}/{seen}" if files and seen else ""
            return bool(seen)
        with reading(self.uri):
            store: Any = self._dataset.new_file_session()  # type: ignore[no-untyped-call]
            return any(store.contains(name) for name in names)

    def newest_intact(self) -> int | None:
        """Return the newest version in the store that is intact; see :class:`.port.DatasetPort`."""
        fresh = open_dataset(self.uri, self.storage_options)  # the caches hold dropped versions
        with reading(self.uri):
            numbers = sorted(int(each["version"]) for each in fresh.dataset.versions())
        ports = map(fresh.at, reversed(numbers))
        return next((port.version for port in ports if port and port.is_intact()), None)

    def commit(
        self, change: Change, properties: Mapping[str, str] | None = None
    ) -> LanceDatasetPort:
        """Commit one change on top of this version; see :class:`.port.DatasetPort`."""
        import lance

        transaction = lance.Transaction(
            read_version=self.version,
            operation=self._operation(change, lance.LanceOperation),
            transaction_properties=dict(properties or {}),
        )
        # No retry inside Lance: a PUT that took effect and whose answer was lost would be sent
        # again under the next version number, and the rows would be duplicated. It also makes an
        # Overwrite a true compare-and-swap. An Append is still rebased over what landed before.
        try:
            landed = lance.LanceDataset.commit(self._dataset, transaction, max_retries=0)
        except BaseException as error:
            if isinstance(error, Exception) or is_panic(error):
                raise self._commit_error(change, error) from error
            raise
        return LanceDatasetPort(landed, self.storage_options, seen_file=self._seen_file)

    def _commit_error(self, change: Change, error: BaseException) -> LanceStreamError:
        from lance.commit import CommitConflictError

        what = f"{type(change).__name__} on version {self.version} of {self.uri}"
        why = short_answer(error)
        if isinstance(error, CommitConflictError):
            return CommitPreemptedError(f"{what} was preempted: {why}")
        # Any other error may have occurred before or after the manifest was written.
        return CommitStateUnknownError(f"{what} ended in {type(error).__name__}: {why}")

    def _operation(self, change: Change, operations: type[LanceOperation]) -> Any:
        match change:
            case Append(fragments):
                return operations.Append(list(fragments))
            case Overwrite(fragments):
                return operations.Overwrite(self._dataset.lance_schema, list(fragments))
            case Configure(updates):
                return operations.UpdateConfig(config_updates=operations.UpdateMap(dict(updates)))
            case Barrier():
                # Without `preserves_nullability`, Lance must assume that the schema was tightened,
                # so it makes every write from an older version retry; that is the barrier.
                return operations.Project(self._dataset.lance_schema)
            case AddColumns(columns):
                with reading(self.uri):
                    return operations.Project(larger_schema(self._dataset, columns))
            case Upsert():
                return operations.Update(**self._upsert(change))
            case _:
                assert_never(change)

    def _upsert(self, change: Upsert) -> dict[str, Any]:
        """Turn "delete these keys, add these fragments" into one Update operation's fields.

        The rows were written elsewhere, and only the keys are searched for, unless their writer did
        so in this version. Where row ids are stable, the new rows carry those that they replace.
        """
        fragments = list(change.fragments)
        stable = self._dataset.has_stable_row_ids
        lookup = change.lookup
        found = lookup.of(change.keys) if lookup and lookup.version == self.version else None
        with named_panics(self.uri), reading(self.uri):
            matched: Any = deletion_of(self._dataset, found) if found else None
            if not matched:
                merge = self._dataset.merge_insert(list(change.merge_keys)).when_matched_delete()
                if stable:
                    merge = merge.use_index(False)  # slower there, see row_ids.look_up
                matched = merge.execute_uncommitted(change.keys)[0].operation
            if stable and fragments:
                fragments = carry_row_ids(self._dataset, matched, fragments, change.keys, found)
        updated = matched.updated_fragments
        if is_primary_key(self._dataset.schema, change.merge_keys):
            updated = with_meeting_point(self._dataset, updated, matched.removed_fragment_ids)
        return {
            "removed_fragment_ids": matched.removed_fragment_ids,
            "updated_fragments": updated,
            "new_fragments": [*matched.new_fragments, *fragments],
            "fields_modified": matched.fields_modified,
            "fields_for_preserving_frag_bitmap": matched.fields_for_preserving_frag_bitmap,
            "update_mode": matched.update_mode,
        }
