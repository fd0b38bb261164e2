"""Run one stateful query with kills, and compare what landed with a batch query."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark.sink import LanceSink
from tests.stateful.queries import EVENTS_DDL, QUERIES, Build, Query
from tests.support.sparkstream import Stream

BETWEEN_WRITE_AND_COMMIT = Failpoint.COMMIT_CHECKED
BETWEEN_COMMIT_AND_SPARKS = Failpoint.COMMIT_LANDED

_ROCKSDB = {
    "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "rocksdb.changelogCheckpointing.enabled": "false",
    "checkpointFormatVersion": "1",
}
_CHANGELOG = _ROCKSDB | {"rocksdb.changelogCheckpointing.enabled": "true"}
STORES = {
    "hdfs": {
        "providerClass": "org.apache.spark.sql.execution.streaming.state."
        "HDFSBackedStateStoreProvider",
        "checkpointFormatVersion": "1",
    },
    "rocksdb": _ROCKSDB,
    "changelog": _CHANGELOG,
    "changelog-2": _CHANGELOG | {"checkpointFormatVersion": "2"},
}
"""The state stores by name; the last one with the format whose commits name the state's files."""

_SUFFIXES = {
    "hdfs": ".delta",
    "rocksdb": ".zip",
    "changelog": ".changelog",
    "changelog-2": ".changelog",
}

EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("key", pa.string()),
        ("kind", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("amount", pa.int64()),
    ]
)
BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
FLUSH = "flush"
FILES, ORDERS = 5, 12


class Killed(Exception):
    """Ends a driver at a step, as a kill would: nothing after the step is done."""


@dataclass
class Outcome:
    """What a run with kills did."""

    rows: int
    skipped: int
    kills: list[str]


def events(random: Random) -> list[pa.Table]:
    """Return the files of one input: orders and payments, out of order and some twice, none late.

    File ``n`` is about minute ``n``. Rows are up to 25 seconds early or late, and a copy may come
    with the next file: so with a delay of 60 seconds no row is behind the event-time watermark. Two
    files at the end are a day later, and close all windows.
    """
    files: list[list[dict[str, Any]]] = [[] for _ in range(FILES)]
    for number in range(FILES * ORDERS):
        place = number // ORDERS
        at = BEGIN + dt.timedelta(minutes=place, milliseconds=random.randint(-25_000, 20_000))
        order = {
            "id": number,
            "key": f"k{random.randint(0, 4)}",
            "kind": "order",
            "ts": at,
            "amount": random.randint(-9, 99),
        }
        rows = [order]
        if random.random() < 0.7:
            paid = at + dt.timedelta(milliseconds=random.randint(0, 30_000))
            rows.append(order | {"kind": "payment", "ts": paid, "amount": random.randint(0, 99)})
        for row in rows:
            behind = int((row["ts"] - BEGIN).total_seconds() + 25) // 60
            home = min(max(place, behind), FILES - 1)
            files[home].append(row)
            if random.random() < 0.25:
                files[min(home + random.randint(0, 1), FILES - 1)].append(row)
    flush = {"id": -1, "key": FLUSH, "amount": 0}
    for day in (1,):
        # A filter on kind sinks below the watermark's node: each side of a join needs a row.
        at = {"ts": BEGIN + dt.timedelta(days=day)}
        files.append([flush | at | {"kind": kind} for kind in ("order", "payment")])
    return [pa.Table.from_pylist(random.sample(rows, len(rows)), EVENTS) for rows in files]


def settings_of(store: str) -> dict[str, str]:
    """Return Spark's settings for a state store with two partitions."""
    return {"spark.sql.shuffle.partitions": "2"} | {
        f"spark.sql.streaming.stateStore.{name}": value for name, value in STORES[store].items()
    }


