"""A dataset's health in numbers, and the versions that it still has.

The versions come from the names of their manifests: one listing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error

__all__ = [
    "DatasetMetrics",
    "Index",
    "IndexPart",
    "Version",
    "list_versions",
    "measure",
    "measure_fragments",
    "read_indices",
    "uncovered_rows",
]

_RAGGED = 0.1
_SUFFIX = ".manifest"
_NAME = re.compile(r"[0-9]{1,20}")
_DESCENDING = 20
"""Digits of a name in Lance's newer scheme, which counts down from 2**64 - 1."""


@dataclass(frozen=True, slots=True)
class DatasetMetrics(JsonRecord):
    """One dataset version in numbers.

    ``ragged_fragments`` have more than a tenth of their rows deleted, which alone makes Lance
    rewrite a fragment.

    ``bytes`` are those of the files that this version references, ``manifest_bytes`` those of its
    manifest, ``history_bytes`` those of the manifests of all ``versions``; 0 if the store does not
    say. ``uncovered_rows`` are those that some index does not cover.
    """

    version: int
    rows: int
    deleted_rows: int
    fragments: int
    small_fragments: int
    ragged_fragments: int
    files: int
    bytes: int
    uncovered_rows: int = 0
    versions: int = 0
    manifest_bytes: int = 0
    history_bytes: int = 0


def measure(
    port: LanceDatasetPort,
    target_rows: int,
    storage_options: Mapping[str, str] | None = None,
    versions: Sequence[Version] | None = None,
) -> DatasetMetrics:
    """Measure a dataset: its manifest, its index statistics, one listing of its versions.

    :param target_rows: a fragment with fewer live rows counts as small.
    :param versions: what that listing would give, if it is known.
    :raises DatasetNotFoundError: the dataset is gone.
    """
    if versions is None:
        versions = list_versions(port, storage_options)
    if not versions:
        port.latest()  # raises if the dataset is gone
    return replace(
        measure_fragments(port, target_rows),
        uncovered_rows=max(uncovered_rows(port).values(), default=0),
        versions=len(versions),
        manifest_bytes=versions[-1].size if versions else 0,
        history_bytes=sum(version.size for version in versions),
    )


def measure_fragments(port: LanceDatasetPort, target_rows: int) -> DatasetMetrics:
    """Measure what the manifest says, without I/O; the other numbers are 0."""
    fragments = [each.metadata for each in port.dataset.get_fragments()]
    live = [each.physical_rows - each.num_deletions for each in fragments]
    files = [file for each in fragments for file in each.files]
    return DatasetMetrics(
        version=port.version,
        rows=sum(live),
        deleted_rows=sum(each.num_deletions for each in fragments),
        fragments=len(fragments),
        small_fragments=sum(rows < target_rows for rows in live),
        ragged_fragments=sum(
            each.num_deletions > _RAGGED * each.physical_rows for each in fragments
        ),
        files=len(files),
        bytes=sum(file.file_size_bytes or 0 for file in files),
    )


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A part of an index: the live rows of its fragments, and the bytes of its files."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Index:
    """An index: its parts, oldest first, and how many rows are in none of them."""

    parts: tuple[IndexPart, ...]
    uncovered: int


def read_indices(port: LanceDatasetPort) -> dict[str, Index]:
    """Return the indices by name, except Lance's own; from the manifest, no index is opened."""
    dataset = port.dataset
    try:
        found: list[Any] = dataset.describe_indices()
        rows = {
            each.fragment_id: each.metadata.physical_rows - each.metadata.num_deletions
            for each in dataset.get_fragments()
        }
    except LANCE_ERRORS as error:
        port.latest()  # raises if the dataset is gone
        raise read_error(port.uri, error) from error
    indices = {}
    for each in sorted(found, key=lambda each: str(each.name)):
        if each.name.startswith("__"):
            continue
        covered = [set(segment.fragment_ids) & rows.keys() for segment in each.segments]
        parts = tuple(
            IndexPart(sum(rows[number] for number in numbers), segment.size_bytes or 0)
            for numbers, segment in zip(covered, each.segments, strict=True)
        )
        left = rows.keys() - set().union(*covered)
        indices[each.name] = Index(parts, sum(rows[number] for number in left))
    return indices


def uncovered_rows(port: LanceDatasetPort) -> dict[str, int]:
    """Return how many rows each index does not cover, except Lance's own indices."""
    return {name: index.uncovered for name, index in read_indices(port).items()}


@dataclass(frozen=True, slots=True)
class Version:
    """One version: its manifest's size in bytes, 0 if unknown, and when it was written."""

    number: int
    size: int
    written: datetime


def list_versions(
    port: LanceDatasetPort, storage_options: Mapping[str, str] | None = None
) -> list[Version]:
    """Return the versions in order.

    Their times are the store's own, so writers with skewed clocks make no version look old. If
    pyarrow does not serve the store, each manifest is read instead, for its writer's time.

    :raises StorageUnavailableError: the store did not answer.
    """
    try:
        entries = open_files(f"{port.uri}/_versions", storage_options).entries("")
    except SpecError:
        return _read_all(port)
    found = [
        Version(_number(text), entry.size, entry.modified)
        for entry in entries
        for text in [entry.name.removesuffix(_SUFFIX)]
        if entry.name.endswith(_SUFFIX) and _NAME.fullmatch(text) and entry.modified is not None
    ]
    return sorted(found, key=lambda version: version.number)


def _number(text: str) -> int:
    return 2**64 - 1 - int(text) if len(text) == _DESCENDING else int(text)


def _read_all(port: LanceDatasetPort) -> list[Version]:
    try:
        versions: list[Any] = port.dataset.versions()
    except LANCE_ERRORS as error:
        raise read_error(port.uri, error) from error
    return [
        Version(each["version"], 0, each["timestamp"].astimezone(UTC))
        for each in sorted(versions, key=lambda each: each["version"])
    ]
