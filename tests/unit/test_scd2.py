"""The history of a key's rows against a plain one, in any order and in any cut into epochs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.spark.scd2 import (
    END_AT,
    OPERATION,
    SEQUENCE,
    START_AT,
    Operation,
    Versions,
)
from tests.support.history import DELETE, TRUNCATE, UPSERT, Record, history

STRUCT = pa.struct([("major", pa.int32()), ("minor", pa.string())])


def versions(sequence: pa.DataType, tracked: tuple[str, ...] = ()) -> Versions:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field(START_AT, sequence),
            pa.field("a", pa.string()),
            pa.field(END_AT, sequence),
            pa.field("b", pa.int64()),
        ]
    )
    return Versions(schema, ("id",), tracked)


class Store:
    """A history table and what is remembered beside it, changed epoch by epoch."""

    def __init__(self, of: Versions) -> None:
        self.of = of
        self.table = of.schema.empty_table()
        self.memory = of.remembered_schema.empty_table()
        self.superseded = 0

    def changes(self, records: Sequence[Record]) -> pa.Table:
        columns = {
            "id": [each.key for each in records],
            "a": [each.values[0] if each.values else None for each in records],
            "b": [each.values[1] if each.values else None for each in records],
            SEQUENCE: [each.sequence for each in records],
            OPERATION: [each.operation for each in records],
        }
        return pa.Table.from_pydict(columns, schema=self.of.changes_schema)

    def apply(
        self, records: Sequence[Record], *, killed: bool = False, all_rows: bool = True
    ) -> None:
        """Write one epoch; if killed, only what is remembered, which commits before the table."""
        changes = self.changes(records)
        stored, memory = self.table, self.memory
        if not all_rows and not any(each.operation == TRUNCATE for each in records):
            keys = changes["id"]
            stored = stored.filter(pc.is_in(stored["id"], keys))
            memory = memory.filter(
                pc.or_(pc.is_in(memory["id"], keys), pc.equal(memory[OPERATION], TRUNCATE))
            )
        rebuilt = self.of.rebuild(stored, memory, changes)
        self.memory = pa.concat_tables([self.memory, rebuilt.remember])
        if killed:
            return
        names = ["id", START_AT]
        gone = pa.concat_tables([rebuilt.remove, rebuilt.write.select(names)])
        doomed = {(row["id"], str(row[START_AT])) for row in gone.to_pylist()}
        assert len(doomed) == len(gone)
        rows = self.table.select(names).to_pylist()
        keep = [(row["id"], str(row[START_AT])) not in doomed for row in rows]
        kept = self.table.filter(pa.array(keep, pa.bool_()))
        for row in rebuilt.remove.to_pylist():
            assert (row["id"], row[START_AT]) in [(r["id"], r[START_AT]) for r in rows]
        unchanged = [row for row in self.table.to_pylist() if row in rebuilt.write.to_pylist()]
        assert not unchanged
        self.table = pa.concat_tables([kept, rebuilt.write])
        self.superseded = rebuilt.superseded

    def rows(self) -> dict[Any, Any]:
        rows = self.table.to_pylist()
        found = {
            (r["id"], _hashable(r[START_AT])): (_hashable(r[END_AT]), (r["a"], r["b"]))
            for r in rows
        }
        assert len(found) == len(rows)
        return found


def _hashable(value: Any) -> Any:
    return tuple(value.values()) if isinstance(value, dict) else value


@st.composite
def streams(draw: st.DrawFn) -> list[list[Record]]:
    """Draw records, some several times and shuffled, in epochs."""
    sequence = st.integers(0, 9)
    values = st.tuples(st.sampled_from(["x", "y", None]), st.integers(0, 3))
    upsert = st.builds(Record, st.just(UPSERT), sequence, st.integers(1, 2), values)
    delete = st.builds(Record, st.just(DELETE), sequence, st.integers(1, 2))
    truncate = st.builds(Record, st.just(TRUNCATE), sequence)
    kinds = draw(st.sampled_from([[upsert], [upsert, upsert, delete], [upsert, delete, truncate]]))
    records = draw(st.lists(st.one_of(kinds), min_size=1, max_size=14))
    again = draw(st.lists(st.sampled_from(records), max_size=3))
    everything = draw(st.permutations(records + again))
    cuts = draw(st.lists(st.integers(0, len(everything)), max_size=5).map(sorted))
    bounds = [0, *cuts, len(everything)]
    return [everything[a:b] for a, b in pairwise(bounds) if a < b]


@given(streams(), st.sampled_from([(), ("a",), ("a", "b")]), st.booleans(), st.data())
def test_any_order_and_any_cut_into_epochs_gives_the_plain_history(
    epochs: list[list[Record]], tracked: tuple[str, ...], nested: bool, data: st.DataObject
) -> None:
    def form(sequence: int) -> Any:
        return {"major": sequence // 4, "minor": "abcd"[sequence % 4]} if nested else sequence

    store = Store(versions(STRUCT if nested else pa.int64(), tracked))
    for epoch in epochs:
        records = [Record(r.operation, form(r.sequence), r.key, r.values) for r in epoch]
        if data.draw(st.booleans()):
            store.apply(records, killed=True)
        store.apply(records, all_rows=data.draw(st.booleans()))
    positions = [["a", "b"].index(name) for name in tracked]
    flat = {
        (key, _hashable(form(start))): (None if end is None else _hashable(form(end)), values)
        for (key, start), (end, values) in history(epochs, positions).items()
    }
    assert store.rows() == flat


@given(streams(), st.sampled_from([(), ("a",)]), st.randoms(use_true_random=False))
def test_the_order_of_arrival_and_the_cut_do_not_matter(
    epochs: list[list[Record]], tracked: tuple[str, ...], random: Any
) -> None:
    """Of records with equal keys and sequences, all arrive in one epoch or are equal."""
    alike: dict[Any, Record] = {}
    for each in (record for epoch in epochs for record in epoch):
        alike.setdefault((each.key, each.sequence, each.operation), each)
    records = [alike[each.key, each.sequence, each.operation] for epoch in epochs for each in epoch]
    at_once, shuffled = Store(versions(pa.int64(), tracked)), Store(versions(pa.int64(), tracked))
    at_once.apply(records)
    random.shuffle(records)
    for each in records:
        shuffled.apply([each])
    assert shuffled.rows() == at_once.rows()


def test_without_what_is_remembered_a_late_record_opens_what_a_delete_had_closed() -> None:
    store = Store(versions(pa.int64()))
    store.apply([Record(DELETE, 5, 1)])
    assert store.memory.num_rows == 1
    store.memory = store.memory.slice(0, 0)
    store.apply([Record(UPSERT, 3, 1, ("x", 1))])
    assert store.rows() == {(1, 3): (None, ("x", 1))}


def test_a_delete_that_closed_a_version_is_known_from_the_table_alone() -> None:
    store = Store(versions(pa.int64()))
    store.apply([Record(UPSERT, 1, 1, ("x", 1)), Record(DELETE, 5, 1)])
    store.memory = store.memory.slice(0, 0)
    store.apply([Record(DELETE, 1, 1)])  # the version is gone, and the delete is remembered again
    store.apply([Record(UPSERT, 3, 1, ("y", 2))])
    assert store.rows() == {(1, 3): (5, ("y", 2))}


def test_a_late_record_splits_a_version_that_was_made_of_several() -> None:
    store = Store(versions(pa.int64(), ("a",)))
    for sequence in (1, 2, 4):
        store.apply([Record(UPSERT, sequence, 1, ("x", sequence))])
    assert store.rows() == {(1, 1): (None, ("x", 4))}
    memory = store.memory
    store.apply([Record(UPSERT, 3, 1, ("y", 9))])
    assert store.rows() == {
        (1, 1): (3, ("x", 2)),
        (1, 3): (4, ("y", 9)),
        (1, 4): (None, ("x", 4)),
    }
    assert memory[SEQUENCE].to_pylist() == [1, 2, 4]


def test_what_is_remembered_from_before_a_keys_first_change_is_left_alone() -> None:
    store = Store(versions(pa.int64(), ("a",)))
    store.apply([Record(UPSERT, at, 1, ("x", at)) for at in (1, 2)])
    store.apply([Record(DELETE, 3, 1)])
    store.memory = store.memory.slice(0, 2)  # the delete's tombstone is gone
    store.apply([Record(UPSERT, 8, 1, ("x", 8))])
    assert store.rows() == {(1, 1): (3, ("x", 2)), (1, 8): (None, ("x", 8))}


def test_records_that_change_nothing_are_counted() -> None:
    store = Store(versions(pa.int64()))
    row = Record(UPSERT, 1, 1, ("x", 1))
    store.apply(
        [row, row, Record(UPSERT, 1, 1, ("w", 9)), Record(DELETE, 0, 2), Record(DELETE, 0, 2)]
    )
    assert store.superseded == 3
    assert store.rows() == {(1, 1): (None, ("x", 1))}


def test_an_epoch_without_changes_changes_nothing() -> None:
    store = Store(versions(pa.int64()))
    store.apply([Record(UPSERT, 1, 1, ("x", 1))])
    store.apply([])
    assert store.rows() == {(1, 1): (None, ("x", 1))}


@pytest.mark.parametrize("tracked", [(), ("a",)])
def test_ten_thousand_changes_take_well_under_a_second(tracked: tuple[str, ...]) -> None:
    of, count = versions(pa.timestamp("us", "UTC"), tracked), 10_000
    random = np.random.default_rng(1)
    ids = np.arange(2 * count)
    stored = pa.table(
        [
            ids,
            pa.array(ids, of.schema.field(START_AT).type),
            ids.astype(str),
            pa.nulls(len(ids), of.schema.field(START_AT).type),
            ids,
        ],
        schema=of.schema,
    )
    changes = pa.table(
        [
            random.integers(0, 2 * count, count),
            random.integers(0, 9, count).astype(str),
            random.integers(0, 9, count),
            pa.array(random.integers(0, 10**9, count)).cast(of.schema.field(START_AT).type),
            pa.array((random.random(count) < 0.1).astype(np.int8)),
        ],
        schema=of.changes_schema,
    )
    assert Operation.DELETE == 1
    began = time.process_time()
    rebuilt = of.rebuild(stored, of.changes_schema.empty_table(), changes)
    assert time.process_time() - began < 0.8
    assert rebuilt.write.num_rows > count / 2
