"""Ours: the committer without Spark, the sink with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from lance.fragment import write_fragments
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import NO_EPOCH, Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.spark.sink import LanceSink
from benchmarks.contestants.lance_table import lance_facts, lance_uri, opened
from benchmarks.contestants.table import NO_OPTIONS, QUERY, STREAM_QUERY, Facts, Table


class LanceStream(Table):
    """Epochs through the protocol: a claim, one commit each, a fold after every tenth."""

    def __init__(
        self,
        place: str,
        schema: pa.Schema,
        *,
        query_id: str = QUERY,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        super().__init__()
        self.uri = lance_uri(place)
        port = opened(self.uri, schema, storage)
        driver = Driver("run", "checkpoint-id", "/checkpoint")
        # As Spark leaves it when a driver dies right after the sink's commit: planned, not done.
        planned = exact_watermark(port, query_id).epoch
        checkpoint = Checkpoint(
            driver.checkpoint_location,
            driver.checkpoint_id,
            planned=planned,
            committed=max(NO_EPOCH, planned - 1),
        )
        self.committer = DriverSession(port, query_id, checkpoint)
        self.committer.prepare()
        self.committer.identify(driver)

    @property
    def port(self) -> LanceDatasetPort:
        """Return the handle at the last commit."""
        port: Any = self.committer.port
        return port

    def commit(self, epoch_id: int, rows: pa.Table) -> None:
        plan = self.committer.begin(epoch_id)
        if plan.decision is not Decision.FULL_COMMIT:
            return
        started_at = utc_now()
        epoch = Epoch(
            epoch_id=epoch_id,
            mode=OutputMode.APPEND,
            fragments=write_fragments(rows, self.port.dataset),
            rows=rows.num_rows,
            bytes=rows.nbytes,
            started_at=started_at,
        )
        plan.commit(epoch)

    def count_rows(self) -> int:
        return self.port.dataset.count_rows()

    def facts(self) -> Facts:
        return lance_facts(self.uri)

    def close(self) -> None:
        self.committer.release()


@contextmanager
def stream(
    df: DataFrame,
    place: str,
    *,
    checkpoint: str | None = None,
    query_id: str = STREAM_QUERY,
    storage: Mapping[str, str] = NO_OPTIONS,
    options: Mapping[str, Any] = NO_OPTIONS,
    **trigger: Any,
) -> Iterator[StreamingQuery]:
    """Stream with the sink; see :class:`.streams.Stream`.

    :param options: more of the sink's own, such as ``autoCompactEvery``, and its ``on_step``.
    """
    sink = LanceSink(
        uri=lance_uri(place),
        queryId=query_id,
        checkpointLocation=checkpoint or f"{place}/checkpoint",
        createIfMissing=True,
        storageOptions=dict(storage),
        **options,
    )
    query = sink.start(df, **(trigger or {"availableNow": True}))
    try:
        yield query
    finally:
        query.stop()
        sink.release()
