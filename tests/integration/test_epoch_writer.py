"""Which way an epoch's rows go, and that both ways store the same."""

from __future__ import annotations

import datetime as dt
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import lance
import pyarrow as pa
import pyspark.sql.classic.dataframe as classic
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    RowsRefusedError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Append
from airflow_provider_lance.spark.collect_fragments import CollectedFragments
from airflow_provider_lance.spark.compat import RememberedSchema
from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.sieve import DELETE_FLAG
from airflow_provider_lance.spark.tuning import BatchRows
from airflow_provider_lance.spark.writer import WriteTask
from tests.support.sparkstream import Stream, orders

SMALL = 1000
SEQUENCED = {"mergeKeys": ["id"], "outputMode": "update", "sequenceBy": "amount"}
COUNTED = [{"name": "counted", "condition": "amount >= 0", "action": "warn"}]

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(autouse=True)
def session_of_all(spark: SparkSession) -> Iterator[None]:
    """Undo what a writer sets: here it writes in the session that all tests share."""
    yield
    spark.conf.unset(BATCH_ROWS)


class Writer(EpochWriter):
    """Notes how often the executors wrote."""

    on_executors = 0

    def _on_executors(self, df: DataFrame, dataset: Any) -> CollectedFragments:
        self.on_executors += 1
        return super()._on_executors(df, dataset)


def writer(path: Path, schema: pa.Schema, **task: Any) -> Writer:
    uri = str(path / "t.lance")
    lance.write_dataset(schema.empty_table(), uri)
    values = {"small_epoch_rows": SMALL, "target_rows_per_fragment": 1_000_000, **task}
    return Writer(WriteTask(uri=uri, run_id="run", schema=schema, **values))


def write(to: EpochWriter, df: DataFrame) -> CollectedFragments:
    return to.write(df, lance.dataset(to.task.uri))


def stored(to: EpochWriter, written: CollectedFragments) -> pa.Table:
    """Commit an epoch and return what a reader sees of it alone."""
    port = open_dataset(to.task.uri)
    before = len(port.dataset.get_fragments())
    port = port.commit(Append(written.fragments))
    news = port.dataset.get_fragments()[before:]
    return port.dataset.scanner(fragments=news).to_table()


def warmed(to: Writer, df: DataFrame) -> Writer:
    """Write two epochs, so that the next is expected to be like them."""
    write(to, df)
    write(to, df)
    assert to.on_executors == 2
    return to


def test_small_epochs_are_written_by_the_driver_from_the_third_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.createDataFrame(orders(0, 100)).repartition(3)
    to = warmed(writer(tmp_path, orders(0, 1).schema), df)
    written = write(to, df)
    assert to.on_executors == 2
    assert (written.rows, written.deletes, len(written.fragments)) == (100, 0, 1)
    assert stored(to, written).sort_by("id").equals(orders(0, 100))


