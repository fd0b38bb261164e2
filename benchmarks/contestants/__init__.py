"""Whom we measure ourselves against, each in its best honest form, by name."""

from __future__ import annotations

from benchmarks.contestants import lance_stream, spark_sinks
from benchmarks.contestants.bare import Bare
from benchmarks.contestants.classic import Classic
from benchmarks.contestants.delta import Delta
from benchmarks.contestants.iceberg import Iceberg
from benchmarks.contestants.lance_stream import LanceStream
from benchmarks.contestants.streams import Stream, stream_into
from benchmarks.contestants.successor import Successor
from benchmarks.contestants.table import Make

OURS, FLOOR, NOOP = "lance-stream", "bare", "noop"
RIVALS = ("classic", "successor", "delta", "iceberg")
"""Those that promise each epoch exactly once."""

TABLES: dict[str, Make] = {
    OURS: LanceStream,
    "classic": Classic,
    "successor": Successor,
    "delta": Delta,
    "iceberg": Iceberg,
    FLOOR: Bare,
}
"""Without Spark: epochs are Arrow tables."""

STREAMS: dict[str, Stream] = {
    OURS: lance_stream.stream,
    "classic": stream_into(Classic),
    "successor": stream_into(Successor),
    "delta": stream_into(Delta),
    "iceberg": stream_into(Iceberg),
    "parquet": spark_sinks.parquet,
    NOOP: spark_sinks.noop,
}
"""With Spark: a streaming DataFrame goes in."""
