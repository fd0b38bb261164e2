"""Spark's own sinks: parquet files with their log of epochs, and noop, which writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contestants.streams import Stream
from benchmarks.contestants.table import NO_OPTIONS, STREAM_QUERY


def _built_in(format_: str) -> Stream:
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
        writer = (
            df.writeStream.format(format_)
            .option("checkpointLocation", checkpoint or f"{place}/checkpoint")
            .trigger(**(trigger or {"availableNow": True}))
        )
        query = writer.start(f"{place}/{format_}") if format_ != "noop" else writer.start()
        try:
            yield query
        finally:
            query.stop()

    return stream


parquet = _built_in("parquet")
noop = _built_in("noop")
