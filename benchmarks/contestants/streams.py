"""How a contestant without a sink of its own is streamed into: by `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions
from benchmarks.contestants.lance_table import LanceTable
from benchmarks.contestants.table import NO_OPTIONS, STREAM_QUERY, Make, Table


class Stream(Protocol):
    """Runs a query into the table of a place, which is made if there is none.

    ``with stream(df, place, processingTime="1 second") as query: …``. At the end of the block the
    query is stopped and its hold given up. Without a trigger it is ``availableNow=True``. The
    checkpoint is kept in the place, unless another one is named.
    """

    def __call__(
        self,
        df: DataFrame,
        place: str,
        *,
        checkpoint: str | None = None,
        query_id: str = STREAM_QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
        **trigger: Any,
    ) -> AbstractContextManager[StreamingQuery]: ...


def stream_into(make: Make) -> Stream:
    """Return the stream into one kind of table."""

    @contextmanager
    def stream(
        df: DataFrame,
        place: str,
        *,
        checkpoint: str | None = None,
        query_id: str = STREAM_QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
        **trigger: Any,
    ) -> Iterator[StreamingQuery]:
        schema = to_arrow_schema(df.schema, timezone="UTC")
        table = make(place, schema, query_id=query_id, storage=storage)
        if isinstance(table, LanceTable):
            write: Callable[[DataFrame, int], None] = _LanceBatches(table, storage)
        else:
            write = _arrow_batches(table)
        query = (
            df.writeStream.option("checkpointLocation", checkpoint or f"{place}/checkpoint")
            .foreachBatch(_tuned(write))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            yield query
        finally:
            query.stop()
            table.close()

    return stream


def _tuned(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Give others the one Spark setting that our sink makes for itself."""
    tuned = False

    def batch(df: DataFrame, epoch_id: int) -> None:
        nonlocal tuned
        if not tuned:
            spare_size_checks(df)
            tuned = True
        write(df, int(epoch_id))

    return batch


def _arrow_batches(table: Table) -> Callable[[DataFrame, int], None]:
    """Bring each epoch to the driver as one Arrow table; the library writes it there."""
    return lambda df, epoch_id: table.epoch(df.toArrow(), epoch_id)


class _LanceBatches:
    """Writes each epoch with our writer, and commits it as the table does."""

    def __init__(self, table: LanceTable, storage: Mapping[str, str]) -> None:
        self._table = table
        self._writer = EpochWriter(
            WriteTask(
                uri=table.uri,
                run_id=uuid4().hex,
                schema=table.dataset.schema,
                small_epoch_rows=SinkOptions.small_epoch_rows,
                target_rows_per_fragment=SinkOptions.target_rows_per_fragment,
                storage_options=dict(storage),
            )
        )

    def __call__(self, df: DataFrame, epoch_id: int) -> None:
        if self._table.known(epoch_id):
            return
        written = self._writer.write(df, self._table.dataset)
        if written.rows:
            self._table.land(epoch_id, written.fragments)
