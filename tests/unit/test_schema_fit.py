"""What is added to a schema: the same as Lance makes of it, for any nesting."""

from __future__ import annotations

import lance
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_lance.protocol.added_columns import larger_schema
from airflow_provider_lance.spark.schema_fit import SchemaFit, _difference, _unaddable, _union

NAMES = st.sampled_from("abcd")
PLAIN = st.sampled_from([pa.int32(), pa.string(), pa.list_(pa.float32(), 2), pa.decimal128(9, 2)])


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(pa.field, NAMES, inner, nullable=st.booleans())
    made = st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name)
    return made.map(pa.struct)


TYPES = st.recursive(PLAIN, lambda inner: structs(inner) | inner.map(pa.list_), max_leaves=4)
SCHEMAS = structs(TYPES).map(lambda kind: pa.schema(list(kind)))


def paths(kind: pa.Schema | pa.DataType, path: str = "") -> set[str]:
    """Return all paths of structs and of lists of structs."""
    if isinstance(kind, pa.ListType):
        return paths(kind.value_type, path)
    if not isinstance(kind, pa.Schema | pa.StructType):
        return set()
    inner = {each for field in kind for each in paths(field.type, f"{path}{field.name}.")}
    return {f"{path}{field.name}" for field in kind} | inner


@settings(deadline=None, max_examples=150)
@given(stream=SCHEMAS, dataset=SCHEMAS)
def test_lance_makes_the_schema_that_was_planned(stream: pa.Schema, dataset: pa.Schema) -> None:
    planned, added = _union(dataset, stream), _difference(stream, dataset)
    assert bool(added.names) == (planned != dataset)
    made = lance.write_dataset(
        dataset.empty_table(), "memory://t", mode="create", session=lance.Session()
    )
    if added.names:
        schema = larger_schema(made, added)
        assert schema.to_pyarrow().equals(planned)
        ids = {field.name(): field.id() for field in made.lance_schema.fields()}
        kept = {field.name(): field.id() for field in schema.fields() if field.name() in ids}
        assert kept == ids
        named = SchemaFit(planned, added).types
        new = paths(planned) - paths(dataset)
        assert {each for each in new if each.rpartition(".")[0] not in new} == set(named)


def test_names_that_differ_only_in_case_are_refused_at_every_level() -> None:
    there = pa.schema([("s", pa.struct([("a", pa.int32())]))])
    wanted = pa.schema(
        [
            ("S", pa.int32()),
            ("s", pa.struct([("A", pa.int32())])),
            ("n", pa.int8()),
            ("N", pa.int8()),
        ]
    )
    said = list(_unaddable(wanted, there))
    assert [each.split(" ")[0] for each in said] == ["'S'", "'s.A'", "'N'"]
    assert all("differs only in case" in each for each in said)
