"""What no batch may bring into a dataset, at every level of nesting, and what it becomes."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Append, Upsert
from airflow_provider_lance.spark.casts import conform, misfits
from airflow_provider_lance.spark.collect_fragments import CollectedFragments, gather_rows
from airflow_provider_lance.spark.sieve import DELETE_FLAG
from airflow_provider_lance.spark.writer import WriteTask

F16, F32, F64, I64, TEXT = pa.float16(), pa.float32(), pa.float64(), pa.int64(), pa.string()


def task(schema: pa.Schema, uri: str = "/t.lance", **options: Any) -> WriteTask:
    return WriteTask(
        uri=uri,
        run_id="run",
        schema=schema,
        small_epoch_rows=1000,
        target_rows_per_fragment=1_000_000,
        **options,
    )


def split(table: pa.Table, schema: pa.Schema, **options: Any) -> pa.Table:
    added, _ = task(schema, **options).split(table)
    added.validate(full=True)
    return added


def unchecked(values: Any, kind: pa.DataType) -> pa.Array:
    """Make an array whose texts are the bytes given, which pyarrow would refuse."""
    return pa.array(values, as_bytes(kind)).view(kind)


def as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(as_bytes(kind.key_type), as_bytes(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(as_bytes(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(as_bytes(kind.value_type)))
    return kind


def place_name(part: object) -> str:
    """Name a part of a place in a test's id, the same in every process."""
    return getattr(part, "__name__", str(part)).strip("<>")


# Each a type, what reaches a value in it, and the value's path.
PLACES = [
    (lambda leaf: leaf, lambda v: v, "x"),
    (pa.list_, lambda v: [v], "x.element"),
    (pa.large_list, lambda v: [v], "x.element"),
    (lambda leaf: pa.struct([("a", I64), ("s", leaf)]), lambda v: {"a": 1, "s": v}, "x.s"),
    (lambda leaf: pa.map_(I64, leaf), lambda v: [(1, v)], "x.value"),
    (
        lambda leaf: pa.struct([("m", pa.map_(I64, pa.list_(pa.struct([("s", leaf)]))))]),
        lambda v: {"m": [(1, [{"s": v}])]},
        "x.m.value.element.s",
    ),
]
KEY = (lambda leaf: pa.map_(leaf, I64), lambda v: [(v, 1)], "x.key")
VECTOR = (lambda leaf: pa.list_(leaf, 1), lambda v: [v], "x.element")
every_place = pytest.mark.parametrize(("kind", "reach", "path"), PLACES, ids=place_name)

# ------------------------------------------------------------------------------------------ text

LATIN = "café".encode("latin-1")


@pytest.mark.parametrize("leaf", [TEXT, pa.large_string()], ids=str)
@pytest.mark.parametrize(("kind", "reach", "path"), [*PLACES, KEY], ids=place_name)
def test_text_that_is_not_utf8_is_refused_with_its_path_or_replaced(
    kind: Any, reach: Any, path: str, leaf: pa.DataType
) -> None:
    rows = [reach(b"fine"), None, reach("ä日😀".encode()), reach(LATIN), reach(LATIN)]
    schema = pa.schema([("x", kind(leaf))])
    table = pa.table({"x": unchecked(rows, kind(leaf))})
    with pytest.raises(RowsRefusedError) as caught:
        split(table, schema)
    said = [repr(path), "in 2 places", r"b'caf\xe9'", "invalidText=replace", "Nothing of this"]
    assert [words for words in said if words not in str(caught.value)] == []
    replaced = [reach("fine"), None, reach("ä日😀"), reach("caf\ufffd"), reach("caf\ufffd")]
    for start in range(len(rows)):
        made = split(table.slice(start), schema, replace_invalid_text=True).column("x")
        assert made.to_pylist() == pa.array(replaced[start:], kind(leaf)).to_pylist()
    fine = split(table.slice(0, 3), schema).column("x")
    assert fine.to_pylist() == pa.array(replaced[:3], kind(leaf)).to_pylist()


def test_text_is_checked_where_only_the_type_changes_too() -> None:
    table = pa.table({"x": unchecked([LATIN], TEXT)})
    with pytest.raises(RowsRefusedError, match="'x'"):
        split(table, pa.schema([("x", pa.large_string())]))


def test_a_long_example_is_shortened_around_the_first_wrong_byte() -> None:
    table = pa.table({"x": unchecked([b"a" * 100 + b"\xff\n" + b"b" * 100], TEXT)})
    with pytest.raises(RowsRefusedError) as caught:
        split(table, pa.schema([("x", TEXT)]))
    assert f"example …b'{'a' * 20}\\xff\\n{'b' * 18}'…:" in str(caught.value)


