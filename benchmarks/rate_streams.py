"""Streams on Spark's rate source, each in a fresh place, and which of their epochs count.

Belongs to :mod:`benchmarks.rate`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.spark.sink import LanceSink
from benchmarks.contestants import OURS, STREAMS
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.freshness import COLUMN, Reader
from benchmarks.harness.measure import summary

PARTITIONS = 2


@dataclass(frozen=True)
class Setting:
    """One run: rows a second, seconds between triggers, and how many full epochs are measured."""

    rate: int
    trigger: int
    epochs: int


@dataclass(frozen=True)
class Taken:
    """One epoch: which seconds of the source it took, counted from its start, and how long."""

    first: int
    last: int
    milliseconds: float

    def in_time(self, trigger: int) -> bool:
        """Tell whether it left no backlog and kept no other epoch waiting."""
        return self.last - self.first <= trigger and self.milliseconds <= trigger * 1000


def measured(epochs: Sequence[Taken], trigger: int) -> list[Taken]:
    """Return the epochs that count: full ones, after the first that was in time."""
    warm = next((n for n, each in enumerate(epochs) if each.in_time(trigger)), len(epochs))
    return [each for each in epochs[warm + 1 :] if each.last - each.first >= trigger]


class Stand:
    """Runs the contestants' streams on the rate source, each in a fresh place."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self._spark, self._work = spark, work
        self._runs = 0

    def freshness(self, contestant: str, setting: Setting) -> tuple[list[Taken], dict[str, float]]:
        """Run one stream beside a reader; return its epochs, and p50 and p90 in seconds."""
        place = self._place()
        path = lance_uri(place) if contestant == OURS else f"{place}/{contestant}"
        with Reader(contestant, path) as reader:
            start, epochs = self._run(contestant, place, setting, give_up=False)
        if not epochs:
            return [], {}
        ages = reader.ages(start + epochs[0].first, start + epochs[-1].last)
        return epochs, summary(list(ages))

    def holds(self, contestant: str, setting: Setting) -> bool:
        """Tell whether a rate does."""
        _, epochs = self._run(contestant, self._place(), setting, give_up=True)
        full = len(epochs) == setting.epochs
        return full and all(epoch.in_time(setting.trigger) for epoch in epochs)

    def _place(self) -> str:
        self._runs += 1
        return str(self._work / f"run-{self._runs}")

    def _run(
        self, contestant: str, place: str, setting: Setting, *, give_up: bool
    ) -> tuple[int, list[Taken]]:
        """Stream until enough was seen; return the source's start, and the epochs that count."""
        start = int(time.time()) + 1
        _begin_at(Path(place, "checkpoint"), start)
        df = _rows(self._spark, setting.rate)
        trigger = f"{setting.trigger} seconds"
        stream = _ours if contestant == OURS else STREAMS[contestant]
        with stream(df, place, processingTime=trigger) as query:
            epochs = _observe(query, setting, give_up=give_up)
        return start, epochs[: setting.epochs]


@contextmanager
def _ours(df: DataFrame, place: str, **trigger: str) -> Iterator[StreamingQuery]:
    """Stream with the sink, and end as the job does: after the epoch in progress.

    Where a rate is too high there is always one, and Spark's `stop()` would cut it off.
    """
    sink = LanceSink(
        uri=lance_uri(place),
        queryId="bench",
        checkpointLocation=f"{place}/checkpoint",
        createIfMissing=True,
    )
    query = sink.start(df, **trigger)
    try:
        yield query
    finally:
        sink.close()
        if sink.epoch_in_progress is not None:
            with suppress(StreamingQueryException):  # the next epoch is refused
                query.awaitTermination()
        query.stop()
        sink.release()


def _begin_at(checkpoint: Path, start: int) -> None:
    """Make the source begin at a full second, so that a trigger finds the last second complete.

    The source keeps its start in the checkpoint, in milliseconds.
    """
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_text(f"v1\n{start * 1000}")


def _rows(spark: SparkSession, rate: int) -> DataFrame:
    source = spark.readStream.format("rate").option("rowsPerSecond", rate)
    made = source.option("numPartitions", PARTITIONS).load()
    return made.selectExpr("value AS id", "value / 2D AS value", f"timestamp AS {COLUMN}")


def _observe(query: StreamingQuery, setting: Setting, *, give_up: bool) -> list[Taken]:
    """Wait for enough epochs that count, for too long a time, or until one of them is late."""
    patience = time.monotonic() + (setting.epochs + 4) * setting.trigger + 4
    last = None
    while time.monotonic() < patience:
        if error := query.exception():
            raise error
        newest = query.lastProgress
        if newest is None or newest["batchId"] == last:
            time.sleep(0.05)
            continue
        last = newest["batchId"]
        epochs = measured(_taken(query), setting.trigger)
        late = any(not epoch.in_time(setting.trigger) for epoch in epochs)
        if (give_up and late) or len(epochs) >= setting.epochs:
            return epochs
    return measured(_taken(query), setting.trigger)


def _taken(query: StreamingQuery) -> list[Taken]:
    return [
        Taken(
            second(each["sources"][0]["startOffset"]),
            second(each["sources"][0]["endOffset"]),
            float(each["durationMs"]["triggerExecution"]),
        )
        for each in query.recentProgress
        if each["numInputRows"]
    ]


def second(offset: str | None) -> int:
    """Return the second that an offset of the rate source means; before the first there is none."""
    return 0 if offset in {None, "null"} else int(offset)