def test_every_epoch_goes_to_the_executors_when_small_epochs_are_off(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.createDataFrame(orders(0, 10))
    to = warmed(writer(tmp_path, orders(0, 1).schema, small_epoch_rows=0), df)
    write(to, df)
    assert to.on_executors == 3


def test_after_a_large_epoch_the_executors_write(spark: SparkSession, tmp_path: Path) -> None:
    small, large = (spark.createDataFrame(orders(0, n)) for n in (10, SMALL + 1))
    to = warmed(writer(tmp_path, orders(0, 1).schema), small)
    assert write(to, large).rows == SMALL + 1, "nobody could expect it"
    assert to.on_executors == 2
    write(to, small)
    assert to.on_executors == 3
    write(to, small)
    assert to.on_executors == 3


def test_epoch_goes_to_the_executors_when_spark_plans_to_read_much(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = spark.createDataFrame(orders(0, 100))
    to = warmed(writer(tmp_path, orders(0, 1).schema), df)
    monkeypatch.setattr("airflow_provider_lance.spark.epoch_writer._DIRECT_BYTES", 50 * 100)
    spark.createDataFrame(orders(0, 10_000)).write.parquet(str(tmp_path / "files"))
    write(to, spark.read.schema(df.schema).parquet(str(tmp_path / "files")).limit(10))
    assert to.on_executors == 3


@pytest.mark.parametrize("columns", [["offset"], ["offset", "timestamp"], ["value", "offset"]])
def test_small_epochs_of_a_source_that_gives_no_size_are_written_by_the_driver(
    spark: SparkSession, tmp_path: Path, columns: list[str]
) -> None:
    """Few columns of many lower Spark's estimate of a size that it does not know."""
    of_kafka = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
        "timestamp TIMESTAMP, timestampType INT"
    )
    at = dt.datetime(2026, 1, 1)
    records = [(None, b"v", "orders", 0, number, at, 0) for number in range(10)]
    # Like Kafka's source, an RDD gives no size.
    df = spark.createDataFrame(spark.sparkContext.parallelize(records), of_kafka).select(*columns)
    to = warmed(writer(tmp_path, to_arrow_schema(df.schema, timezone="UTC")), df)
    assert write(to, df).rows == len(records)
    assert to.on_executors == 2


@contextmanager
def result_size(spark: SparkSession, limit: str) -> Iterator[None]:
    """Set what tasks may send to the driver; Spark reads it anew for each job."""
    name = "spark.driver.maxResultSize"
    conf = spark.sparkContext._jsc.sc().conf()  # type: ignore[attr-defined]
    before = conf.get(name, "1g")
    conf.set(name, limit)
    try:
        yield
    finally:
        conf.set(name, before)


def test_what_the_driver_may_not_collect_is_written_by_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    to = warmed(writer(tmp_path, orders(0, 1).schema), spark.createDataFrame(orders(0, 10)))
    large = spark.createDataFrame(orders(0, 30_000)).repartition(2)
    with result_size(spark, "200k"):
        written = write(to, large)
    assert to.on_executors == 3
    assert stored(to, written).sort_by("id").equals(orders(0, 30_000))


def test_other_spark_error_does_not_move_the_epoch_to_the_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.createDataFrame(orders(0, 10))
    to = warmed(writer(tmp_path, orders(0, 1).schema), df)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(to, df.selectExpr("id", "grp", "amount / (id - id) AS amount"))
    assert to.on_executors == 2


@pytest.mark.parametrize(
    ("of_the_user", "row_bytes", "expected"),
    [
        (None, 8.0, 100_000),
        (None, 100.0, 41_943),
        (None, 3072.0, 1_365),
        (None, 1e6, 256),
        (5_000, 8.0, 5_000),
        (10_000, 8.0, 10_000),
    ],
)
def test_a_batch_holds_four_mebibytes(
    spark: SparkSession, of_the_user: int | None, row_bytes: float, expected: int
) -> None:
    session = spark.newSession()
    if of_the_user is not None:
        session.conf.set(BATCH_ROWS, of_the_user)
    default = spark.conf.get(BATCH_ROWS)
    BatchRows(pa.schema([])).fit(session.range(1), None, row_bytes)
    assert session.conf.get(BATCH_ROWS) == str(expected)
    assert spark.conf.get(BATCH_ROWS) == default


def test_batches_follow_the_rows(spark: SparkSession) -> None:
    df, batches = spark.newSession().range(1), BatchRows(pa.schema([]))
    for row_bytes, expected in ((8.0, "100000"), (400.0, "10485"), (5000.0, "838")):
        batches.fit(df, None, row_bytes)
        assert df.sparkSession.conf.get(BATCH_ROWS) == expected


FIXED = {"id": pa.int64(), "value": pa.float64()}


@pytest.mark.parametrize(
    ("columns", "stored", "expected"),
    [
        (FIXED, None, 100_000),
        ({"id": pa.int64(), "v": pa.list_(pa.float32(), 768)}, None, 1_361),
        ({f"c{i}": pa.int64() for i in range(200)}, None, 2_621),
        ({**FIXED, "in": pa.struct([("a", pa.bool_()), ("b", pa.int32())])}, None, 100_000),
        ({**FIXED, "text": pa.string()}, None, 10_000),
        ({**FIXED, "in": pa.struct([("a", pa.string())])}, None, 10_000),
        ({"v": pa.list_(pa.float32(), 768), "text": pa.string()}, None, 1_365),
        ({"text": pa.string()}, 20, 10_000),
        ({"text": pa.string()}, 8_000, 519),
    ],
)
def test_the_first_epochs_batches_follow_the_schema_and_what_is_stored(
    spark: SparkSession,
    tmp_path: Path,
    columns: dict[str, pa.DataType],
    stored: int | None,
    expected: int,
) -> None:
    schema = pa.schema(list(columns.items()))
    rows = schema.empty_table()
    if stored:  # random, so that no encoding makes it much shorter
        numbers = random.Random(1)
        texts = [numbers.randbytes(stored // 2).hex() for _ in range(500)]
        rows = pa.table({"text": texts})
    dataset = lance.write_dataset(rows, str(tmp_path / "t.lance"))
    df = spark.newSession().range(1)
    BatchRows(schema).fit(df, dataset, None)
    batch = int(df.sparkSession.conf.get(BATCH_ROWS) or 0)
    assert batch == pytest.approx(expected, rel=1.2 if stored else 0)


def test_the_first_epoch_comes_in_batches_of_its_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    rows = pa.table({"id": pa.array(range(SMALL + 1), pa.int64())})
    write(writer(tmp_path, rows.schema), session.createDataFrame(rows).coalesce(1))
    assert int(session.conf.get(BATCH_ROWS) or 0) == 100_000


EVERYTHING = """
    id BIGINT, tiny TINYINT, real FLOAT, flag BOOLEAN, price DECIMAL(12, 3), day DATE,
    at TIMESTAMP, wall TIMESTAMP_NTZ, raw BINARY, vector ARRAY<DOUBLE>,
    nested STRUCT<a: BIGINT, b: ARRAY<STRING>>, tags MAP<STRING, BIGINT>
"""
STORED = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("real", pa.float32()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(12, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32(), 2)),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ]
)


def test_driver_and_executors_store_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
    row = (
        1,
        -5,
        0.25,
        True,
        Decimal("12345.678"),
        dt.date(1960, 2, 29),
        moment.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
        moment,
        b"\x00\xff",
        [1.5, -2.5],
        (7, ["x", None]),
        {"k": 1},
    )
    empty = (2, *[None] * 11)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = spark.createDataFrame([row, empty], EVERYTHING).drop("tags").coalesce(1)
        to = writer(tmp_path, STORED)
        by_executors = stored(to, write(to, df))
        write(to, df)
        direct = stored(to, write(to, df))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert to.on_executors == 2
    assert direct.equals(by_executors)
    assert direct.schema == STORED
    assert direct.column("at")[0].as_py() == row[6]
    assert direct.column("wall")[0].as_py() == moment


def test_a_direct_upsert_has_its_keys_and_deletes(spark: SparkSession, tmp_path: Path) -> None:
    schema = orders(0, 1).schema
    df = spark.createDataFrame(orders(0, 10))
    flagged = df.selectExpr("*", f"id % 5 = 0 AS {DELETE_FLAG}").coalesce(1)
    to = warmed(writer(tmp_path, schema, merge_keys=("id",), flagged=True), flagged)
    written = write(to, flagged)
    assert to.on_executors == 2
    assert (written.rows, written.deletes) == (10, 2)
    assert written.keys is not None
    assert sorted(written.keys.column("id").to_pylist()) == list(range(10))
    assert sorted(stored(to, written).column("id").to_pylist()) == [1, 2, 3, 4, 6, 7, 8, 9]


def test_a_direct_epoch_is_refused_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(orders(0, 10)).coalesce(1)
    to = warmed(writer(tmp_path, orders(0, 1).schema, merge_keys=("id",)), df)
    with pytest.raises(RowsRefusedError, match="more than once"):
        write(to, df.union(df))
    assert to.on_executors == 2


def test_stream_written_by_the_driver_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    for n in range(5):
        stream.add(orders(n * 100, 100))
    stream.run()
    stream.forget_last_commit()
    stream.add(orders(500, 100))
    stream.run()
    assert Counter(stream.table().column("id").to_pylist()) == Counter(range(600))
    assert [stamp.rows for stamp in stream.epochs()] == [100] * 6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"smallEpochRows": 0},
        {"expectations": COUNTED},
        {"expectations": COUNTED, "smallEpochRows": 0},
        {**SEQUENCED, "smallEpochRows": 0},
        {**SEQUENCED, "truncateWhen": "amount < 0", "smallEpochRows": 0},
        {"routeBy": "grp"},
        {"routeBy": "grp", "smallEpochRows": 0},
    ],
)
def test_the_types_of_the_columns_are_asked_for_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """An answer of more than 8 KB, the types of 200 columns, takes 40 ms."""
    parse, asked = classic._parse_datatype_json_string, Counter[int]()

    def counted(text: str) -> Any:
        asked[epochs] += 1
        return parse(text)

    monkeypatch.setattr(classic, "_parse_datatype_json_string", counted)
    for epochs in (3, 9):
        stream = Stream(spark, tmp_path / str(epochs))
        for number in range(epochs):
            stream.add(orders(number * 10, 10))
        assert stream.run(**{"createIfMissing": True, **options}).totals.rows == epochs * 10
    assert asked[9] == asked[3] > 0