def test_a_merge_key_is_never_replaced() -> None:
    schema = pa.schema([("x", TEXT), ("y", TEXT)])
    options = {"merge_keys": ("x",), "replace_invalid_text": True}
    bad = unchecked([LATIN], TEXT)
    with pytest.raises(RowsRefusedError, match="'x'.*invalidText=replace"):
        split(pa.table({"x": bad, "y": ["fine"]}), schema, **options)
    deleted = pa.table({"x": bad, "y": bad, DELETE_FLAG: [True]})
    with pytest.raises(RowsRefusedError, match="'x'"):
        task(schema, flagged=True, **options).split(deleted)
    made = split(pa.table({"x": ["fine"], "y": bad}), schema, **options)
    assert made.to_pylist() == [{"x": "fine", "y": "caf\ufffd"}]


def test_text_of_a_deleted_row_is_not_written_and_may_be_anything() -> None:
    rows = pa.table({"x": ["k"], "y": unchecked([LATIN], TEXT), DELETE_FLAG: [True]})
    schema = pa.schema([("x", TEXT), ("y", TEXT)])
    _, deleted = task(schema, merge_keys=("x",), flagged=True).split(rows)
    assert deleted is not None
    assert deleted.to_pylist() == [{"x": "k"}]


# ---------------------------------------------------------------------------------------- floats

LOST = [
    (F64, F32, 1e300, "too large for float and would become inf, for example 1e+300"),
    (F64, F32, -1e39, "too large for float and would become -inf"),
    (F64, F32, 1e-300, "too small for float and would become 0"),
    (F64, F32, -1e-46, "too small for float and would become 0"),
    (F64, F16, 1e6, "too large for halffloat"),
    (F32, F16, 1e-10, "too small for halffloat"),
]
KEPT = [0.0, -0.0, 1e-40, math.inf, -math.inf, 0.1, 3.4e38, None]


@pytest.mark.parametrize(("source", "target", "value", "why"), LOST)
@pytest.mark.parametrize(("kind", "reach", "path"), [*PLACES, VECTOR], ids=place_name)
def test_a_float_of_which_nothing_or_infinity_would_be_left_is_refused(
    kind: Any, reach: Any, path: str, source: Any, target: Any, value: float, why: str
) -> None:
    rows = pa.array([None, reach(1.0), reach(value)], kind(source))
    with pytest.raises(RowsRefusedError) as caught:
        split(pa.table({"x": rows}), pa.schema([("x", kind(target))]))
    assert f"1 values are {why}" in str(caught.value)
    assert path == "x" or f"{path}: 1 values" in str(caught.value)


@pytest.mark.parametrize(("kind", "reach", "path"), [*PLACES, VECTOR], ids=place_name)
def test_rounding_zeros_and_infinities_pass(kind: Any, reach: Any, path: str) -> None:
    rows = pa.array([reach(value) for value in KEPT], kind(F64))
    made = split(pa.table({"x": rows}), pa.schema([("x", kind(F32))])).column("x")
    expected = [None if v is None else struct.unpack("f", struct.pack("f", v))[0] for v in KEPT]
    assert str(made.to_pylist()) == str(
        pa.array([reach(v) for v in expected], kind(F32)).to_pylist()
    )


# ----------------------------------------------------------------------------------------- nulls

STRICT = [
    (pa.list_(F64), pa.list_(pa.field("element", F64, False)), [None], "x.element"),
    (pa.list_(F64), pa.large_list(pa.field("element", F32, False)), [1.0, None], "x.element"),
    (pa.list_(F64), pa.list_(pa.field("item", F32, False), 2), [None, 1.0], "x.element"),
    (pa.struct([("a", F64)]), pa.struct([pa.field("a", F64, False)]), {"a": None}, "x.a"),
    (
        pa.map_(TEXT, F64),
        pa.map_(TEXT, pa.field("value", F64, False)),
        [("k", None)],
        "x.value",
    ),
    (
        pa.struct([("l", pa.list_(pa.struct([("a", F64)])))]),
        pa.struct([("l", pa.list_(pa.struct([pa.field("a", F64, False)])))]),
        {"l": [{"a": 1.0}, {"a": None}]},
        "x.l.element.a",
    ),
]


@pytest.mark.parametrize(("source", "target", "value", "path"), STRICT, ids=lambda p: str(p)[:40])
def test_a_null_within_a_column_is_refused_where_none_may_be(
    source: pa.DataType, target: pa.DataType, value: Any, path: str
) -> None:
    table = pa.table({"x": pa.array([value, None], source)})
    with pytest.raises(RowsRefusedError, match=f"'{path}' .*null.* in 1 places"):
        split(table, pa.schema([("x", target)]))


def test_a_null_is_seen_although_the_stream_says_that_there_is_none() -> None:
    kind = pa.list_(pa.field("element", F64, nullable=False))
    wrong = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([None], F64), type=kind)
    with pytest.raises(RowsRefusedError, match="'x.element' .*null"):
        split(pa.table({"x": wrong}), pa.schema([("x", kind)]))


