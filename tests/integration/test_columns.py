"""Values and columns that a dataset cannot hold, through real streaming queries."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    LongType,
    StructField,
    StructType,
    UserDefinedType,
)

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError
from tests.support.sparkstream import Stream, orders

DIRECT, ON_EXECUTORS = 20_000, 0
"""Of smallEpochRows: the driver writes the third epoch by itself, or never."""


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def refused(stream: Stream, df: DataFrame, **options: Any) -> str:
    """Run a stream that an epoch ends, and return what its error says."""
    sink = stream.sink(**options)
    query = sink.start(df, availableNow=True)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    sink.release()
    assert isinstance(sink.error, RowsRefusedError), repr(sink.error)
    return str(sink.error)


# ------------------------------------------------------------------------------------------ text


@pytest.fixture
def lines(stream: Stream) -> DataFrame:
    """Return a stream of text, of three files; a line of the last is Latin-1."""
    for number, content in enumerate(["fine", "gut, äöü", "caf\xe9"]):
        file = stream.source / f"{number}.txt"
        file.write_bytes(content.encode("latin-1" if number == 2 else "utf-8") + b"\nmore\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    source = stream.spark.readStream.option("maxFilesPerTrigger", 1).text(str(stream.source))
    return source.withColumnRenamed("value", "line")


NESTED = "named_struct('lines', array(map(line, array(line)))) AS line"


@pytest.mark.parametrize("small_epoch_rows", [DIRECT, ON_EXECUTORS], ids=["driver", "executors"])
@pytest.mark.parametrize(
    ("expression", "path"), [("line", "line"), (NESTED, "line.lines.element.key")]
)
def test_a_line_in_latin_1_ends_the_stream_before_its_epoch_is_committed(
    stream: Stream, lines: DataFrame, small_epoch_rows: int, expression: str, path: str
) -> None:
    options: dict[str, Any] = {"createIfMissing": True, "smallEpochRows": small_epoch_rows}
    df = lines.selectExpr(expression)
    for _ in range(2):  # the first time and after a restart
        said = refused(stream, df, **options)
        assert re.search(f"column {path!r} .* UTF-8 in 1 places", said)
        assert r"b'caf\xe9'" in said
    assert stream.dataset.count_rows() == 4
    assert stream.table().num_rows == 4
    stream.run(df, invalidText="replace", **options)
    found = stream.table().column("line").to_pylist()
    plain = [each["lines"][0][0][1][0] if isinstance(each, dict) else each for each in found]
    assert plain == ["fine", "more", "gut, äöü", "more", "caf\ufffd", "more"]
    stream.dataset.optimize.compact_files()
    assert stream.dataset.count_rows("line IS NOT NULL") == 6


def test_bytes_cast_to_text_are_refused_as_a_merge_key_in_either_way(stream: Stream) -> None:
    stream.add(orders(0, 3))
    df = stream.read().selectExpr("CAST(X'FF' AS STRING) AS k", "id")
    options = {"mergeKeys": "k", "outputMode": "update", "createIfMissing": True}
    said = refused(stream, df, **options)
    assert re.search("column 'k' .* UTF-8 in 3 places", said)
    assert said == refused(stream, df, invalidText="replace", **options)
    assert stream.dataset.count_rows() == 0


CURES = {
    "decode(CAST(line AS BINARY), 'ISO-8859-1') AS line": "café",
    "make_valid_utf8(line) AS line": "caf\ufffd",
}


@pytest.mark.parametrize(("cure", "line"), CURES.items())
def test_expression_in_the_message_repairs_the_text(
    stream: Stream, lines: DataFrame, cure: str, line: str
) -> None:
    stream.run(lines.selectExpr(cure), createIfMissing=True)
    assert line in stream.table().column("line").to_pylist()
    # And where such rows are not wanted:
    checkpoint = str(stream.root / "other")
    valid = lines.where("is_valid_utf8(line)")
    stream.run(valid, queryId="other", checkpointLocation=checkpoint)
    assert stream.dataset.count_rows() == 6 + 5


# ----------------------------------------------------------------------------------------- floats

F32 = pa.float32()


@pytest.mark.parametrize("small_epoch_rows", [DIRECT, ON_EXECUTORS], ids=["driver", "executors"])
@pytest.mark.parametrize(
    ("kind", "expression", "path"),
    [
        (F32, "x", ""),
        (pa.list_(F32), "array(0.5D, x)", "x.element: "),
        (pa.list_(F32, 2), "array(0.5D, x)", "x.element: "),
        (pa.map_(pa.string(), F32), "map('k', x)", "x.value: "),
        (
            pa.struct([("l", pa.list_(pa.struct([("f", F32)])))]),
            "struct(array(struct(x AS f)) AS l)",
            "x.l.element.f: ",
        ),
    ],
    ids=str,
)
def test_a_double_that_no_float_can_hold_is_refused_wherever_it_is(
    stream: Stream, small_epoch_rows: int, kind: pa.DataType, expression: str, path: str
) -> None:
    stream.create(pa.schema([("x", kind)]))
    for values in ([1.5, 2.5], [None, 0.1], [3.5, 1e300], [1e-300, 4.5]):
        stream.add(pa.table({"x": pa.array(values, pa.float64())}))
    stream.ddl = "x DOUBLE"
    df = stream.read().selectExpr(f"{expression} AS x")
    said = refused(stream, df, smallEpochRows=small_epoch_rows)
    assert re.search(f"{re.escape(path)}1 values .* float .* become inf", said)
    assert stream.dataset.count_rows() == 4
    bounded = stream.read().where("x IS NULL OR x < 1e39").selectExpr(f"{expression} AS x")
    said = refused(stream, bounded, smallEpochRows=small_epoch_rows)
    assert re.search(f"{re.escape(path)}1 values .* float .* become 0", said)
    assert stream.dataset.count_rows() == 5


def test_both_zeros_and_every_nan_are_one_key_in_a_real_upsert(stream: Stream) -> None:
    stream.ddl = "k DOUBLE, v BIGINT"
    stream.create(pa.schema([("k", pa.float64()), ("v", pa.int64())]))
    for number, key in enumerate([0.0, -0.0, float("nan"), -float("nan"), 1.0, 0.0]):
        stream.add(pa.table({"k": [key], "v": [number]}))
    stream.run(mergeKeys="k", outputMode="update")
    assert sorted(stream.table().column("v").to_pylist()) == [3, 4, 5]


# ----------------------------------------------------------------------------------------- nulls


@pytest.mark.parametrize("small_epoch_rows", [DIRECT, ON_EXECUTORS], ids=["driver", "executors"])
@pytest.mark.parametrize(
    ("kind", "expression", "path"),
    [
        (pa.struct([pa.field("a", pa.float64(), False)]), "struct(x AS a)", "x.a"),
        (pa.list_(pa.field("element", pa.float64(), False)), "array(x)", "x.element"),
        (pa.map_(pa.string(), pa.field("value", F32, False)), "map('k', x)", "x.value"),
    ],
    ids=str,
)
def test_a_null_within_a_column_that_may_have_none_is_refused(
    stream: Stream, small_epoch_rows: int, kind: pa.DataType, expression: str, path: str
) -> None:
    stream.create(pa.schema([("x", kind)]))
    for values in ([1.5], [2.5], [3.5, None]):
        stream.add(pa.table({"x": pa.array(values, pa.float64())}))
    stream.ddl = "x DOUBLE"
    df = stream.read().selectExpr(f"{expression} AS x")
    said = refused(stream, df, smallEpochRows=small_epoch_rows)
    assert re.search(f"column {path!r} .* null in 1 places", said)
    assert stream.dataset.count_rows() == 2


def test_a_null_struct_is_written_although_its_fields_may_not_be_null(stream: Stream) -> None:
    for number in range(4):
        stream.add(orders(number * 2, 2))
    field = "CASE WHEN id % 2 = 0 THEN named_struct('a', 1) END AS s"
    stream.run(stream.read().selectExpr("id", field), createIfMissing=True)
    assert stream.dataset.schema.field("s").type == pa.struct([pa.field("a", pa.int32(), False)])
    found = {row["id"]: row["s"] for row in stream.table().to_pylist()}
    assert found == {number: None if number % 2 else {"a": 1} for number in range(8)}


# --------------------------------------------------------------------------------- names and types


class Point(UserDefinedType):
    """Two numbers under a name of their own."""

    @classmethod
    def sqlType(cls) -> StructType:
        return StructType([StructField("x", LongType())])

    @classmethod
    def module(cls) -> str:
        return __name__


def also(expression: str) -> Callable[[DataFrame], DataFrame]:
    return lambda df: df.selectExpr("*", f"{expression} AS more")


def called(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda df: df.toDF(name, "grp", "amount")


FAULTS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "dot": (called("a.b"), "'a.b' has a name that Lance or Spark cannot write"),
    "backtick": (called("a`b"), "'a`b' has a name that Lance or Spark cannot write"),
    "no name": (called(""), "'' has a name that Lance or Spark cannot write"),
    "zero byte": (called("a\0b"), r"'a\x00b' has a name that Lance or Spark cannot write"),
    "star": (called("*"), "'*' has a name that Lance or Spark cannot write"),
    "row id": (called("_rowid"), "'_rowid' has a name that Lance reserves"),
    "row address": (called("_rowaddr"), "'_rowaddr' has a name that Lance reserves"),
    "row offset": (called("_rowoffset"), "'_rowoffset' has a name that Lance reserves"),
    "created": (called("_row_created_at_version"), "has a name that Lance reserves"),
    "updated": (called("_row_last_updated_at_version"), "has a name that Lance reserves"),
    "twice": (called("grp"), "columns ['grp', 'grp'] have one name for Spark"),
    "case": (called("GRP"), "columns ['GRP', 'grp'] have one name for Spark"),
    "fields": (
        also("named_struct('a', 1, 'a', 2)"),
        "'more' is a struct with duplicate field names",
    ),
    "deep fields": (
        also("map(1, array(named_struct('a', 1, 'a', 2)))"),
        "'more.value.element' is a struct with duplicate field names",
    ),
    "months": (
        also("INTERVAL '1' MONTH"),
        "'more' is interval month, a type that Lance does not have",
    ),
    "calendar": (also("array(make_interval(1))"), "'more.element' is interval, a type that Lance"),
    "variant": (also("parse_json('{}')"), "'more' is variant, a type that Lance does not have"),
    "deep variant": (also("map(1, array(parse_json('{}')))"), "'more.value.element' is variant"),
    "geometry": (
        also("ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')"),
        "'more' is geometry(0), a type that Lance does not have",
    ),
    "geography": (
        also("struct(ST_GeogFromWKB(X'0101000000000000000000F03F0000000000000040') AS g)"),
        "'more.g' is geography(4326), a type that Lance does not have",
    ),
    "time": (also("TIME'12:00:00'"), "set spark.sql.timeType.enabled=true, or"),
    "no type": (also("array()"), "'more.element' has no type"),
    "own type": (
        lambda df: df.withColumn("more", F.udf(lambda n: None, Point())("id")),
        "'more' is udt, a type that Lance does not have",
    ),
}


def nothing_made(stream: Stream) -> bool:
    return not Path(stream.uri).exists() and not Path(stream.checkpoint).exists()


@pytest.mark.parametrize(("change", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_column_that_no_dataset_can_hold_is_refused_before_one_is_made(
    stream: Stream, change: Callable[[DataFrame], DataFrame], fault: str
) -> None:
    stream.add(orders(0, 1))
    with pytest.raises(SchemaMismatchError) as caught:
        stream.run(change(stream.read()), createIfMissing=True)
    assert fault in str(caught.value)
    assert nothing_made(stream)


@pytest.mark.parametrize("name", ['a"b', "__action"])
def test_a_merge_key_whose_name_lance_cannot_merge_is_refused_before_a_dataset_is_made(
    stream: Stream, name: str
) -> None:
    stream.add(orders(0, 1))
    options: dict[str, Any] = {"mergeKeys": [name], "outputMode": "update"}
    df = called(name)(stream.read())
    with pytest.raises(SchemaMismatchError, match=re.escape(f"mergeKeys={[name]}")):
        stream.run(df, createIfMissing=True, **options)
    assert nothing_made(stream)
    stream.create(pa.schema([(name, pa.int64()), ("grp", pa.string()), ("amount", pa.float64())]))
    with pytest.raises(SchemaMismatchError, match=re.escape(f"mergeKeys={[name]}")):
        stream.run(df, **options)
    assert stream.dataset.version == 1
    stream.run(df)
    assert stream.dataset.count_rows() == 1, "appended to, it is a name like any other"


def test_column_with_the_name_of_the_delete_flag_is_refused(stream: Stream) -> None:
    stream.add(orders(0, 1))
    df = stream.read().withColumn("__lance_Delete", F.lit(1))
    options: dict[str, Any] = {
        "mergeKeys": "id",
        "outputMode": "update",
        "deleteWhen": "id < 0",
        "createIfMissing": True,
    }
    with pytest.raises(SchemaMismatchError, match="'__lance_Delete'"):
        stream.run(df, **options)
    assert nothing_made(stream)


def test_a_column_that_only_delete_when_reads_may_be_of_any_type_and_name(stream: Stream) -> None:
    stream.create()
    stream.add(orders(0, 3))
    df = stream.read().selectExpr("*", "INTERVAL '1' MONTH AS `a.b`", "id = 1 AS __lance_delete")
    stream.run(
        df,
        mergeKeys="id",
        outputMode="update",
        deleteWhen="__lance_delete AND `a.b` > INTERVAL '0' MONTH",
    )
    assert sorted(stream.table().column("id").to_pylist()) == [0, 2]


def test_a_merge_key_with_a_collation_is_refused(stream: Stream) -> None:
    stream.add(orders(0, 1))
    df = stream.read().selectExpr("grp COLLATE UTF8_LCASE AS grp", "id")
    options: dict[str, Any] = {"outputMode": "update", "createIfMissing": True}
    with pytest.raises(SchemaMismatchError, match="grp COLLATE UTF8_BINARY AS grp"):
        stream.run(df, mergeKeys="grp", **options)
    assert nothing_made(stream)
    stream.run(df, mergeKeys="id", **options)
    assert stream.table().column("grp").to_pylist() == ["g0"]


@pytest.fixture
def permissive(spark: SparkSession) -> Iterator[SparkSession]:
    settings = ("spark.sql.caseSensitive", "spark.sql.timeType.enabled")
    for name in settings:
        spark.conf.set(name, "true")
    yield spark
    for name in settings:
        spark.conf.unset(name)


def test_names_that_differ_in_case_and_times_pass_where_spark_takes_them(
    permissive: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(permissive, tmp_path)
    stream.add(orders(0, 1))
    df = called("GRP")(stream.read()).selectExpr("*", "TIME'12:00:00' AS at")
    stream.run(df, createIfMissing=True)
    assert stream.table().to_pylist() == [
        {"GRP": 0, "grp": "g0", "amount": 0.0, "at": dt.time(12)},
    ]


CAST = {
    "CAST(INTERVAL '1' MONTH AS STRING)": "INTERVAL '1' MONTH",
    "CAST(make_interval(1) AS STRING)": "1 years",
    "to_json(parse_json('{}'))": "{}",
    "variant_get(parse_json('{\"a\": 1}'), '$.a', 'int')": 1,
    "CAST(array() AS ARRAY<INT>)": [],
    "CAST(TIME'12:00:00' AS STRING)": "12:00:00",
    "ST_AsBinary(ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040'))": bytes.fromhex(
        "0101000000000000000000F03F0000000000000040"
    ),
}


def test_what_the_message_tells_to_type_makes_a_column_that_a_dataset_can_hold(
    stream: Stream,
) -> None:
    stream.add(orders(0, 1))
    names = [f"c{number}" for number in range(len(CAST))]
    cures = zip(CAST, names, strict=True)
    df = stream.read().selectExpr(*(f"{cure} AS {name}" for cure, name in cures))
    stream.run(df, createIfMissing=True)
    assert stream.table().to_pylist() == [dict(zip(names, CAST.values(), strict=True))]
