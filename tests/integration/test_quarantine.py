"""The quarantine on real local Spark: rows as they came, why, and each of them once."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import (
    SchemaMismatchError,
    SideTableError,
    SpecError,
)
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.row_checks import Met
from airflow_provider_lance.spark.sink import LanceSink
from tests.support.sparkstream import ORDERS, Stream, orders

SMALL = {"name": "small", "condition": "id < 10", "action": "quarantine"}
EVEN = {"name": "even", "condition": "id % 2 = 0", "action": "drop"}
CHEAP = {"name": "cheap", "condition": "amount < 3", "action": "warn"}
BOTH = pytest.mark.parametrize("small_epoch_rows", [20_000, 0], ids=["driver", "executors"])
UPSERT: dict[str, Any] = {"outputMode": "update", "mergeKeys": "id"}


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.create()
    return stream


def quarantined(stream: Stream, uri: str = "") -> list[dict[str, Any]]:
    place = uri or stream.uri.removesuffix(".lance") + ".quarantine.lance"
    rows: list[dict[str, Any]] = lance.dataset(place).to_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return sorted(rows, key=lambda row: (row["epoch"], row["row"]))


def ids(stream: Stream) -> Counter[int]:
    return Counter(stream.table().column("id").to_pylist())


@BOTH
def test_rows_go_to_the_quarantine_as_they_came(stream: Stream, small_epoch_rows: int) -> None:
    stream.add(orders(0, 6))
    stream.add(orders(7, 6))
    stream.add(orders(20, 3))
    sink = stream.run(expectations=[SMALL, EVEN, CHEAP], smallEpochRows=small_epoch_rows)
    assert ids(stream) == Counter([0, 2, 4, 8])
    rows = quarantined(stream)
    assert [json.loads(row["row"])["id"] for row in rows] == [10, 11, 12, 20, 21, 22]
    assert json.loads(rows[0]["row"]) == {"id": 10, "grp": "g1", "amount": 5.0}
    assert {row["reason"] for row in rows} == {"expectation small"}
    assert [row["expectations"] for row in rows[:2]] == [
        ["small", "cheap"],
        ["small", "even", "cheap"],
    ]
    assert [row["epoch"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert {row["query_id"] for row in rows} == {"q"}
    assert json.loads(rows[0]["source_ends"])[0] == '{"logOffset":1}'
    epochs = stream.epochs()
    assert [(e.rows, e.checks.dropped, e.checks.quarantined) for e in epochs] == [
        (3, 3, 0),
        (1, 2, 3),
        (0, 0, 3),
    ]
    assert epochs[2].checks.expectations["even"] == Met(2, 1)
    assert sink.totals.checks.quarantined == 6


@BOTH
def test_rows_that_the_sink_refuses_go_to_the_quarantine_with_the_reason(
    spark: SparkSession, tmp_path: Path, small_epoch_rows: int
) -> None:
    stream = Stream(spark, tmp_path)
    kinds = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("grp", pa.string(), nullable=False),
            ("amount", pa.float32()),
        ]
    )
    stream.create(kinds)
    rows = orders(0, 5).to_pylist()
    rows[0]["id"] = 2**40
    rows[1]["grp"] = None
    rows[2]["id"] = None
    stream.add(pa.Table.from_pylist(rows, schema=ORDERS))
    df = stream.read().withColumn("grp", F.expr("if(id = 3, CAST(X'66FF' AS STRING), grp)"))
    with pytest.raises(StreamingQueryException):
        stream.run(df, **UPSERT, smallEpochRows=small_epoch_rows)
    stream.run(df, **UPSERT, onRefusedRow="quarantine", smallEpochRows=small_epoch_rows)
    assert ids(stream) == Counter([4])
    found = {row["reason"]: json.loads(row["row"]) for row in quarantined(stream)}
    assert found == {
        "column 'id' does not fit int32": {"id": 2**40, "grp": "g0", "amount": 0.0},
        "column 'grp' is null": {"id": 1, "grp": None, "amount": 0.5},
        "merge key 'id' is null": {"id": None, "grp": "g2", "amount": 1.0},
        "column 'grp' is not UTF-8": {"id": 3, "grp": {"$base64": "Zv8="}, "amount": 1.5},
    }
    last = stream.epochs()[-1]
    assert (last.rows, last.checks.quarantined) == (1, 4)


@BOTH
def test_a_delete_needs_only_a_valid_key(stream: Stream, small_epoch_rows: int) -> None:
    options = UPSERT | {"deleteWhen": "op = 'd'", "onRefusedRow": "quarantine"}
    stream.add(orders(0, 4))
    stream.run(stream.read().withColumn("op", F.lit("u")), **options)
    stream.add(orders(2, 4))
    invalid = F.expr("if(id IN (2, 5), CAST(X'FF' AS STRING), grp)")
    df = stream.read().withColumn("op", F.expr("if(id < 3, 'd', 'u')")).withColumn("grp", invalid)
    stream.run(df, **options, smallEpochRows=small_epoch_rows)
    assert ids(stream) == Counter([0, 1, 3, 4])
    (row,) = quarantined(stream)
    assert json.loads(row["row"]) == {"id": 5, "grp": {"$base64": "/w=="}, "amount": 2.5, "op": "u"}
    assert row["deletes"] is False


@BOTH
def test_a_row_without_its_envelope_goes_first(stream: Stream, small_epoch_rows: int) -> None:
    stream.add(orders(0, 4))
    refused = F.expr("if(id = 2, 'no JSON', null)")
    df = stream.read().withColumn("__lance_refused", refused)
    df = df.withColumn("__lance_raw", F.expr("if(id = 2, X'7B', null)"))
    with pytest.raises(StreamingQueryException, match="cannot be unpacked.*no JSON"):
        stream.run(df, smallEpochRows=small_epoch_rows)
    options = {"onRefusedRow": "quarantine", "expectations": [EVEN]}
    stream.run(df, **options, smallEpochRows=small_epoch_rows)
    assert ids(stream) == Counter([0])
    (row,) = quarantined(stream)
    assert (row["reason"], row["detail"]) == ("the envelope cannot be taken off", "no JSON")
    assert json.loads(row["row"])["__lance_raw"] == {"$base64": "ew=="}
    assert stream.epochs()[-1].checks.expectations["even"] == Met(1, 2)


def test_a_quarantine_of_many_rows_is_written_by_the_tasks(stream: Stream) -> None:
    stream.add(orders(0, 60_000))
    none = SMALL | {"condition": "id < 0"}
    stream.run(stream.read().repartition(2), expectations=[none], smallEpochRows=0)
    rows = quarantined(stream)
    assert sorted(json.loads(row["row"])["id"] for row in rows) == list(range(60_000))
    assert stream.epochs()[0].checks.quarantined == 60_000


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", list(Failpoint))
@pytest.mark.parametrize("occurrence", [1, 2, 3])
def test_a_driver_that_ends_at_any_step_quarantines_each_row_once(
    stream: Stream, step: Failpoint, occurrence: int
) -> None:
    for first in (7, 20, 8):
        stream.add(orders(first, 6))
    options = {"expectations": [SMALL, EVEN]}
    left = [occurrence]

    def end(at: Failpoint) -> None:
        if at is step:
            left[0] -= 1
            if left[0] == 0:
                raise Killed(at)

    sink = LanceSink(
        uri=stream.uri,
        queryId="q",
        checkpointLocation=stream.checkpoint,
        on_step=end,
        **options,
    )
    with suppress(StreamingQueryException, Killed):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    stream.run(**options)
    assert ids(stream) == Counter([8, 8])
    found = Counter(json.loads(row["row"])["id"] for row in quarantined(stream))
    assert found == Counter([10, 11, 12, *range(20, 26), 10, 11, 12, 13])
    for epoch in stream.epochs():
        assert epoch.rows + epoch.checks.dropped + epoch.checks.quarantined == 6


def test_other_expectations_are_refused_for_an_epoch_that_the_quarantine_has(
    stream: Stream,
) -> None:
    stream.add(orders(7, 6))

    def end(at: Failpoint) -> None:
        if at is Failpoint.COMMIT_CHECKED:
            seen.append(at)
            if len(seen) == 2:  # the quarantine has the epoch, the table does not
                raise Killed

    seen: list[Failpoint] = []
    sink = LanceSink(
        uri=stream.uri,
        queryId="q",
        checkpointLocation=stream.checkpoint,
        on_step=end,
        expectations=[SMALL],
    )
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert (stream.dataset.count_rows(), len(quarantined(stream))) == (0, 3)
    with pytest.raises(SideTableError, match="under other options"):
        stream.run(expectations=[SMALL | {"condition": "id < 8"}])
    stream.run(expectations=[SMALL])
    assert (ids(stream), len(quarantined(stream))) == (Counter([7, 8, 9]), 3)
    stream.add(orders(7, 6))
    stream.run(expectations=[SMALL | {"condition": "id < 8"}])
    assert len(quarantined(stream)) == 8


def test_rows_that_fit_since_the_epoch_was_half_done_are_not_doubled(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create(pa.schema([("id", pa.int64()), ("grp", pa.string()), ("amount", pa.int32())]))
    df = stream.read().withColumn("amount", F.expr("id * 1000000000"))
    stream.add(orders(1, 4))
    seen: list[Failpoint] = []

    def end(at: Failpoint) -> None:
        seen.append(at)
        if seen.count(Failpoint.COMMIT_CHECKED) == 2:
            raise Killed

    sink = LanceSink(
        uri=stream.uri,
        queryId="q",
        checkpointLocation=stream.checkpoint,
        on_step=end,
        onRefusedRow="quarantine",
    )
    with pytest.raises(StreamingQueryException):
        sink.start(df, availableNow=True).awaitTermination()
    stream.dataset.alter_columns({"path": "amount", "data_type": pa.int64()})
    with pytest.raises(StreamingQueryException, match="has 2 rows of epoch 0 .* now 0 of its rows"):
        stream.run(df, onRefusedRow="quarantine")
    stream.dataset.alter_columns({"path": "amount", "data_type": pa.int32()})
    stream.run(df, onRefusedRow="quarantine")
    assert (ids(stream), len(quarantined(stream))) == (Counter([1, 2]), 2)


def test_the_quarantine_may_lie_elsewhere_and_is_not_another_dataset(
    stream: Stream, tmp_path: Path
) -> None:
    stream.add(orders(8, 4))
    elsewhere = str(tmp_path / "bad.lance")
    stream.run(expectations=[SMALL], quarantineUri=elsewhere)
    assert len(quarantined(stream, elsewhere)) == 2
    lance.write_dataset(orders(0, 1), str(tmp_path / "other.lance"))
    stream.add(orders(8, 4))
    with pytest.raises(SideTableError, match="is registered at"):
        stream.run(expectations=[SMALL], quarantineUri=str(tmp_path / "other.lance"))


def test_a_dataset_in_the_place_of_the_quarantine_is_refused(stream: Stream) -> None:
    lance.write_dataset(orders(0, 1), stream.uri.removesuffix(".lance") + ".quarantine.lance")
    with pytest.raises(SchemaMismatchError, match="another dataset is in its place"):
        stream.run(expectations=[SMALL])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quarantineUri": "/data/q.lance"}, "quarantineUri needs rows"),
        ({"outputMode": "complete", "expectations": [SMALL]}, "outputMode=complete"),
        ({"expectations": [SMALL], "quarantineUri": "/data/t.lance/q"}, "lie in each other"),
        ({"onRefusedRow": "drop"}, "'fail' or 'quarantine'"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        LanceSink(uri="/data/t.lance", queryId="q", checkpointLocation="/data/cp", **options)
