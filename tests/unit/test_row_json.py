"""Rows of a quarantine as JSON: nothing is lost, and what does not fit is refused by its column."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.protocol.row_json import encode_rows, read_row, table_of

KINDS: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.integers(-(2**60), 2**60)),
    (pa.decimal128(20, 3), st.decimals(-(10**15), 10**15, places=3)),
]


def nested(kinds: Any) -> Any:
    return st.one_of(
        kinds.map(lambda k: (pa.list_(k[0]), st.lists(st.none() | k[1], max_size=3))),
        kinds.map(
            lambda k: (
                pa.struct([("a", k[0]), ("b", pa.string())]),
                st.fixed_dictionaries({"a": st.none() | k[1], "b": st.none() | st.text()}),
            )
        ),
        kinds.map(
            lambda k: (
                pa.map_(pa.string(), k[0]),
                st.lists(st.tuples(st.text(), st.none() | k[1]), max_size=3),
            )
        ),
        st.sampled_from(KINDS[1:5]).map(
            lambda k: (pa.list_(k[0], 2), st.lists(k[1], min_size=2, max_size=2))
        ),
    )


TYPES = st.recursive(st.sampled_from(KINDS), nested, max_leaves=3)


@given(st.data())
def test_every_row_comes_back_as_it_was(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    rows = data.draw(st.integers(0, 4))
    schema = pa.schema([(f"c{n}", kind) for n, (kind, _) in enumerate(chosen)])
    columns = [
        pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for kind, values in chosen
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    texts = encode_rows(table)
    assert all(json.loads(text) for text in texts)
    assert table_of([read_row(text) for text in texts], schema).equals(table)


def test_floats_that_json_lacks_and_text_that_is_not_utf8_are_kept() -> None:
    raw = pa.array([b"caf\xe9", b"ok", None]).view(pa.string())
    floats = [float("nan"), float("inf"), float("-inf")]
    texts = encode_rows(pa.table({"t": raw, "f": floats}))
    assert [json.loads(each) for each in texts] == [
        {"t": {"$base64": "Y2Fm6Q=="}, "f": "NaN"},
        {"t": "ok", "f": "Infinity"},
        {"t": None, "f": "-Infinity"},
    ]
    back = table_of([{"f": "NaN"}, {"f": "Infinity"}], pa.schema([("f", pa.float64())]))
    assert str(back.column("f").to_pylist()) == "[nan, inf]"


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.string(), {"$base64": "Y2Fm6Q=="}, "still to be mended"),
        (pa.string(), 7, "a text is expected"),
        (pa.string(), "\ud800", "surrogates"),
        (pa.binary(), "text", "bytes are expected"),
        (pa.binary(), {"$base64": "?"}, "not base64"),
        (pa.int8(), 300, "not fit"),
        (pa.int8(), 1.5, "not fit"),
        (pa.int8(), "1", "not fit"),
        (pa.date32(), "yesterday", "yesterday"),
        (pa.timestamp("us"), 7, "a text is expected"),
        (pa.decimal128(4, 2), "123.45", "not fit"),
        (pa.decimal128(4, 2), 1.5, "a text is expected"),
        (pa.struct([("a", pa.int8())]), {"b": 1}, "no fields ['b']"),
        (pa.struct([("a", pa.int8())]), [1], "an object is expected"),
        (pa.list_(pa.int8()), {}, "a list is expected"),
        (pa.map_(pa.string(), pa.int8()), [["k"]], "a list of [key, value]"),
        (pa.null(), 1, "not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(
    kind: pa.DataType, value: Any, said: str
) -> None:
    with pytest.raises(ValueError, match="column 'c' takes") as raised:
        table_of([{"c": value}], pa.schema([("c", kind)]))
    assert said in str(raised.value)


def test_a_null_is_refused_where_the_dataset_allows_none() -> None:
    schema = pa.schema([pa.field("c", pa.int8(), nullable=False)])
    with pytest.raises(ValueError, match="'c' may not be null"):
        table_of([{}], schema)


def test_whole_numbers_are_decimals_too() -> None:
    found = table_of([{"c": 12}, {"c": "0.5"}], pa.schema([("c", pa.decimal128(4, 2))]))
    assert found.column("c").to_pylist() == [Decimal("12.00"), Decimal("0.50")]


@pytest.mark.parametrize("text", ["[]", "7", "{", '{"a":NaN}', None])
def test_a_row_is_one_json_object(text: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        read_row(text)


def test_a_null_struct_whose_field_is_never_null_is_kept() -> None:
    never_null = pa.field("a", pa.int64(), nullable=False)
    below = pa.array([None, 1], never_null.type)  # as Spark gives it
    column = pa.StructArray.from_arrays([below], fields=[never_null], mask=pa.array([True, False]))
    assert encode_rows(pa.table({"c": column})) == ['{"c":null}', '{"c":{"a":1}}']
