"""Follow one query's watermark from look to look; shared by sensor and trigger."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from airflow_provider_lance.exceptions import DatasetNotFoundError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.streaming.dataset import LanceDatasetPort
from airflow_provider_lance.streaming.epoch import Watermark
from airflow_provider_lance.streaming.history import WatermarkReader
from airflow_provider_lance.streaming.properties import decode_query, query_ids, require_query_id

__all__ = ["Follower", "OnMissing", "describe", "seen"]


class OnMissing(StrEnum):
    """What to make of a dataset that is not there, or holds no trace of the query."""

    WAIT = "wait"
    FAIL = "fail"

    @classmethod
    def parse(cls, text: str) -> OnMissing:
        """Read the word that a user writes.

        :raises SpecError: another word.
        """
        try:
            return cls(text)
        except ValueError:
            raise SpecError(f"on_missing must be 'wait' or 'fail', got {text!r}") from None


class Follower:
    """Reads the watermark; keeps the dataset open, so a look costs one listing and what is new."""

    def __init__(self, hook: LanceHook, uri: str, query_id: str, on_missing: OnMissing) -> None:
        self._hook, self._uri, self._on_missing = hook, uri, on_missing
        self._query_id = require_query_id(query_id)
        self._port: LanceDatasetPort | None = None
        self._reader: WatermarkReader | None = None

    def look(self) -> Watermark | None:
        """Return the exact watermark now, ``None`` while dataset or query is missing. Blocks.

        :raises TerminalError: it is missing and must not be, or it cannot be read by this package.
        :raises StorageUnavailableError: the store did not answer.
        """
        try:
            port, reader = self._newest()
        except DatasetNotFoundError:
            if self._on_missing is OnMissing.FAIL:
                raise
            return None
        if not decode_query(port.config, self._query_id, port.version).known:
            if self._on_missing is OnMissing.FAIL:
                raise SpecError(
                    f"query {self._query_id!r} has no trace in {port.uri} at version "
                    f"{port.version}; queries there: {query_ids(port.config) or 'none'}. Correct "
                    "query_id or uri, or wait for it with on_missing='wait'"
                )
            return None
        return reader.at(port)

    def _newest(self) -> tuple[LanceDatasetPort, WatermarkReader]:
        known, self._port = self._port, None
        port = known.latest() if known else self._hook.open(self._uri)
        # A version that went back is another dataset at the same place.
        if self._reader is None or known is None or port.version < known.version:
            self._reader = WatermarkReader(port, self._query_id)
        self._port = port
        return port, self._reader


def seen(watermark: Watermark) -> dict[str, Any]:
    """Return a watermark as sensor and trigger hand it on."""
    return {
        "epoch": watermark.epoch,
        "version": watermark.version,
        "committedAt": watermark.committed_at,
    }


def describe(watermark: Watermark | None) -> str:
    """Return a watermark as a log line ends with it."""
    if watermark is None:
        return "seen=nothing"
    return " ".join(f"{name}={value}" for name, value in seen(watermark).items())
