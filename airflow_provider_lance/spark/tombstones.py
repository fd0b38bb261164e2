"""The side table that remembers deleted keys, so that a late record cannot bring them back.

A row is a key with the sequence of its delete; of a truncate, the key is null. Each has a time from
which maintenance may remove it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    SchemaMismatchError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, lance_session, open_dataset
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, create_error, named_panics
from airflow_provider_lance.protocol.model import Epoch, OutputMode
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.protocol.sides import DELETED_AT, EXPIRES_AT, TOMBSTONES, uri_beside
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["Tombstones"]

_TIME = pa.timestamp("us", "UTC")


class Tombstones:
    """The tombstones of one query's table; several queries that write the table share them."""

    def __init__(
        self, options: SinkOptions, schema: pa.Schema, sides: SideTables, task: WriteTask
    ) -> None:
        """Store the arguments; no I/O.

        :param schema: the columns of a tombstone, without its times.
        """
        times = [pa.field(DELETED_AT, _TIME), pa.field(EXPIRES_AT, _TIME)]
        self._options, self._schema = options, pa.schema([*schema, *times])
        self._sides, self._task = sides, task
        self._uri = uri_beside(options.uri, TOMBSTONES)
        self._port: LanceDatasetPort | None = None

    def newest(self) -> Any:
        """Return a handle of the newest tombstones, ``None`` while there are none.

        :raises SchemaMismatchError: they have other columns.
        :raises StorageUnavailableError: the store did not answer.
        """
        try:
            self._port = self._port.latest() if self._port else self._open()
        except DatasetNotFoundError:
            if TOMBSTONES in self._sides.sessions:
                raise
            return None
        return self._port.dataset

    def leave(self, epoch: Epoch, tombstones: pa.Table) -> None:
        """Remember the keys that an epoch deletes, before its own commit.

        :param tombstones: their keys and sequences.
        :raises LanceStreamError: as :meth:`.side_tables.SideTables.begin` and
            :meth:`.EpochPlan.commit`.
        """
        if not tombstones.num_rows:
            return
        plan = self._sides.begin(TOMBSTONES, epoch.epoch_id, open_port=self._opened)
        if plan is None:
            return
        now, rows = datetime.now(UTC), tombstones.num_rows
        expires = now + timedelta(seconds=self._options.tombstone_retention)
        times = [pa.array([moment] * rows, _TIME) for moment in (now, expires)]
        table = pa.Table.from_arrays([*tombstones.columns, *times], schema=self._schema)
        port: Any = plan.port
        plan.commit(
            Epoch(
                epoch_id=epoch.epoch_id,
                mode=OutputMode.APPEND,
                fragments=self._task.write(table.to_reader(), port.dataset),
                rows=rows,
                bytes=table.nbytes,
                started_at=epoch.started_at,
                ends=epoch.ends,
                digest=self._sides.digest,
            )
        )

    def _open(self) -> LanceDatasetPort:
        options = self._options
        port = open_dataset(self._uri, options.storage_options, cache_bytes=options.cache_bytes)
        if not port.dataset.schema.equals(self._schema):
            raise SchemaMismatchError(
                f"the tombstones of {options.uri}, at {self._uri}, have the columns "
                f"{_columns(port.dataset.schema)}, and mergeKeys and sequenceBy make "
                f"{_columns(self._schema)}: sequences of two kinds cannot be compared. Give the "
                "options that were set before; or, if no record older than the deletes can come "
                "any more, remove that dataset and its entry in the table's config"
            )
        return port

    def _opened(self) -> LanceDatasetPort:
        """Open the tombstones; create them first if there are none."""
        import lance

        try:
            return self._open()
        except DatasetNotFoundError:
            failed = None
        try:
            with named_panics(self._uri):
                made = lance.write_dataset(
                    self._schema.empty_table(),
                    self._uri,
                    mode="create",
                    storage_options=dict(self._options.storage_options) or None,
                    session=lance_session(self._options.cache_bytes),
                )
                # Maintenance keeps it up to date; without it, an epoch reads all tombstones.
                made.create_scalar_index(self._options.merge_keys[0], "BTREE")
        except LANCE_ERRORS as error:
            failed = error
        try:
            return self._open()  # another driver may have created it first
        except DatasetNotFoundError as error:
            raise create_error(self._uri, failed or error) from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
