"""Any schema of Spark that is accepted reads back exactly; others are refused, and nothing made.

Types are drawn as deep as they nest, all of Spark SQL's, under any names and nullability, with rows
of them. Most go from a DataFrame through the checks, the writer and Lance, and back; a few through
real streaming queries.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from airflow_provider_lance.exceptions import SchemaMismatchError
from airflow_provider_lance.protocol.port import Append
from airflow_provider_lance.spark.collect_fragments import gather_rows
from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.target import open_target
from airflow_provider_lance.spark.writer import WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.support.sparkstream import Stream

Row = tuple[Any, ...]
Folders = pytest.TempPathFactory

EXAMPLES = settings(
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def examples(count: int) -> int:
    """Return how many examples to try: so many in the suite, more where a search is wanted."""
    return count * int(os.environ.get("TYPE_ROUND_TRIPS", "1"))


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Let Spark take types and names that it refuses by default."""
    settings = (
        "spark.sql.caseSensitive",
        "spark.sql.timeType.enabled",
        "spark.sql.preserveCharVarcharTypeInfo",
    )
    for name in settings:
        spark.conf.set(name, "true")
    yield spark
    for name in settings:
        spark.conf.unset(name)


# --------------------------------------------------------------------------------- types and rows

_DAYS = st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30))
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
PLAIN: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats()),
    (DecimalType(5, 2), st.decimals(-999, 999, places=2)),
    (DecimalType(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
    (StringType(), st.text(max_size=6)),
    (StringType("UTF8_LCASE"), st.text(max_size=6)),
    (BinaryType(), st.binary(max_size=6)),
    (DateType(), _DAYS),
    (TimestampType(), _TIMES.map(lambda at: at.replace(tzinfo=dt.UTC))),
    (TimestampNTZType(), _TIMES),
    (DayTimeIntervalType(), st.timedeltas(dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6))),
    (TimeType(6), st.times()),
    (NullType(), st.none()),
]
REFUSED: list[DataType] = [
    CalendarIntervalType(),
    YearMonthIntervalType(),
    VariantType(),
    GeometryType(0),
    GeographyType(4326),
    CharType(3),
    VarcharType(3),
]
VALUES = dict(PLAIN)
plain = st.sampled_from([kind for kind, _ in PLAIN])
good_names = st.text("abAB_-ü 1\"'$%/()", min_size=1, max_size=4)
any_names = good_names | st.text("aA.`\0* ", max_size=3) | st.sampled_from(["_rowid", "_rowaddr"])


def structs(kinds: st.SearchStrategy[DataType], names: st.SearchStrategy[str], **sizes: Any) -> Any:
    fields = st.builds(StructField, names, kinds, st.booleans())
    distinct = st.lists(fields, unique_by=lambda field: field.name, **sizes)
    return (distinct if names is good_names else st.lists(fields, **sizes)).map(StructType)


def types(leaves: st.SearchStrategy[DataType], names: st.SearchStrategy[str]) -> Any:
    keys = plain.filter(lambda kind: kind not in (NullType(), StringType("UTF8_LCASE")))
    return st.recursive(
        leaves,
        lambda kinds: (
            st.builds(ArrayType, kinds, st.booleans())
            | st.builds(MapType, keys, kinds, st.booleans())
            | structs(kinds, names, min_size=1, max_size=3)
        ),
        max_leaves=5,
    )


def values(kind: DataType, nullable: bool) -> st.SearchStrategy[Any]:
    """Draw what Spark takes for a value: tuples for structs, dicts for maps."""
    match kind:
        case StructType():
            drawn: Any = st.tuples(*(values(f.dataType, f.nullable) for f in kind.fields))
        case ArrayType():
            drawn = st.lists(values(kind.elementType, kind.containsNull), max_size=3)
        case MapType():
            keys = values(kind.keyType, False)
            items = values(kind.valueType, kind.valueContainsNull)
            drawn = st.dictionaries(keys, items, max_size=2)
        case _:
            drawn = VALUES[kind]
    return st.none() | drawn if nullable else drawn


def never_void(kind: DataType, nullable: bool = True) -> bool:
    """Tell whether a type has no part that must be null and may not be."""
    match kind:
        case NullType():
            return nullable
        case StructType():
            return all(never_void(field.dataType, field.nullable) for field in kind.fields)
        case ArrayType():
            return never_void(kind.elementType, kind.containsNull)
        case MapType():
            return never_void(kind.keyType, False) and never_void(
                kind.valueType, kind.valueContainsNull
            )
    return True


def expected(kind: DataType, value: Any) -> Any:
    """Return what a reader of the dataset must see of a value given to Spark."""
    if value is None:
        return None
    match kind:
        case StructType():
            pairs = zip(kind.fields, value, strict=True)
            return {field.name: expected(field.dataType, each) for field, each in pairs}
        case ArrayType():
            return [expected(kind.elementType, each) for each in value]
        case MapType():
            return [
                (expected(kind.keyType, key), expected(kind.valueType, each))
                for key, each in value.items()
            ]
    return value


