"""The stateful queries, each over a view named ``source``; most as SQL, as the operator takes it.

The input's columns are ``id``, ``key``, ``kind``, ``ts`` and ``amount``. Every result has ``key``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

EVENTS_DDL = "id BIGINT, key STRING, kind STRING, ts TIMESTAMP, amount BIGINT"
DELAY = "INTERVAL 60 SECONDS"
EVENTS = f"source WATERMARK ts DELAY OF {DELAY}"

WINDOWS = f"""
SELECT window.start AS start, key, count(*) AS n, sum(amount) AS total
FROM {EVENTS} GROUP BY window(ts, '30 seconds'), key
"""
JOIN = f"""
SELECT o.id, o.key, o.ts AS ordered, p.ts AS paid, p.amount
FROM (SELECT * FROM {EVENTS} WHERE kind = 'order') AS o
{{}} JOIN (SELECT * FROM {EVENTS} WHERE kind = 'payment') AS p
ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 20 SECONDS
"""
CHAINED = f"""
SELECT window.start AS start, key, count(*) AS windows, max(n) AS most
FROM (
  SELECT window_time(small) AS at, key, n
  FROM (
    SELECT window AS small, key, count(*) AS n
    FROM {EVENTS} GROUP BY window(ts, '10 seconds'), key
  )
)
GROUP BY window(at, '60 seconds'), key
"""
DISTINCT_CHAINED = f"""
SELECT window.start AS start, key, count(*) AS n
FROM (SELECT DISTINCT id, key, ts FROM {EVENTS})
GROUP BY window(ts, '30 seconds'), key
"""
SESSIONS = f"""
SELECT session_window.start AS start, session_window.end AS end, key, count(*) AS n
FROM {EVENTS} GROUP BY session_window(ts, '15 seconds'), key
"""
TOTALS = "SELECT key, count(*) AS n, sum(amount) AS total FROM source GROUP BY key"
TOTALS_BY_MINUTE = """
SELECT if(id < 0, key, string(id DIV 12)) AS key, count(*) AS n, sum(amount) AS total
FROM source GROUP BY 1
"""
TOTALS_TYPES = "key STRING, n BIGINT, total BIGINT"

Build = Callable[[DataFrame], DataFrame]


def sql(text: str) -> Build:
    """Return what runs a text over a view of the rows, as the job does."""

    def build(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("source")
        return rows.sparkSession.sql(text)

    return build


def watermarked(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "60 seconds")


# ------------------------------------------------------------------------- functions with state


def running_totals(
    key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["amount"].sum())
    state.update((n, total))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


class PandasTotals(StatefulProcessor):
    """Emits a key's totals whenever rows arrive."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, total = self._totals.get() if self._totals.exists() else (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["amount"].sum())
        self._totals.update((n, total))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


class LastTotals(StatefulProcessor):
    """Emits a key's totals once, when the event-time watermark passes its last row by 80 seconds.

    The rows that arrived are kept in a list, the timer's time in a value.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._amounts = handle.getListState("amounts", "amount BIGINT")
        self._until = handle.getValueState("until", "at BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        at = self._until.get()[0] if self._until.exists() else 0
        for row in rows:
            self._amounts.appendValue((row["amount"],))
            at_row = int(row["ts"].timestamp() * 1000) + 80_000
            if at_row > at:
                if at:
                    self._handle.deleteTimer(at)
                at = at_row
                self._handle.registerTimer(at)
        self._until.update((at,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        amounts = [each[0] for each in self._amounts.get()]
        self._amounts.clear()
        self._until.clear()
        yield Row(key=key[0], n=len(amounts), total=sum(amounts))


def pandas_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").applyInPandasWithState(
        running_totals,
        TOTALS_TYPES,
        "n BIGINT, total BIGINT",
        "update",
        GroupStateTimeout.NoTimeout,
    )


def pandas_processor(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        PandasTotals(), TOTALS_TYPES, "Update", "None"
    )


def row_processor(rows: DataFrame) -> DataFrame:
    return (
        watermarked(rows.selectExpr("if(id < 0, key, string(id DIV 12)) AS key", "ts", "amount"))
        .groupBy("key")
        .transformWithState(LastTotals(), TOTALS_TYPES, "Append", "EventTime")
    )


def once(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id", "kind"])


# --------------------------------------------------------------------------------- the queries


@dataclass(frozen=True)
class Query:
    """A query, the same in batch if that is another, and the sink's options."""

    stream: Build
    batch: Build | None = None
    sink: Mapping[str, Any] = field(default_factory=dict)
    rocksdb_only: bool = False

    @property
    def in_batch(self) -> Build:
        return self.batch or self.stream


def upsert(*keys: str) -> dict[str, Any]:
    return {"outputMode": "update", "mergeKeys": list(keys)}


def named(rows: DataFrame) -> DataFrame:
    names = rows.sparkSession.createDataFrame(
        [(f"k{n}", f"name {n}") for n in range(3)], "k STRING, name STRING"
    )
    return rows.join(names, rows["key"] == names["k"], "left").select("id", "key", "kind", "name")


QUERIES = {
    "windows-append": Query(sql(WINDOWS)),
    "windows-update": Query(sql(WINDOWS), sink=upsert("start", "key")),
    "windows-complete": Query(sql(WINDOWS), sink={"outputMode": "complete"}),
    "join-inner": Query(sql(JOIN.format("INNER"))),
    "join-left": Query(sql(JOIN.format("LEFT OUTER"))),
    "join-static": Query(named),
    "distinct-update": Query(
        sql("SELECT DISTINCT id, key, kind FROM source"), sink=upsert("id", "kind")
    ),
    "distinct-watermark": Query(sql(f"SELECT DISTINCT id, key, kind, ts FROM {EVENTS}")),
    "drop-duplicates": Query(once),
    "drop-duplicates-watermark": Query(
        lambda rows: watermarked(rows).dropDuplicates(["id", "kind", "ts"]), once
    ),
    "drop-within-watermark": Query(
        lambda rows: watermarked(rows).dropDuplicatesWithinWatermark(["id", "kind"]), once
    ),
    "chained-windows": Query(sql(CHAINED)),
    "chained-distinct": Query(sql(DISTINCT_CHAINED)),
    "sessions": Query(sql(SESSIONS)),
    "pandas-state": Query(pandas_state, sql(TOTALS), upsert("key")),
    "pandas-processor": Query(pandas_processor, sql(TOTALS), upsert("key"), rocksdb_only=True),
    "row-processor": Query(row_processor, sql(TOTALS_BY_MINUTE), rocksdb_only=True),
}


def processor_job(spark: SparkSession, arguments: Mapping[str, str]) -> DataFrame:
    """Return the rows of a job with a state of its own: its `dataframe` names this function."""
    rows = spark.readStream.schema(EVENTS_DDL).option("maxFilesPerTrigger", 1)
    return pandas_processor(rows.parquet(arguments["path"]))
