"""The versions that a dataset still has, from the names of their manifests: one listing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, read_error

__all__ = ["Version", "list_versions"]

_SUFFIX = ".manifest"
_NAME = re.compile(r"[0-9]{1,20}")
_DESCENDING = 20
"""Digits of a name in Lance's newer scheme, which counts down from 2**64 - 1."""


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