def comparable(value: Any) -> Any:
    """Make NaN equal to itself and -0.0 different from 0.0, and maps independent of order."""
    match value:
        case float():
            return ("nan",) if math.isnan(value) else (value, math.copysign(1, value))
        case dict():
            return {name: comparable(each) for name, each in value.items()}
        case list() if value and all(isinstance(each, tuple) for each in value):
            return sorted(((comparable(key), comparable(each)) for key, each in value), key=repr)
        case list():
            return [comparable(each) for each in value]
        case Decimal():
            return Fraction(value)
        case dt.datetime() | dt.time():
            return value.isoformat()
    return value


# ------------------------------------------------------------------------------------- round trips


def options_for(folder: Path) -> SinkOptions:
    return SinkOptions.parse(
        {
            "uri": str(folder / "t.lance"),
            "queryId": "q",
            "checkpointLocation": str(folder / "checkpoint"),
            "createIfMissing": True,
        }
    )


def check_stored(uri: str, schema: StructType, rows: list[Row]) -> None:
    """Read everything, before and after a compaction, and compare."""
    wanted = [comparable(expected(schema, row)) for row in rows]
    dataset = lance.dataset(uri)
    assert dataset.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    for _ in range(2):
        found = dataset.to_table()
        found.validate(full=True)
        assert sorted(map(repr, map(comparable, found.to_pylist()))) == sorted(map(repr, wanted))
        dataset.optimize.compact_files()


def writer(options: SinkOptions, schema: pa.Schema, **sizes: Any) -> WriteTask:
    return WriteTask(
        uri=options.uri,
        run_id=options.uri,
        schema=schema,
        target_rows_per_fragment=2,
        **{"small_epoch_rows": 0, **sizes},
    )


def as_arrow(schema: StructType, rows: list[Row]) -> pa.Table:
    kinds = to_arrow_schema(schema, timezone="America/New_York")
    return pa.Table.from_pylist([expected(schema, row) for row in rows], kinds)


@st.composite
def tables(draw: st.DrawFn, schemas: Any, **sizes: int) -> tuple[StructType, list[Row]]:
    schema = draw(schemas)
    return schema, draw(st.lists(values(schema, False), **sizes))


storable = types(plain, good_names).filter(never_void)


def rows_of(fewest: int, most: int) -> st.SearchStrategy[StructType]:
    return structs(storable, good_names, min_size=fewest, max_size=most).filter(never_void)


anything = types(plain | st.sampled_from(REFUSED), any_names)


@settings(EXAMPLES, max_examples=examples(100))
@given(tables(rows_of(1, 6), max_size=4))
def test_a_schema_of_storable_types_is_accepted_and_reads_back_exactly(
    session: SparkSession, tmp_path_factory: Folders, table: tuple[StructType, list[Row]]
) -> None:
    schema, rows = table
    options = options_for(tmp_path_factory.mktemp("t"))
    port = open_target(session.createDataFrame([], schema), options)
    for part in (rows[:1], rows[1:]):
        task = writer(options, port.dataset.schema)
        written = gather_rows(as_arrow(schema, part), task, port.dataset)
        port = port.commit(Append(written.fragments)) if part else port
    check_stored(options.uri, schema, rows)


@settings(EXAMPLES, max_examples=examples(150))
@given(structs(anything, any_names, max_size=2), st.data())
def test_a_schema_is_refused_before_the_dataset_exists_or_reads_back_exactly(
    session: SparkSession, tmp_path_factory: Folders, schema: StructType, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("t")
    options = options_for(folder)
    try:
        port = open_target(session.createDataFrame([], schema), options)
    except SchemaMismatchError:
        event("refused")
        assert not list(folder.iterdir())
        return
    event("accepted")
    rows = data.draw(st.lists(values(schema, False), max_size=3))
    written = gather_rows(
        as_arrow(schema, rows), writer(options, port.dataset.schema), port.dataset
    )
    if rows:
        port.commit(Append(written.fragments))
    check_stored(options.uri, schema, rows)


@settings(EXAMPLES, max_examples=examples(2))
@given(tables(rows_of(8, 12), min_size=1, max_size=4))
def test_rows_of_spark_read_back_exactly_from_driver_and_executors(
    session: SparkSession, tmp_path_factory: Folders, table: tuple[StructType, list[Row]]
) -> None:
    schema, rows = table
    df = session.createDataFrame(rows, schema).coalesce(1)
    options = options_for(tmp_path_factory.mktemp("t"))
    port = open_target(df, options)
    task = writer(options, port.dataset.schema)
    to = EpochWriter(replace(task, small_epoch_rows=100))
    for _ in range(3):  # by executors twice, then by the driver
        port = port.commit(Append(to.write(df, port.dataset).fragments))
    check_stored(options.uri, schema, rows * 3)


in_files = types(plain.filter(lambda kind: kind != NullType()), st.text("abAB_", min_size=1))


@settings(EXAMPLES, max_examples=examples(1))
@given(tables(structs(in_files, good_names, min_size=8, max_size=12), min_size=2, max_size=4))
def test_rows_of_a_stream_read_back_exactly(
    session: SparkSession, tmp_path_factory: Folders, table: tuple[StructType, list[Row]]
) -> None:
    schema, rows = table
    stream = Stream(session, tmp_path_factory.mktemp("t"))
    session.createDataFrame(rows, schema).write.mode("overwrite").parquet(str(stream.source))
    df = session.readStream.schema(schema).parquet(str(stream.source))
    stream.run(df, createIfMissing=True)
    check_stored(stream.uri, df.schema, rows)
