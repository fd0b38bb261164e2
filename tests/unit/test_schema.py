from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError
from airflow_provider_lance.spark.casts import conform
from airflow_provider_lance.spark.columns import check_schema, dataset_schema

F32, F64, I8, I32, I64 = pa.float32(), pa.float64(), pa.int8(), pa.int32(), pa.int64()
UTC, NEW_YORK = pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="America/New_York")
NAIVE, TEXT, BYTES = pa.timestamp("us"), pa.string(), pa.binary()
PAIR = pa.struct([("a", I32), ("b", TEXT)])
SWAPPED = pa.struct([("b", TEXT), ("a", I64)])
VECTOR, LIST = pa.list_(F32, 2), pa.list_(F64)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)


def check(source: pa.DataType, target: pa.DataType) -> None:
    check_schema(pa.schema([("x", source)]), pa.schema([("x", target)]), uri="/t.lance")


def cast(array: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    made = conform(pa.table({"x": array}), pa.schema([("x", target)])).column("x")
    made.validate(full=True)
    assert made.type == target
    return made


PAIRS = [[{"a": 1, "b": "x"}], None, [], [{"a": None, "b": "y"}, None]]
VECTORS = [[1.0, 2.0], None, [3.0, None], [4.0, 5.0]]

# Source type, dataset type, values as they are read before and after.
FITS: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (I64, I64, [1, None]),
    (I64, I8, [1, None, -128]),
    (I8, pa.uint16(), [1, None]),
    (I64, F64, [1, None]),
    (I64, pa.decimal128(38, 4), [Decimal(1), None]),
    (F64, F32, [0.5, None]),
    (F32, F64, [0.5, None]),
    (pa.decimal128(10, 2), pa.decimal128(20, 4), [Decimal("12.5"), None]),
    (pa.date32(), pa.date64(), [dt.date(2026, 7, 1), None]),
    (pa.duration("us"), pa.duration("ms"), [dt.timedelta(seconds=1), None]),
    (pa.bool_(), pa.bool_(), [True, None]),
    (TEXT, pa.large_string(), ["ä", "", None]),
    (BYTES, pa.large_binary(), [b"a", b"", None]),
    (pa.time64("ns"), pa.time64("us"), [dt.time(12, 30, 0, 1), None]),
    (BYTES, pa.binary(2), [b"ab", None]),
    (NEW_YORK, UTC, [NOON, None]),
    (NEW_YORK, pa.timestamp("ms", tz="UTC"), [NOON, None]),
    (NAIVE, pa.timestamp("ns"), [dt.datetime(2026, 7, 1), None]),
    (LIST, pa.list_(F32), VECTORS),
    (LIST, pa.large_list(F32), VECTORS),
    (pa.large_list(F64), pa.list_(F32), VECTORS),
    (LIST, VECTOR, VECTORS),
    (pa.large_list(F64), VECTOR, VECTORS),
    (LIST, VECTOR, [None, None]),
    (LIST, VECTOR, []),
    (pa.list_(F64, 2), VECTOR, VECTORS),
    (pa.list_(F64, 2), pa.list_(F32), VECTORS),
    (pa.list_(LIST), pa.list_(VECTOR), [[[1.0, 2.0], None], None, []]),
    (PAIR, SWAPPED, [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    (pa.struct([("n", PAIR)]), pa.struct([("n", SWAPPED)]), [{"n": {"a": 1, "b": "x"}}, None]),
    (pa.list_(PAIR), pa.list_(SWAPPED), PAIRS),
    (pa.list_(PAIR), pa.large_list(SWAPPED), PAIRS),
    (pa.large_list(PAIR), pa.list_(SWAPPED), PAIRS),
    (pa.list_(PAIR), pa.list_(SWAPPED, 1), [[{"a": 1, "b": "x"}], None, [None]]),
    (pa.list_(pa.list_(PAIR)), pa.list_(pa.list_(SWAPPED)), [PAIRS, None, []]),
    (pa.map_(TEXT, I32), pa.map_(TEXT, I64), [[("k", 1), ("l", None)], None, []]),
    (pa.map_(TEXT, PAIR), pa.map_(TEXT, SWAPPED), [[("k", {"a": 1, "b": "x"})], None]),
]
CASTS = pytest.mark.parametrize(("source", "target", "values"), FITS, ids=str)


def same(found: Any, values: list[Any]) -> bool:
    return bool(found.to_pylist() == pa.array(values, found.type).to_pylist())


@CASTS
def test_cast_that_keeps_every_value_is_accepted(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    check(source, target)
    assert same(cast(pa.array(values, source), target), values)


@CASTS
def test_a_slice_is_cast_like_a_whole(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    around = pa.array([*values, *values, *values], source)
    for start in range(len(values) + 1):
        window = around.slice(start, len(values))
        assert same(cast(window, target), window.to_pylist())


@CASTS
def test_chunks_are_cast_in_order(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    chunks = pa.chunked_array([pa.array(values, source), pa.array(values, source).slice(1)])
    assert same(cast(chunks, target), [*values, *values[1:]])


REFUSED: list[tuple[pa.DataType, pa.DataType, str]] = [
    (TEXT, I64, "CAST(… AS int64)"),
    (I64, TEXT, "CAST(… AS string)"),
    (F64, I64, "CAST(… AS int64)"),
    (F64, pa.decimal128(10, 2), "CAST(… AS decimal128(10, 2))"),
    (pa.decimal128(10, 2), F64, "CAST(… AS double)"),
    (pa.bool_(), I64, "CAST(… AS int64)"),
    (TEXT, BYTES, "CAST(… AS binary)"),
    (pa.date32(), NAIVE, "CAST(… AS timestamp[us])"),
    (NAIVE, pa.date32(), "CAST(… AS date32[day])"),
    (NAIVE, UTC, "one has a time zone and the other none"),
    (NEW_YORK, NAIVE, "one has a time zone and the other none"),
    (pa.list_(TEXT), VECTOR, "CAST(… AS float)"),
    (pa.list_(TEXT), pa.list_(TEXT, 2), "Lance cannot write vectors of string"),
    (pa.list_(pa.list_(BYTES)), pa.list_(pa.list_(BYTES, 2)), "cannot write vectors of binary"),
    (TEXT, LIST, "CAST(… AS list"),
    (PAIR, pa.struct([("a", I32), ("c", TEXT)]), "fields ['b', 'c'] are on one side only"),
    (PAIR, pa.struct([("a", TEXT), ("b", TEXT)]), "a: cast it in sql"),
    (pa.map_(TEXT, I64), pa.map_(I64, I64), "CAST(… AS int64)"),
    (pa.map_(TEXT, I64), pa.map_(TEXT, TEXT), "CAST(… AS string)"),
    (pa.list_(NAIVE), pa.list_(UTC), "one has a time zone"),
]


@pytest.mark.parametrize(("source", "target", "way_out"), REFUSED, ids=str)
def test_what_would_change_the_meaning_is_refused_with_both_types_and_the_way_out(
    source: pa.DataType, target: pa.DataType, way_out: str
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        check(source, target)
    said = [f"'x' is {source} in the stream", f"{target} in the dataset", way_out, "/t.lance"]
    assert [words for words in said if words not in str(caught.value)] == []


def test_every_column_at_fault_is_named_at_once() -> None:
    stream = pa.schema([("same", I64), ("surplus", TEXT), ("wrong", TEXT)])
    dataset = pa.schema([("same", I64), ("missing", I64), ("wrong", I64)])
    with pytest.raises(SchemaMismatchError) as caught:
        check_schema(stream, dataset, uri="/t.lance")
    text = str(caught.value)
    assert "'surplus' (string)" in text
    assert "dataset.add_columns" in text
    assert "'missing' (int64)" in text
    assert "AS missing FROM source" in text
    assert "'wrong' is string" in text
    assert "'same'" not in text


def test_columns_may_come_in_any_order() -> None:
    stream, dataset = pa.schema([("b", TEXT), ("a", I64)]), pa.schema([("a", I64), ("b", TEXT)])
    check_schema(stream, dataset, uri="/t")


# ----------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "source", "target", "why"),
    [
        (1000, I64, I8, "1000 not in range"),
        (-1, I64, pa.uint8(), "-1 not in range"),
        ([1.0], LIST, VECTOR, "the first has 1"),
        (b"abc", BYTES, pa.binary(2), "widths must match"),
        (Decimal("1.25"), pa.decimal128(5, 2), pa.decimal128(5, 1), "would cause data loss"),
        (dt.datetime(2026, 7, 1, 0, 0, 0, 1), NAIVE, pa.timestamp("ms"), "would lose data"),
        (2**53 + 1, I64, F64, "not in range"),
        ([{"a": 1, "b": "x"}], pa.list_(PAIR), pa.list_(SWAPPED, 2), "the first has 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_column_types_and_reason(
    value: Any, source: pa.DataType, target: pa.DataType, why: str
) -> None:
    with pytest.raises(RowsRefusedError) as caught:
        cast(pa.array([value], source), target)
    text = str(caught.value)
    said = ["'x'", f"the dataset's {target}", f"has {source}", why, "nothing of this epoch"]
    assert [words for words in said if words not in text] == []


def test_a_null_in_a_column_that_may_have_none_is_refused_with_the_count() -> None:
    schema = pa.schema([pa.field("x", I64, nullable=False)])
    with pytest.raises(RowsRefusedError, match="'x' .*null.* in 2 rows"):
        conform(pa.table({"x": pa.array([1, None, None], I32)}), schema)
    assert conform(pa.table({"x": pa.array([1], I32)}), schema).schema == schema


def test_columns_take_the_datasets_order_and_metadata() -> None:
    schema = pa.schema([pa.field("b", TEXT, metadata={"k": "v"}), ("a", I64)], metadata={"m": "n"})
    made = conform(pa.table({"a": [1], "extra": [2], "b": ["x"]}), schema)
    assert made.schema.equals(schema, check_metadata=True)
    assert made.to_pylist() == [{"b": "x", "a": 1}]


# ------------------------------------------------------------------------- against pyarrow

small = st.integers(-128, 127)
halves = small.map(lambda n: n / 2)
PLAIN: list[tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (I64, I8, small),
    (I64, F32, small),
    (F64, F32, halves),
    (TEXT, pa.large_string(), st.text(max_size=4)),
    (BYTES, pa.large_binary(), st.binary(max_size=4)),
    (NEW_YORK, UTC, st.integers(-(10**15), 10**15)),
    (LIST, pa.list_(F32), st.lists(st.none() | halves, max_size=3)),
    (LIST, pa.large_list(F32), st.lists(st.none() | halves, max_size=3)),
    (LIST, VECTOR, st.lists(st.none() | halves, min_size=2, max_size=2)),
    (pa.list_(F64, 2), VECTOR, st.lists(st.none() | halves, min_size=2, max_size=2)),
    (
        pa.map_(TEXT, I32),
        pa.map_(TEXT, I64),
        st.lists(st.tuples(st.text(max_size=2), st.none() | small), max_size=2),
    ),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.ChunkedArray, pa.DataType]:
    """Draw a chunked column, each chunk a slice of a longer array, and a type it fits."""
    source, target, value = draw(st.sampled_from(PLAIN))
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        whole = pa.array(draw(st.lists(st.none() | value, max_size=6)), source)
        start = draw(st.integers(0, len(whole)))
        chunks.append(whole.slice(start, draw(st.integers(0, len(whole) - start))))
    return pa.chunked_array(chunks, source), target


@given(columns())
def test_conform_is_pyarrows_cast_where_that_is_defined(
    drawn: tuple[pa.ChunkedArray, pa.DataType],
) -> None:
    column, target = drawn
    assert cast(column, target).to_pylist() == pc.cast(column, target).to_pylist()


pairs = st.none() | st.fixed_dictionaries(
    {"a": st.none() | small, "b": st.none() | st.text(max_size=2)}
)


@given(st.lists(st.tuples(pairs, st.none() | st.lists(pairs, max_size=3)), max_size=8), st.data())
def test_conform_never_loses_or_moves_a_row(
    rows: list[tuple[Any, Any]], data: st.DataObject
) -> None:
    whole = pa.table(
        {
            "row": pa.array(range(len(rows)), I32),
            "one": pa.array([one for one, _ in rows], PAIR),
            "many": pa.array([many for _, many in rows], pa.list_(PAIR)),
        }
    )
    start = data.draw(st.integers(0, len(rows)))
    table = whole.slice(start, data.draw(st.integers(0, len(rows) - start)))
    schema = pa.schema([("many", pa.list_(SWAPPED)), ("row", I64), ("one", SWAPPED)])
    made = conform(table, schema)
    made.validate(full=True)
    for name in schema.names:
        assert made.column(name).to_pylist() == table.column(name).to_pylist()


# ----------------------------------------------------------------------- a dataset that is made


def test_a_dataset_is_made_like_the_stream_with_named_lists_as_vectors() -> None:
    stream = pa.schema([("id", I64), ("v", pa.list_(F32)), ("tags", pa.list_(TEXT))])
    assert dataset_schema(stream, {"v": 768}) == pa.schema(
        [("id", I64), ("v", pa.list_(F32, 768)), ("tags", pa.list_(TEXT))]
    )
    assert dataset_schema(stream, {}) == stream


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("id", "int64"),
        ("nowhere", "no such column"),
        ("texts", "list<item: string>"),
        ("blobs", "list<item: binary>"),
        ("pairs", "list<item: struct<a: int32, b: string>>"),
    ],
)
def test_a_vector_that_is_no_list_of_plain_values_is_refused(name: str, seen: str) -> None:
    lists = [("texts", pa.list_(TEXT)), ("blobs", pa.list_(BYTES)), ("pairs", pa.list_(PAIR))]
    with pytest.raises(SchemaMismatchError, match=f"vectorSizes names '{name}'.*it has: {seen}"):
        dataset_schema(pa.schema([("id", I64), *lists]), {name: 3})


@pytest.mark.parametrize("item", [F32, pa.float64(), pa.int8(), I64, pa.decimal128(21, 2)])
def test_a_vector_of_numbers_is_made_and_can_be_written(item: pa.DataType, tmp_path: Path) -> None:
    made = dataset_schema(pa.schema([("v", pa.list_(item))]), {"v": 2})
    values = pa.array([1, 2, 3, 4], I64).cast(item)
    rows = pa.table([pa.FixedSizeListArray.from_arrays(values, type=made[0].type)], schema=made)
    lance.write_dataset(rows, str(tmp_path / "table.lance"), schema=made)
    assert lance.dataset(str(tmp_path / "table.lance")).to_table() == rows


def test_a_column_of_texts_for_a_vector_of_texts_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="'x'.*vectors of string"):
        check(pa.list_(TEXT), pa.list_(TEXT, 2))
