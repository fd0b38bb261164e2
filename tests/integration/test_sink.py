"""The sink on real local Spark and real pylance."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetNotFoundError,
    RowsRefusedError,
    SchemaMismatchError,
    SpecError,
)
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.sparkstream import ORDERS, Stream, orders


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def ids(stream: Stream) -> Counter[int]:
    return Counter(stream.table().column("id").to_pylist())


def expect_ids(stream: Stream, count: int) -> None:
    assert ids(stream) == Counter(range(count))


# ------------------------------------------------------------------------------------- append


def test_append_is_exact_and_an_epoch_is_one_fragment(stream: Stream) -> None:
    stream.create()
    for n in range(3):
        stream.add(orders(n * 100, 100))
    sink = stream.run(stream.read().repartition(4))
    expect_ids(stream, 300)
    assert [stamp.fragments for stamp in stream.epochs()] == [1, 1, 1]
    assert [stamp.rows for stamp in stream.epochs()] == [100, 100, 100]
    assert (sink.totals.epochs, sink.totals.rows) == (3, 300)
    port = open_dataset(stream.uri)
    assert exact_watermark(port, "q").epoch == 2
    owner = decode_query(port.config, "q", port.version).owner
    assert owner is not None
    driver = owner.driver
    assert (driver.launch_id, driver.launched_by) == ("", "")
    assert ProcessIdentity(driver.host, driver.pid, driver.start) == ProcessIdentity.of(os.getpid())


def test_a_large_epoch_is_written_by_the_executors_in_fragments_of_the_target_size(
    stream: Stream,
) -> None:
    stream.create()
    stream.add(orders(0, 10_000))
    stream.run(smallEpochRows=1000, targetRowsPerFragment=4000)
    expect_ids(stream, 10_000)
    sizes = [fragment.count_rows() for fragment in stream.dataset.get_fragments()]
    assert sizes == [4000, 4000, 2000]


def test_large_and_small_partitions_of_one_epoch_come_together(stream: Stream) -> None:
    stream.create()
    stream.add(orders(0, 3000))
    skewed = stream.read().repartition(
        8, F.when(F.col("id") < 2900, F.lit(0)).otherwise(F.col("id"))
    )
    stream.run(skewed, smallEpochRows=1000)
    expect_ids(stream, 3000)
    assert stream.epochs()[0].fragments == 2, "the large partition, and the small ones gathered"


def test_empty_epochs_write_nothing_and_can_be_restarted(stream: Stream) -> None:
    stream.create()
    for n in range(3):
        stream.add(orders(n * 10, 10))
    none = stream.read().where("id < 0")
    stream.run(none)
    assert stream.dataset.version == 3, "made, claimed once as a trace, released"
    stream.add(orders(30, 10))
    stream.run(none)
    assert stream.dataset.version == 3
    stream.add(orders(40, 10))
    stream.run()
    assert stream.dataset.count_rows() == 10


@pytest.mark.parametrize(
    ("ddl", "user", "expected"),
    [
        ("id BIGINT, x STRING", None, str(2**31 - 1)),
        ("id BIGINT, x STRING", "1048576", "1048576"),
        ("id BIGINT, x BINARY", None, "unset"),
        ("id BIGINT, x ARRAY<STRUCT<b: BINARY>>", None, "unset"),
    ],
)
def test_sparks_size_check_is_spared_where_it_protects_nothing(
    spark: SparkSession, ddl: str, user: str | None, expected: str
) -> None:
    limit = "spark.sql.execution.arrow.maxBytesPerBatch"
    session = spark.newSession()
    unset = session.conf.get(limit)
    if user:
        session.conf.set(limit, user)
    spare_size_checks(session.createDataFrame([], ddl))
    assert session.conf.get(limit) == (unset if expected == "unset" else expected)
    assert unset != str(2**31 - 1), "Spark changed its default: is the setting still needed?"
    assert spark.conf.get(limit) == unset


# -------------------------------------------------------------------------------------- types


def test_rows_are_cast_to_the_datasets_own_schema(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("price", pa.decimal128(20, 4)),
            pa.field("vector", pa.list_(pa.float32(), 3)),
            pa.field("nested", pa.struct([("b", pa.string()), ("a", pa.int64())])),
            pa.field("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float32())]))),
            pa.field("label", pa.large_string()),
        ]
    )
    stream = Stream(
        spark,
        tmp_path,
        ddl="id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10,2), "
        "vector ARRAY<DOUBLE>, nested STRUCT<a: INT, b: STRING>, "
        "tags ARRAY<STRUCT<v: DOUBLE, k: STRING>>, label STRING",
    )
    noon = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    rows = [
        {
            "id": 1,
            "at": noon,
            "local": dt.datetime(2026, 7, 1, 8),
            "price": Decimal("12.50"),
            "vector": [0.5, 1.5, 2.5],
            "nested": {"a": 7, "b": "x"},
            "tags": [{"v": 0.25, "k": "t"}],
            "label": "ä",
        },
        dict.fromkeys(schema.names) | {"id": 2},
        {
            "id": 3,
            "at": noon,
            "local": None,
            "price": None,
            "vector": [1.0, 2.0, 3.0],
            "nested": {"a": None, "b": "y"},
            "tags": [],
            "label": "",
        },
    ]
    source = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(10, 2)),
            ("vector", pa.list_(pa.float64())),
            ("nested", pa.struct([("a", pa.int32()), ("b", pa.string())])),
            ("tags", pa.list_(pa.struct([("v", pa.float64()), ("k", pa.string())]))),
            ("label", pa.string()),
        ]
    )
    stream.create(schema)
    stream.add(pa.Table.from_pylist(rows, source))
    stream.add(pa.Table.from_pylist([row | {"id": row["id"] + 10} for row in rows], source))
    stream.run(smallEpochRows=0)  # on executors
    stream.add(pa.Table.from_pylist([row | {"id": row["id"] + 20} for row in rows], source))
    stream.run()  # on the driver
    written = stream.table()
    assert written.schema == schema
    expected = [row | {"id": row["id"] + add} for add in (0, 10, 20) for row in rows]
    assert (
        sorted(written.to_pylist(), key=lambda row: row["id"])
        == pa.Table.from_pylist(expected, schema).to_pylist()
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id, grp", r"'amount' \(double\) is missing"),
        ("*, 1 AS surplus", r"'surplus' \(int32\)"),
        (
            "id, grp, CAST(amount AS STRING) AS amount",
            "'amount' is string .*double",
        ),
        ("grp AS id, id AS grp, amount", "'id' is string.*'grp' is int64"),
        ("id + 0.5D AS id, grp, amount", "'id' is double .*int64"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_the_start(
    stream: Stream, columns: str, message: str
) -> None:
    stream.create()
    stream.add(orders(0, 5))
    with pytest.raises(SchemaMismatchError, match=message):
        stream.run(stream.read().selectExpr(*_split(columns)))
    assert not Path(stream.checkpoint).exists()


def _split(columns: str) -> list[str]:
    return [part.strip() for part in columns.split(", ")]


@pytest.mark.parametrize(
    ("field", "bad", "message"),
    [
        (pa.field("x", pa.float64(), nullable=False), None, "'x' .*null in 1 rows"),
        (pa.field("x", pa.list_(pa.float32(), 3)), [1.0, 2.0], "other lengths than 3"),
        (pa.field("x", pa.int8()), 1000, "'x' .*dataset's int8"),
    ],
)
@pytest.mark.parametrize("small_epoch_rows", [0, 1000])
def test_a_value_that_does_not_fit_stops_the_query_and_nothing_is_committed(
    spark: SparkSession,
    tmp_path: Path,
    field: pa.Field,
    bad: Any,
    message: str,
    small_epoch_rows: int,
) -> None:
    kinds = {"double": "DOUBLE", "int8": "INT"}
    ddl = kinds.get(str(field.type), "ARRAY<DOUBLE>")
    stream = Stream(spark, tmp_path, ddl=f"id BIGINT, x {ddl}")
    stream.create(pa.schema([pa.field("id", pa.int64()), field]))
    stream.add(pa.table({"id": [1], "x": pa.array([bad], _loose(field.type))}))
    sink = stream.sink(smallEpochRows=small_epoch_rows)
    query = sink.start(stream.read(), availableNow=True)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert isinstance(sink.error, RowsRefusedError), "terminal: Airflow must not retry it"
    assert re.search(message, str(sink.error))
    assert stream.dataset.count_rows() == 0


def _loose(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.float64())
    return pa.int32() if pa.types.is_integer(kind) else kind


# ------------------------------------------------------------------------------ complete, update


def totals(stream: Stream) -> dict[str, tuple[int, float]]:
    rows = stream.table().to_pylist()
    assert len(rows) == len({row["grp"] for row in rows})
    return {row["grp"]: (row["n"], row["total"]) for row in rows}


def expected_totals(count: int) -> dict[str, tuple[int, float]]:
    sums: dict[str, tuple[int, float]] = {}
    for row in orders(0, count).to_pylist():
        n, total = sums.get(row["grp"], (0, 0.0))
        sums[row["grp"]] = (n + 1, total + row["amount"])
    return sums


TOTALS = pa.schema([("grp", pa.string()), ("n", pa.int64()), ("total", pa.float64())])


@pytest.mark.parametrize(
    "mode", [{"outputMode": "complete"}, {"outputMode": "update", "mergeKeys": "grp"}]
)
@pytest.mark.parametrize("small_epoch_rows", [0, 1000])
def test_an_aggregate_is_kept_up_to_date_also_after_a_replay(
    stream: Stream, mode: dict[str, str], small_epoch_rows: int
) -> None:
    stream.create(TOTALS)
    options: dict[str, Any] = {**mode, "smallEpochRows": small_epoch_rows}

    def aggregate() -> Any:
        return (
            stream.read()
            .groupBy("grp")
            .agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        )

    for n in range(3):
        stream.add(orders(n * 50, 50))
    stream.run(aggregate(), **options)
    assert totals(stream) == expected_totals(150)
    stream.forget_last_commit()
    sink = stream.run(aggregate(), **options)
    assert (sink.totals.skipped, sink.totals.epochs) == (1, 0)
    stream.add(orders(150, 50))
    stream.run(aggregate(), **options)
    assert totals(stream) == expected_totals(200)
    assert [stamp.epoch_id for stamp in stream.epochs()] == [0, 1, 2, 3]


def test_an_upsert_deletes_where_the_condition_says(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ddl="id BIGINT, name STRING, op STRING")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    stream.create(schema)
    changes = [
        [(1, "a", "I"), (2, "b", "I"), (3, "c", "I")],
        [(2, "b2", "U"), (3, None, "D"), (9, None, "D")],
        [(1, None, "D"), (4, "d", None)],
    ]
    for each in changes:
        stream.add(
            pa.table(
                dict(zip(("id", "name", "op"), map(list, zip(*each, strict=True)), strict=True))
            )
        )
    for small in (1000, 0):
        options = {"outputMode": "update", "mergeKeys": ["id"], "deleteWhen": "op = 'D'"}
        if small == 0:  # the same once more, written by executors, into another dataset
            stream = Stream(spark, tmp_path / "again", ddl=stream.ddl)
            stream.source = tmp_path / "source"
            stream.create(schema)
        sink = stream.run(smallEpochRows=small, **options)
        assert {row["id"]: row["name"] for row in stream.table().to_pylist()} == {2: "b2", 4: "d"}
        assert sink.totals.deletes == 3
        assert [stamp.deletes for stamp in stream.epochs()] == [0, 2, 1]
        assert stream.dataset.count_rows() == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, "a"), (1, "b")], "1 merge keys .* {'id': 1}"),
        ([(None, "a")], r"merge key \['id'\] is null"),
    ],
)
def test_merge_keys_that_identify_nothing_are_refused(
    spark: SparkSession, tmp_path: Path, rows: list[tuple[Any, str]], message: str
) -> None:
    stream = Stream(spark, tmp_path, ddl="id BIGINT, name STRING")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    stream.create(schema)
    stream.add(pa.Table.from_pylist([{"id": i, "name": n} for i, n in rows], schema))
    sink = stream.sink(outputMode="update", mergeKeys="id")
    query = sink.start(stream.read(), availableNow=True)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert isinstance(sink.error, RowsRefusedError)
    with pytest.raises(RowsRefusedError, match=message):
        raise sink.error
    assert stream.dataset.count_rows() == 0


def test_update_as_append_keeps_every_delta_row(stream: Stream) -> None:
    stream.create(pa.schema([("grp", pa.string()), ("n", pa.int64())]))
    for n in range(2):
        stream.add(orders(n * 3, 3))
    counts = stream.read().groupBy("grp").agg(F.count("*").alias("n"))
    stream.run(counts, outputMode="update", updateAsAppend=True)
    assert sorted(stream.table().column("n").to_pylist()) == [1, 1, 1, 2, 2, 2]


# -------------------------------------------------------------------------------------- replay


def test_a_replayed_append_writes_nothing(stream: Stream) -> None:
    stream.create()
    for n in range(3):
        stream.add(orders(n * 10, 10))
    stream.run()
    version = stream.dataset.version
    assert stream.forget_last_commit() == 2
    sink = stream.run()
    assert (sink.totals.skipped, sink.totals.epochs) == (1, 0)
    assert stream.dataset.version == version
    expect_ids(stream, 30)


def test_two_queries_write_into_one_dataset_at_once(spark: SparkSession, tmp_path: Path) -> None:
    first, second = Stream(spark, tmp_path / "a"), Stream(spark, tmp_path / "b")
    first.create()
    for n in range(5):
        first.add(orders(n * 10, 10))
        second.add(orders(1000 + n * 10, 10))
    sinks = [
        first.sink(queryId="first"),
        second.sink(queryId="second", uri=first.uri),
    ]
    queries = [
        sink.start(each.read(), availableNow=True)
        for sink, each in zip(sinks, (first, second), strict=True)
    ]
    for query in queries:
        query.awaitTermination()
    assert all(sink.release() for sink in sinks)
    assert ids(first) == Counter([*range(50), *range(1000, 1050)])
    for name in ("first", "second"):
        assert [stamp.epoch_id for stamp in first.epochs(name)] == [0, 1, 2, 3, 4]


def test_the_sink_can_be_given_to_foreach_batch_by_hand(stream: Stream) -> None:
    stream.create()
    stream.add(orders(0, 10))
    for _ in range(2):
        sink = stream.sink()
        query = (
            stream.read()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", stream.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        stream.add(orders(10, 10))
    expect_ids(stream, 20)


# ------------------------------------------------------------------------------------- refusals


def test_a_missing_dataset_is_refused_unless_it_may_be_made(stream: Stream) -> None:
    stream.add(orders(0, 5))
    with pytest.raises(DatasetNotFoundError, match="createIfMissing"):
        stream.run()
    assert not Path(stream.checkpoint).exists()
    stream.run(createIfMissing="true")
    expect_ids(stream, 5)


def test_a_dataset_is_made_with_vectors(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ddl="id BIGINT, v ARRAY<FLOAT>")
    stream.add(pa.table({"id": [1], "v": pa.array([[1.0, 2.0]], pa.list_(pa.float32()))}))
    stream.run(createIfMissing=True, vectorSizes={"v": 2})
    assert stream.dataset.schema.field("v").type == pa.list_(pa.float32(), 2)
    with pytest.raises(SchemaMismatchError, match="vectorSizes names 'id'"):
        Stream(spark, tmp_path / "b", ddl=stream.ddl).run(
            createIfMissing=True, vectorSizes={"id": 2}
        )


def test_a_static_dataframe_is_refused(spark: SparkSession, stream: Stream) -> None:
    stream.create()
    with pytest.raises(SpecError, match="static"):
        stream.sink().start(spark.range(3), availableNow=True)


@pytest.mark.parametrize(
    "trigger",
    [{"continuous": "1 second"}, {"once": True}, {}, {"availableNow": False}, {"realTime": "1 s"}],
)
def test_triggers_that_lose_data_are_refused(stream: Stream, trigger: dict[str, Any]) -> None:
    stream.create()
    with pytest.raises(SpecError, match="trigger"):
        stream.sink().start(stream.read(), **trigger)


def test_a_trigger_without_an_interval_is_warned_of_once(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.create()
    stream.add(orders(0, 5))
    for trigger in ("0 seconds", "1 second"):
        sink = stream.sink()
        query = sink.start(stream.read(), processingTime=trigger)
        query.processAllAvailable()
        query.stop()
        sink.release()
    warned = [each.getMessage() for each in caplog.records if "trigger is" in each.getMessage()]
    assert len(warned) == 1
    assert "'0 seconds'" in warned[0]
    assert "'10 seconds'" in warned[0]
    expect_ids(stream, 5)


def test_a_deleted_checkpoint_with_the_query_id_kept_is_refused(stream: Stream) -> None:
    import shutil

    stream.create()
    stream.add(orders(0, 5))
    stream.run()
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(CheckpointMismatchError, match="newGeneration"):
        stream.run()
    assert not Path(stream.checkpoint).exists(), "refused before Spark made anything"
    stream.run(onCheckpointChange="newGeneration")
    assert ids(stream) == Counter([*range(5), *range(5)]), "asked for by name"


def test_the_checkpoint_of_another_query_is_refused(stream: Stream) -> None:
    stream.create()
    stream.add(orders(0, 5))
    stream.run()
    with pytest.raises(CheckpointMismatchError, match="'other'"):
        stream.run(queryId="other")


def test_a_recreated_dataset_is_refused(stream: Stream) -> None:
    stream.create()
    stream.add(orders(0, 5))
    stream.run()
    lance.write_dataset(ORDERS.empty_table(), stream.uri, mode="overwrite")
    lance.LanceDataset.drop(stream.uri)
    stream.create()
    stream.add(orders(5, 5))
    with pytest.raises(CheckpointMismatchError, match=f"up to 0, but {stream.uri} "):
        stream.run()


@pytest.mark.parametrize(
    ("condition", "message"),
    [("op = ", "cannot be read"), ("nowhere = 1", "cannot be read"), ("id + 1", "boolean")],
)
def test_invalid_delete_condition_is_refused(stream: Stream, condition: str, message: str) -> None:
    stream.create()
    with pytest.raises(SpecError, match=message):
        stream.run(outputMode="update", mergeKeys="id", deleteWhen=condition)


def test_merge_keys_must_be_columns(stream: Stream) -> None:
    stream.create()
    with pytest.raises(SchemaMismatchError, match="nowhere"):
        stream.run(outputMode="update", mergeKeys="nowhere")
