"""Every type of a Lance dataset as Spark reads it: equal values, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError
from airflow_provider_lance.spark.compat import utc_arrow_schema
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.source_types import cast_batch, spark_schema
from airflow_provider_lance.spec.job import JobSpec
from tests.integration.test_type_round_trip import (
    EXAMPLES,
    Folders,
    Row,
    as_arrow,
    comparable,
    examples,
    expected,
    rows_of,
    tables,
)
from tests.support.lance_stream import Epochs, read
from tests.support.reading import numbers
from tests.support.sparkstream import Stream, spec


def as_spark(path: Path) -> pa.Table:
    """Return a dataset's rows in Spark's types."""
    dataset = lance.dataset(path)
    target = utc_arrow_schema(spark_schema(dataset.schema, str(path)))
    batches = [
        cast_batch(batch, target, {}, str(path)) for batch in dataset.to_batches() if batch.num_rows
    ]
    return pa.Table.from_batches(batches, target)


@settings(EXAMPLES, max_examples=examples(100))
@given(tables(rows_of(1, 6), max_size=4))
def test_what_the_sink_can_store_is_read_with_the_same_type_and_values(
    tmp_path_factory: Folders, table: tuple[StructType, list[Row]]
) -> None:
    schema, rows = table
    path = tmp_path_factory.mktemp("t") / "t.lance"
    lance.write_dataset(as_arrow(schema, rows), path)
    found = as_spark(path)
    wanted = [comparable(expected(schema, row)) for row in rows]
    assert list(map(comparable, found.to_pylist())) == wanted
    assert found.schema.equals(utc_arrow_schema(spark_schema(found.schema, "")))


_MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_NOON = _MIDNIGHT.replace(hour=12)


def test_field_that_is_never_null_is_read_below_a_null(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("n", pa.int16(), nullable=False)])
    values = [[(_MIDNIGHT, None), (_NOON, {"n": 1})], None]
    column = pa.array(values, pa.map_(pa.timestamp("us", "America/New_York"), inner))
    lance.write_dataset(pa.table({"m": column}), tmp_path)
    assert as_spark(tmp_path)["m"].to_pylist() == values


_MORNING = dt.datetime(2026, 3, 29, 2, 30, 0, 1)
VALUES: dict[str, pa.Array] = {
    "u8": pa.array([0, 255, None], pa.uint8()),
    "u16": pa.array([0, 2**16 - 1, None], pa.uint16()),
    "u32": pa.array([0, 2**32 - 1, None], pa.uint32()),
    "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
    "half": pa.array([1.5, float("-inf"), None], pa.float16()),
    "date64": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date64()),
    "seconds": pa.array([-1, 0, None], pa.timestamp("s")),
    "zone": pa.array([_MORNING, dt.datetime(1, 1, 2), None], pa.timestamp("us", "Europe/Berlin")),
    "nanoseconds": pa.array([1_000, -2_000, None], pa.timestamp("ns", "UTC")),
    "duration": pa.array([1, -1, None], pa.duration("s")),
    "dictionary": pa.array(["a", "b", None]).dictionary_encode(),
    "large text": pa.array(["x" * 1_000_000, "", None], pa.large_string()),
    "large bytes": pa.array([b"x" * 1_000_000, b"", None], pa.large_binary()),
    "fixed bytes": pa.array([b"ab", b"\0\0", None], pa.binary(2)),
    "decimal256": pa.array([Decimal("-1.50"), Decimal("9.99"), None], pa.decimal256(38, 2)),
    "vector": pa.array([[1.0, -2.0], [0.0, None], None], pa.list_(pa.float32(), 2)),
    "half vector": pa.array([[1.0, -2.0], [0.0, 0.5], None], pa.list_(pa.float16(), 2)),
    "large list": pa.array([[1], [], None], pa.large_list(pa.uint16())),
    "nested": pa.array(
        [
            {"e": [1.0, 2.0], "m": [{"t": _MORNING, "u": 2**32 - 1}]},
            {"e": None, "m": [None, {"t": None, "u": None}]},
            None,
        ],
        pa.struct(
            [
                ("e", pa.list_(pa.float32(), 2)),
                ("m", pa.list_(pa.struct([("t", pa.timestamp("us", "UTC")), ("u", pa.uint32())]))),
            ]
        ),
    ),
    "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.uint16())),
}


@pytest.mark.parametrize("name", VALUES)
def test_types_that_spark_lacks_are_read_in_a_wider_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.lance"
    lance.write_dataset(pa.table({name: VALUES[name]}), path)
    assert as_spark(path)[name].to_pylist() == VALUES[name].to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("ns", "UTC"), [1_001]),
        (pa.timestamp("ns"), [1]),
        (pa.duration("ns"), [1]),
        (pa.timestamp("s"), [2**60]),
    ],
)
def test_a_value_that_would_lose_precision_is_refused_by_name(
    tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    path = tmp_path / "t.lance"
    lance.write_dataset(pa.table({"c": pa.array(values, kind)}), path)
    with pytest.raises(RowsRefusedError, match=r"a value of column c \(.*\) of .* does not fit"):
        as_spark(path)


def test_columns_without_a_type_in_spark_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    columns = {
        pa.field("k", pa.int64()): [1],
        blob: [b"x"],
        pa.field("big", pa.decimal256(50, 2)): [Decimal("1.5")],
        pa.field("round", pa.decimal128(5, -2)): [Decimal("100")],
    }
    lance.write_dataset(pa.table(list(columns.values()), pa.schema(list(columns))), path)
    with pytest.raises(SchemaMismatchError) as caught:
        as_spark(path)
    said = str(caught.value)
    for name in (
        "b (extension<lance.blob.v2<BlobType>>)",
        "big (decimal256(50, 2))",
        "round (decimal128(5, -2))",
    ):
        assert name in said
    assert "in the option columns: k" in said


def test_all_types_come_through_a_query_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "source.lance"
    table = pa.table(VALUES)
    lance.write_dataset(table, path, enable_stable_row_ids=True)
    stream = Stream(spark, tmp_path)
    stream.run(read(spark, path, readChangeFeed="true"), createIfMissing=True)
    found = stream.table()
    for name, values in VALUES.items():
        assert found[name].to_pylist() == values.to_pylist(), name
    assert found["_change_type"].to_pylist() == ["insert"] * 3
    assert found["_commit_version"].to_pylist() == [1] * 3


def test_a_value_that_spark_cannot_hold_ends_a_query_with_its_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "source.lance"
    times = pa.array([1_001], pa.timestamp("ns"))
    lance.write_dataset(pa.table({"k": [1], "at": times}), path)
    source = {"format": "lance", "options": {"path": str(path)}}
    summary = run(spark, JobSpec.parse(spec(Stream(spark, tmp_path), source=source)))
    assert summary.error == "RowsRefusedError", summary.message
    assert "a value of column at (timestamp[ns])" in str(summary.message)
    assert Epochs(read(spark, path, columns="k"), tmp_path / "other").run().num_rows == 1


def test_column_names_are_read_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "source.lance"
    names = ["a b", "ü", "Upper", "quo'te", 'dou"ble', "per%cent", "sla/sh", "(x)", "1", "select"]
    rows = numbers(0, 2).select(["k", *["v"] * len(names)]).rename_columns(["k", *names])
    lance.write_dataset(rows, path)
    assert Epochs(read(spark, path), tmp_path / "checkpoint").run().to_pylist() == rows.to_pylist()
    chosen = read(spark, path, columns="ü,a b")
    assert Epochs(chosen, tmp_path / "chosen").run().column_names == ["ü", "a b"]