def test_a_field_of_a_null_struct_is_no_null_of_its_own() -> None:
    target = pa.struct([pa.field("a", F64, nullable=False)])
    table = pa.table({"x": pa.array([None, {"a": 1.0}], pa.struct([("a", F64)]))})
    made = split(table, pa.schema([("x", target)])).column("x")
    assert made.to_pylist() == [None, {"a": 1.0}]


# -------------------------------------------------------------------------------- floats as keys

FOREIGN_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


@pytest.mark.parametrize(  # Lance has no BTREE over 16-bit floats
    ("kind", "index"), [(F16, False), (F32, False), (F32, True), (F64, False), (F64, True)], ids=str
)
@pytest.mark.parametrize(
    ("stored", "key"),
    [(0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0), (math.nan, FOREIGN_NAN), (1.5, 1.5)],
)
def test_keys_that_are_equal_in_spark_replace_one_row(
    tmp_path: Path, kind: pa.DataType, index: bool, stored: float, key: float
) -> None:
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([("k", kind), ("v", I64)])
    older = pa.table({"k": [stored, 7.0], "v": [1, 2]}, schema=schema)
    dataset = lance.write_dataset(older, uri)
    if index:
        dataset.create_scalar_index("k", "BTREE")
    to = task(schema, uri, merge_keys=("k",))
    news = pa.table({"k": pa.array([key], F64), "v": [3]})
    written = gather_rows(news, to, lance.dataset(uri))
    port = upsert(uri, written)
    assert sorted(port.dataset.to_table().column("v").to_pylist()) == [2, 3]
    port = upsert(uri, gather_rows(news, to, port.dataset))
    assert port.dataset.count_rows() == 2


def upsert(uri: str, written: CollectedFragments) -> Any:
    assert written.keys is not None
    return open_dataset(uri).commit(Upsert(written.fragments, written.keys, ("k",)))


def test_two_zeros_in_one_epoch_are_a_duplicate_key(tmp_path: Path) -> None:
    schema = pa.schema([("k", F64), ("v", I64)])
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(schema.empty_table(), uri)
    for twice in ([0.0, -0.0], [math.nan, FOREIGN_NAN]):
        rows = pa.table({"k": twice, "v": [1, 2]})
        with pytest.raises(RowsRefusedError, match=r"1 merge keys .*{'k': "):
            gather_rows(rows, task(schema, uri, merge_keys=("k",)), dataset)


def test_zeros_in_two_key_columns_are_looked_for_in_every_combination(tmp_path: Path) -> None:
    schema = pa.schema([("j", F64), ("k", F32)])
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(schema.empty_table(), uri)
    rows = pa.table({"j": [-0.0, 1.0], "k": [0.0, -0.0]})
    keys = gather_rows(rows, task(schema, uri, merge_keys=("j", "k")), dataset).keys
    assert keys is not None
    assert sorted(map(str, keys.to_pylist())) == sorted(
        str({"j": j, "k": k})
        for j, k in [(0.0, 0.0), (-0.0, 0.0), (0.0, -0.0), (-0.0, -0.0), (1.0, 0.0), (1.0, -0.0)]
    )


# ------------------------------------------------------------------------------- why text matters


def test_lance_commits_text_that_is_not_utf8_and_cannot_read_it_any_more(tmp_path: Path) -> None:
    """The reason for the check; when this fails, Lance has learned to refuse or to read it."""
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([("x", TEXT)])
    lance.write_dataset(pa.table({"x": ["fine"]}), uri)
    bad = pa.table({"x": unchecked([LATIN], TEXT)})
    fragments = task(schema, uri).write(bad.to_reader(), lance.dataset(uri))
    dataset = open_dataset(uri).commit(Append(fragments)).dataset
    assert dataset.count_rows() == 2
    for read in (dataset.to_table, dataset.optimize.compact_files):
        with pytest.raises(Exception, match=r"(?i)utf-?8"):
            read()


# ------------------------------------------------------------------------------------- misfits


@given(st.lists(st.sampled_from([0, 7, 127, 128, 300, None]), max_size=40), st.integers(1, 5))
def test_the_rows_that_are_refused_are_exactly_those_that_are_refused_alone(
    values: list[int | None], chunk: int
) -> None:
    schema = pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("t", pa.string())])
    texts = [b"\xff" if value == 7 else b"ok" for value in values]
    columns = {
        "a": pa.array(values, pa.int64()),
        "t": pa.array(texts, pa.binary()).view(pa.string()),
    }
    rows = pa.table(columns)
    parts = [rows.slice(first, chunk) for first in range(0, len(values), chunk)]
    found = misfits(pa.concat_tables(parts) if parts else rows, schema)
    alone = {}
    for row in range(len(values)):
        try:
            conform(rows.slice(row, 1), schema)
        except RowsRefusedError as error:
            alone[row] = error.reason
    assert {row: error.reason for row, error in found.items()} == alone
    assert set(alone.values()) <= {
        "column 'a' does not fit int8",
        "column 'a' is null",
        "column 't' is not UTF-8",
    }
