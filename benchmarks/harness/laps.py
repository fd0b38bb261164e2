"""Epochs with Spark: streams of small files by turns, each turn a run of its own to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.contestants.streams import Stream
from benchmarks.harness.spark import add_files, durations, read_files

WARM_UP = 5
"""Epochs at the start of a turn that are not counted: a run opens its table in the first one, and
our writer and Spark's plans settle in the next ones."""


class Source:
    """A folder of small files, one an epoch, which all streams of an experiment read."""

    def __init__(self, folder: Path, epoch_rows: int) -> None:
        self.folder, self.epoch_rows = folder, epoch_rows
        self.files = 0

    def grow_to(self, files: int) -> None:
        """Add files until there are so many."""
        add_files(self.folder, self.files, max(0, files - self.files), self.epoch_rows)
        self.files = max(self.files, files)


class Lapper:
    """One contestant's stream: the times of its epochs, without those that warm up."""

    def __init__(self, spark: SparkSession, stream: Stream, place: Path, source: Source) -> None:
        place.mkdir(exist_ok=True)
        self.place = place
        self.epochs: list[float] = []
        self.add_batch: list[float] = []
        self._spark, self._stream, self._source = spark, stream, source

    def turn(self, files: int, **options: Any) -> Any:
        """Stream all that is new when the source has so many files; return the ended query."""
        self._source.grow_to(files)
        df = read_files(self._spark, self._source.folder)
        with self._stream(df, str(self.place), **options) as query:
            query.awaitTermination()
        self.epochs += durations(query)[WARM_UP:]
        self.add_batch += durations(query, "addBatch")[WARM_UP:]
        return query