def killed_and_compared(
    spark: SparkSession, folder: Path, name: str, store: str, seed: int
) -> Outcome:
    """Run a query to its end through two kills, and compare all rows with those of a batch.

    :raises AssertionError: they differ, a kill did not happen, or an epoch landed twice.
    """
    query, random = QUERIES[name], Random(f"{name} {store} {seed}")
    session = spark.newSession()
    for key, value in settings_of(store).items():
        session.conf.set(key, value)
    stream = Stream(session, folder, ddl=EVENTS_DDL)
    for file in events(random):
        stream.add(file)
    kills = [BETWEEN_WRITE_AND_COMMIT, BETWEEN_COMMIT_AND_SPARKS]
    random.shuffle(kills)
    for step in kills:
        _run_until(stream, query, step, random.randint(1, 2))
    sink = _sink(stream, query)
    _finish(sink, query.stream(stream.read()))
    assert sink.release()
    again = sink.totals.skipped
    assert again == (kills[-1] is BETWEEN_COMMIT_AND_SPARKS), "the epoch is computed, not written"
    _check_store(Path(stream.checkpoint, "state"), store)
    return Outcome(check_rows(stream, query.in_batch), again, [each.value for each in kills])


def check_rows(stream: Stream, in_batch: Build) -> int:
    """Compare the dataset with a batch over all of the stream's files; return its rows.

    :raises AssertionError: they differ, or an epoch landed twice.
    """
    rows = stream.spark.read.schema(EVENTS_DDL).parquet(str(stream.source))
    found = stream.table()
    compare(found, in_batch(rows).toArrow())
    stamped = Counter(each.epoch_id for each in stream.epochs())
    assert set(stamped.values()) == {1}, stamped
    return found.num_rows


def _sink(
    stream: Stream, query: Query, on_step: Callable[[Failpoint], None] | None = None
) -> LanceSink:
    options = {
        "uri": stream.uri,
        "queryId": "q",
        "checkpointLocation": stream.checkpoint,
        "createIfMissing": True,
        **query.sink,
    }
    return LanceSink(**options, **({"on_step": on_step} if on_step else {}))


def _run_until(stream: Stream, query: Query, step: Failpoint, occurrence: int) -> None:
    """Run a driver that ends at a step as a killed one does, without a release."""
    left = occurrence

    def end_there(at: Failpoint) -> None:
        nonlocal left
        left -= at is step
        if not left:
            raise Killed(step.value)

    sink = _sink(stream, query, end_there)
    try:
        _finish(sink, query.stream(stream.read()))
    except StreamingQueryException:
        if not isinstance(sink.error, Killed):
            raise
    assert isinstance(sink.error, Killed), f"{step} was not reached {occurrence} times"


def _finish(sink: LanceSink, df: DataFrame) -> None:
    query = sink.start(df, availableNow=True)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def compare(found: pa.Table, wanted: pa.Table) -> None:
    assert set(found.column_names) == set(wanted.column_names)
    rows, expected = _counted(found), _counted(wanted)
    assert expected, "a query without rows proves nothing"
    assert rows == expected, f"lost {expected - rows}, too many {rows - expected}"


def _check_store(state: Path, store: str) -> None:
    """Check that a query's state was kept by the store that the settings name."""
    kinds = {file.suffix for file in state.rglob("*")} & {*_SUFFIXES.values()}
    if "changelog" in store:
        kinds.discard(".zip")  # a snapshot: Spark's maintenance, or the first version, writes some
    assert kinds == {_SUFFIXES[store]} or not state.exists(), f"{store}: {kinds}"


def _counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    names = sorted(table.column_names)
    return Counter(
        tuple(str(row[name]) if isinstance(row[name], dt.datetime) else row[name] for name in names)
        for row in _utc(table).to_pylist()
        if row["key"] != FLUSH
    )


def _utc(table: pa.Table) -> pa.Table:
    fields = [
        pa.field(each.name, pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(each.type)
        else each
        for each in table.schema
    ]
    return table.cast(pa.schema(fields))
