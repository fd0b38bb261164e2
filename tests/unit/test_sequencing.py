"""Records in the order of their sequences, beside a plain replay of one record after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.spark.sequencing import Order, Stored, refuse_unordered

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("a", pa.string()), ("b", pa.float64())])
ORDER = Order(("k",), ("s",))
TOMBSTONES = ORDER.tombstones_of(SCHEMA)

SEARCH = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

Record = tuple[str, int | None, int, str | None, float | None]
"""What it does, key, sequence, and two values."""

KEYS, SEQUENCES = st.integers(0, 4), st.integers(0, 9)
RECORDS = st.lists(
    st.one_of(
        st.tuples(
            st.just("upsert"),
            KEYS,
            SEQUENCES,
            st.sampled_from(["x", "y", None]),
            st.sampled_from([0.0, -0.0, 1.0, None]),
        ),
        st.tuples(st.just("delete"), KEYS, SEQUENCES, st.none(), st.none()),
        st.tuples(st.just("truncate"), st.none(), SEQUENCES, st.none(), st.none()),
    ),
    max_size=25,
)


@dataclass
class Table:
    """A table and its tombstones, changed by the code under test, one epoch after another."""

    order: Order = ORDER
    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    tombstones: pa.Table = field(default_factory=TOMBSTONES.empty_table)
    late: int = 0

    def apply(self, records: list[Record]) -> None:
        upserts = _table([each[1:] for each in records if each[0] == "upsert"], SCHEMA)
        deletes = _table([each[1:3] for each in records if each[0] == "delete"], TOMBSTONES)
        truncates = _table([each[2:3] for each in records if each[0] == "truncate"], _SEQUENCE)
        stored = Stored(self.rows, self.tombstones)
        cut = self.order.truncate(truncates, stored)
        found = self.order.resolve(upserts, deletes, stored, cut.sequence)
        landed = found.rows.num_rows + found.deletes + cut.sequence.num_rows
        lost = found.late + found.superseded + cut.late + cut.superseded
        assert landed + lost == len(records)
        self.late += found.late + cut.late
        gone = {*_keys(found.rows), *_keys(found.removed), *_keys(cut.removed)}
        assert set(_keys(found.removed)) <= set(_keys(self.rows))
        kept = [row for row in self.rows.to_pylist() if row["k"] not in gone]
        self.rows = pa.concat_tables([pa.Table.from_pylist(kept, SCHEMA), found.rows])
        self.tombstones = pa.concat_tables([self.tombstones, found.tombstones, cut.tombstones])

    def content(self) -> list[str]:
        return sorted(repr(list(row.values())) for row in self.rows.to_pylist())


_SEQUENCE = pa.schema([("s", pa.int64())])


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _keys(table: pa.Table) -> list[Any]:
    found: list[Any] = table["k"].to_pylist()
    return found


def replayed(records: list[Record]) -> list[str]:
    """Return what the table must hold: the records one by one in the order of their sequences."""

    def place(record: Record) -> tuple[Any, ...]:
        what, _, sequence, a, b = record
        return sequence, what != "upsert", a or "", -1.0 if b is None else b, str(b)

    rows: dict[int, list[Any]] = {}
    for what, key, sequence, a, b in sorted(records, key=place):
        if what == "truncate":
            rows.clear()
        elif what == "delete":
            rows.pop(key or 0, None)
        else:
            rows[key or 0] = [key, sequence, a, b]
    return sorted(map(repr, rows.values()))


def _distinct(records: list[Record]) -> list[Record]:
    """Return the records without a second upsert of one key and sequence in a later epoch."""
    return list({(each[0], each[1], each[2]): each for each in records}.values())


@SEARCH
@given(RECORDS, st.integers(0, 2**32), st.integers(1, 5))
def test_a_table_holds_what_a_replay_in_order_gives_whatever_arrives_when(
    records: list[Record], seed: int, epochs: int
) -> None:
    random = Random(seed)
    # Across epochs, the stored one of two upserts with one sequence stays: so each has its own.
    records = _distinct(records)
    arriving = records + random.sample(records, random.randint(0, len(records)))
    random.shuffle(arriving)
    table = Table()
    for number in range(epochs):
        table.apply(arriving[number::epochs])
    assert table.content() == replayed(records)
    before = table.late
    table.apply(arriving)  # an epoch that repeats all of it changes nothing
    assert table.content() == replayed(records)
    assert table.late >= before


@SEARCH
@given(RECORDS, st.randoms(use_true_random=False))
def test_of_one_epoch_the_order_of_arrival_decides_nothing(
    records: list[Record], random: Random
) -> None:
    first, second = Table(), Table()
    first.apply(records)
    random.shuffle(records)
    second.apply(records)
    assert first.content() == second.content() == replayed(records)
    assert sorted(map(str, first.tombstones.to_pylist())) == sorted(
        map(str, second.tombstones.to_pylist())
    )


def test_a_dead_row_is_raised_only_without_its_tombstone() -> None:
    records: list[Record] = [
        ("upsert", 1, 1, "a", None),
        ("delete", 1, 3, None, None),
        ("upsert", 1, 2, "b", None),
    ]
    table, forgets = Table(), Table()
    for each in records:
        table.apply([each])
        forgets.apply([each])
        forgets.tombstones = TOMBSTONES.empty_table()
    assert table.content() == []
    assert table.late == 1
    assert forgets.content() == ["[1, 2, 'b', None]"]


def partially(table: dict[int, list[Any]], graves: dict[Any, int], records: list[Record]) -> None:
    """Apply one epoch of partial records to rows by key: the oracle of `ignoreNullUpdates`."""
    stored = {key: row[1] for key, row in table.items()}
    known = dict(graves)

    def newer(record: Record) -> bool:
        what, key, sequence = record[:3]
        grave = max(known.get(None, -1), known.get(key, -1))
        row = stored.get(key, -1) if key is not None else -1
        if what == "upsert":
            return sequence > grave and sequence > row
        return sequence >= grave and (what == "truncate" or sequence >= row)

    def place(record: Record) -> tuple[Any, ...]:
        what, _, sequence, a, b = record
        return sequence, what != "upsert", a or "", -1.0 if b is None else b, str(b)

    ranked = sorted(filter(newer, records), key=place)
    last = {each[:3]: each for each in ranked}
    for what, key, sequence, a, b in (each for each in ranked if last[each[:3]] is each):
        if what == "truncate":
            for gone in [each for each, row in table.items() if row[1] <= sequence]:
                del table[gone]
        elif what == "delete":
            table.pop(key or 0, None)
        else:
            before = table.get(key or 0, [key, sequence, None, None])
            old_a, old_b = before[2:]
            table[key or 0] = [
                key,
                sequence,
                old_a if a is None else a,
                old_b if b is None else b,
            ]
        if what != "upsert":
            graves[key] = max(graves.get(key, -1), sequence)


@SEARCH
@given(st.lists(RECORDS, max_size=4), st.randoms(use_true_random=False))
def test_a_null_in_a_newer_record_keeps_the_value_before_it(
    epochs: list[list[Record]], random: Random
) -> None:
    rows: dict[int, list[Any]] = {}
    graves: dict[Any, int] = {}
    table = Table(Order(("k",), ("s",), partial=True))
    for records in epochs:
        partially(rows, graves, records)
        random.shuffle(records)
        table.apply(records)
        assert table.content() == sorted(map(repr, rows.values()))


def test_records_without_a_sequence_are_refused_with_their_column() -> None:
    kind = pa.struct([("ts", pa.float64()), ("n", pa.int64())])
    good = pa.table({"s": pa.array([{"ts": 1.0, "n": 1}], kind)})
    refuse_unordered(good, ["s"])
    for value, path in (
        ({"ts": 1.0, "n": None}, "s.n"),
        ({"ts": float("nan"), "n": 1}, "s.ts"),
        (None, "s"),
    ):
        with pytest.raises(RowsRefusedError, match=f"'{path}' is null or NaN in 1 rows"):
            refuse_unordered(pa.table({"s": pa.array([value], kind)}), ["s"])


def test_several_columns_and_a_struct_order_records_part_by_part() -> None:
    kind = pa.struct([("lsn", pa.int64()), ("part", pa.string())])
    schema = pa.schema([("k", pa.string()), ("l", pa.int32()), ("at", kind), ("x", pa.bool_())])
    for columns in (("at",), ("at", "l"), ("l", "at")):
        order = Order(("k", "l") if "l" not in columns else ("k",), columns)
        rows = [
            {"k": "a", "l": 1, "at": {"lsn": 2, "part": "a"}, "x": False},
            {"k": "a", "l": 1, "at": {"lsn": 2, "part": "b"}, "x": True},
            {"k": "a", "l": 1, "at": {"lsn": 1, "part": "z"}, "x": False},
        ]
        for arriving in (rows, rows[::-1]):
            upserts = pa.Table.from_pylist(arriving, schema)
            deletes = order.tombstones_of(schema).empty_table()
            stored = Stored(schema.empty_table(), deletes)
            found = order.resolve(upserts, deletes, stored)
            assert found.rows.to_pylist() == [rows[1]]
            assert found.superseded == 2


def test_a_stored_null_is_older_than_every_sequence_and_a_stored_tie_stays() -> None:
    stored = Stored(
        pa.Table.from_pylist(
            [{"k": 1, "s": None, "a": "old"}, {"k": 2, "s": 5, "a": "old"}], SCHEMA
        ),
        TOMBSTONES.empty_table(),
    )
    upserts = pa.Table.from_pylist(
        [{"k": 1, "s": -(2**63), "a": "new"}, {"k": 2, "s": 5, "a": "zzz"}], SCHEMA
    )
    found = ORDER.resolve(upserts, TOMBSTONES.empty_table(), stored)
    assert found.rows["a"].to_pylist() == ["new"]
    assert found.late == 1
    deletes = pa.Table.from_pylist([{"k": 1, "s": 0}, {"k": 2, "s": 5}], TOMBSTONES)
    found = ORDER.resolve(SCHEMA.empty_table(), deletes, stored)
    assert found.removed["k"].to_pylist() == [1, 2]
    assert found.tombstones.to_pylist() == deletes.to_pylist()
