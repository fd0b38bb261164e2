"""Collect evidence about a dataset as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from airflow_provider_lance.diagnostics.consumers import collect_consumers
from airflow_provider_lance.diagnostics.evidence import (
    DatasetEvidence,
)
from airflow_provider_lance.exceptions import (
    SpecError,
)
from airflow_provider_lance.maintenance.cleanup import ORPHAN_SECONDS
from airflow_provider_lance.maintenance.dataset_metrics import (
    Version,
    list_versions,
    measure,
    uncovered_rows,
)
from airflow_provider_lance.maintenance.options import KEEP_SECONDS, MaintenanceOptions
from airflow_provider_lance.protocol.codec import auto_cleanup
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import Entry, open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error

__all__ = ["collect_dataset"]

_AGES = {"7d": 604_800, "2d": 172_800, "12h": 43_200, "2h": 7_200, "20m": 1_200, "10m": 600}
"""Ages in seconds by the text to type; a cleanup keeps versions of less than 10 minutes."""
_MANIFEST_BYTES = 256 << 20
"""The bytes of manifests that are read for file names; about three seconds on a local disk."""


def collect_dataset(
    port: LanceDatasetPort,
    storage_options: Mapping[str, str] | None = None,
    *,
    orphans: bool = False,
    manifest_bytes: int = _MANIFEST_BYTES,
) -> DatasetEvidence:
    """Measure the dataset; lists its versions.

    :param orphans: count data files that no version references: lists the data files, and reads
        manifests, newest first, up to ``manifest_bytes``.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    # The data files first: a file that a later commit references is then not in the list.
    written = _data_files(port, storage_options) if orphans else None
    versions = list_versions(port, storage_options)
    target_rows = MaintenanceOptions().target_rows(port.config)
    numbers = measure(port, target_rows, storage_options, versions)
    since, found = None, list[Entry]()
    if written is not None:
        since, before = _bound(versions, manifest_bytes)
        found = _unnamed(port, written, since, before)
    now = datetime.now(UTC)
    old = now - timedelta(seconds=ORPHAN_SECONDS)
    return DatasetEvidence(
        numbers=numbers,
        uncovered=uncovered_rows(port),
        auto_cleanup=auto_cleanup(port.config),
        younger={
            text: sum((now - each.written).total_seconds() < age for each in versions)
            for text, age in _AGES.items()
        },
        orphaned_files=len(found),
        orphaned_bytes=sum(entry.size for entry in found),
        orphaned_old=sum(bool(entry.modified and entry.modified <= old) for entry in found),
        orphans_since=since,
        consumers=collect_consumers(port, storage_options),
    )


def _data_files(
    port: LanceDatasetPort, storage_options: Mapping[str, str] | None
) -> list[Entry] | None:
    """Return the data files that no commit in flight can reference; ``None`` if unknown.

    A branch may reference files that the main line no longer does, so with branches the answer is
    unknown.
    """
    try:
        if port.dataset.branches.list():
            return None
        entries = open_files(f"{port.uri}/data", storage_options).entries("")
    except (SpecError, ImportError):
        return None
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    young = datetime.now(UTC) - timedelta(seconds=KEEP_SECONDS)
    return [
        entry
        for entry in entries
        if entry.name.endswith(".lance") and entry.modified and entry.modified <= young
    ]


def _bound(versions: list[Version], manifest_bytes: int) -> tuple[int, datetime | None]:
    """Return the oldest version to read, and when the version before it was written.

    A version references files that were written before it. So only versions after N reference what
    was written after version N, and reading those is enough to decide about it.
    """
    size = versions[-1].size if versions else 0
    for older, newer in reversed(list(pairwise(versions))):
        size += older.size
        if size > manifest_bytes:
            return newer.number, older.written
    return 1, None


def _unnamed(
    port: LanceDatasetPort, written: list[Entry], since: int, before: datetime | None
) -> list[Entry]:
    candidates = {
        entry.name: entry
        for entry in written
        if before is None or (entry.modified and entry.modified > before)
    }
    if not candidates:
        return []
    try:
        for batch in port.latest().dataset.tracked_files(min_version=since):
            for path in batch.column("path").unique().to_pylist():
                candidates.pop(path.removeprefix("data/"), None)
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    return list(candidates.values())
