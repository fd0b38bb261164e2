"""What the table must hold: each epoch's rows, made from its number, and others' changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

BASE = pa.schema([("id", pa.int64()), ("who", pa.string())])
NAMES = ("x", "y", "s")
Row = dict[str, Any]


def columns_of(query: str, epoch: int) -> pa.Schema:
    """Return a query's columns in one epoch: more with time, and now and then one is missing."""
    stage = epoch // 2
    fields = [*BASE]
    if stage > 0:
        fields.append(pa.field("x", pa.int64()))
    if stage > 1:
        inner = [pa.field("a", pa.int64()), *([pa.field("b", pa.string())] if stage > 2 else [])]
        fields.append(pa.field("s", pa.struct(inner)))
    if stage > 3:
        fields.append(pa.field("y", pa.list_(pa.float32(), 2)))
    missing = NAMES[(epoch + len(query)) % 7] if (epoch + len(query)) % 7 < len(NAMES) else ""
    return pa.schema([each for each in fields if each.name != missing])


def rows_of(query: str, epoch: int, schema: pa.Schema, *, keys: int = 0) -> pa.Table:
    """Return an epoch's rows: any driver that plans it makes the same ones.

    :param keys: for an upsert, how many keys there are; 0 gives each row a key of its own.
    """
    first = (sum(map(ord, query)) % 97) * 100_000
    many = [first + epoch * 10 + n for n in range(3)]
    ids = [first + (epoch * 5 + n) % keys for n in range(3)] if keys else many
    made: dict[str, list[Any]] = {
        "id": ids,
        "who": [f"{query}{epoch}"] * 3,
        "x": [number * 2 for number in many],
        "s": [{"a": number, "b": f"b{number}"} for number in many],
        "y": [[float(epoch), 0.5]] * 3,
    }
    return pa.Table.from_pydict({name: made[name] for name in schema.names}, schema)


def padded(row: Row) -> Row:
    """Return a row with all columns that there may ever be."""
    inner = row.get("s")
    return {
        "id": row["id"],
        "who": row["who"],
        "x": row.get("x"),
        "s": None if inner is None else {"a": inner.get("a"), "b": inner.get("b")},
        "y": row.get("y"),
    }


@dataclass
class Oracle:
    """The rows that must be in the table, by key."""

    rows: dict[int, Row] = field(default_factory=dict)
    landed: set[tuple[str, int]] = field(default_factory=set)

    def land(self, query: str, epoch: int, keys: int) -> None:
        """Record an epoch that has landed, each of them once."""
        assert (query, epoch) not in self.landed, f"epoch {epoch} of {query} is doubled"
        self.landed.add((query, epoch))
        self.add(rows_of(query, epoch, columns_of(query, epoch), keys=keys))

    def add(self, rows: pa.Table) -> None:
        """Record rows; those with the same keys are replaced."""
        self.rows |= {row["id"]: padded(row) for row in rows.to_pylist()}

    def drop(self, name: str) -> None:
        """Record that a column was dropped with all its values."""
        for row in self.rows.values():
            row[name] = None