def test_other_types_under_the_same_names_are_seen(spark: SparkSession) -> None:
    remembered = RememberedSchema()
    numbers, texts = spark.range(1), spark.range(1).selectExpr("CAST(id AS STRING) AS id")
    for df, known in ((numbers, False), (spark.range(2), True), (texts, False), (texts, True)):
        again = df.select("*")
        assert remembered.apply_to(again) is known
        assert again.schema == df.schema


def test_what_a_function_does_to_the_types_of_one_epoch_stays_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    for number in range(5):
        stream.add(orders(number * 10, 10))
    sink = stream.sink()

    def write(df: DataFrame, epoch_id: int) -> None:
        sink(df, epoch_id)
        df.schema.fields[0].name = "other"
        df.schema.add("more", "string")

    (
        stream.read()
        .writeStream.option("checkpointLocation", stream.checkpoint)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    assert sorted(stream.table()["id"].to_pylist()) == list(range(50))


@pytest.mark.parametrize("rows", [100, 5 * SMALL])
def test_a_store_that_takes_no_rows_is_named_by_driver_and_executors(
    spark: SparkSession, tmp_path: Path, rows: int
) -> None:
    df = spark.createDataFrame(orders(0, rows)).coalesce(1)
    to = warmed(writer(tmp_path, orders(0, 1).schema), df)
    shutil.rmtree(Path(to.task.uri, "data"))
    Path(to.task.uri, "data").write_text("no folder")
    with pytest.raises(StorageUnavailableError, match=re.escape(to.task.uri)):
        write(to, df)
    assert to.on_executors == (2 if rows < SMALL else 3)


def test_a_dataset_that_is_gone_is_named_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    to = writer(tmp_path, orders(0, 1).schema)
    handle = lance.dataset(to.task.uri)
    shutil.rmtree(to.task.uri)
    with pytest.raises(DatasetNotFoundError, match="check the URI"):
        to.write(spark.createDataFrame(orders(0, 5 * SMALL)).coalesce(1), handle)


def test_any_other_error_of_a_worker_stays_what_it_is(spark: SparkSession, tmp_path: Path) -> None:
    to = writer(tmp_path, orders(0, 1).schema)
    with pytest.raises(PythonException, match="of the user"):
        write(to, spark.createDataFrame(orders(0, 10)).mapInArrow(_fail, "id BIGINT"))


def _fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ValueError("of the user")
    yield from batches
