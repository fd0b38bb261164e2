"""The types of a Lance dataset in Spark: which one each column gets, and the cast of each batch."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError

__all__ = ["cast_batch", "spark_schema"]

_BLOB = b"lance-encoding:blob"

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
"""Spark has no unsigned numbers and no half floats; each value fits the wider type."""

_SAME = (
    pt.is_boolean,
    pt.is_int8,
    pt.is_int16,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_date32,
    pt.is_null,
)
_MOST_DIGITS = 38
_HAS_TIME = hasattr(types, "TimeType")


def spark_schema(schema: pa.Schema, path: str) -> StructType:
    """Return a dataset's columns in Spark's types.

    :raises SchemaMismatchError: Spark has no type for a column; names all of them.
    """
    found, refused = [], []
    for field in schema:
        is_blob = (field.metadata or {}).get(_BLOB)
        kind = None if is_blob else _plain(field.type, nullable=field.nullable)
        if kind is None:
            refused.append(f"{field.name} ({field.type})")
        else:
            found.append(pa.field(field.name, kind, field.nullable))
    if refused:
        raise SchemaMismatchError(
            f"Spark cannot read {', '.join(refused)} of {path}. Name the other columns in the "
            f"option columns: {','.join(field.name for field in found)}"
        )
    return from_arrow_schema(pa.schema(found))


def _plain(kind: pa.DataType, *, nullable: bool) -> pa.DataType | None:
    """Return the type in which Spark reads an Arrow type; ``None`` if it has none.

    Within a value that may be null, everything may be: Arrow has nulls below a null, and does not
    cast them to a type without nulls.
    """
    if isinstance(kind, pa.BaseExtensionType):  # such as Lance's blobs; some cannot be hashed
        return None
    if wider := _WIDER.get(kind):
        return wider
    if any(is_same(kind) for is_same in _SAME):
        return kind
    if pt.is_dictionary(kind):
        return _plain(kind.value_type, nullable=nullable)
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if (
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_binary_view(kind)
    ):
        return pa.binary()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pt.is_duration(kind):
        return pa.duration("us")
    if pt.is_time(kind) and _HAS_TIME:
        return pa.time64("ns")
    if pt.is_decimal(kind) and kind.precision <= _MOST_DIGITS and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    return _nested(kind, nullable)


def _nested(kind: pa.DataType, nullable: bool) -> pa.DataType | None:
    def inner(name: str, field: pa.Field) -> pa.Field | None:
        may_be_null = nullable or field.nullable
        found = _plain(field.type, nullable=may_be_null)
        return None if found is None else pa.field(name, found, may_be_null)

    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        item = inner("element", kind.value_field)
        return None if item is None else pa.list_(item)
    if pt.is_map(kind):
        key, value = _plain(kind.key_type, nullable=False), inner("value", kind.item_field)
        return None if key is None or value is None else pa.map_(key, value)
    if pt.is_struct(kind):
        fields = [inner(field.name, field) for field in kind]
        return None if any(each is None for each in fields) else pa.struct(fields)
    return None


def cast_batch(
    batch: pa.RecordBatch, target: pa.Schema, added: Mapping[str, pa.Array], path: str
) -> pa.RecordBatch:
    """Return a batch with the columns and types of ``target``; a missing column is null.

    :param added: further columns, by name.
    :raises RowsRefusedError: Spark's type cannot hold a value.
    """
    arrays = []
    for field in target:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
        elif field.name in added:
            column = added[field.name]
        else:
            column = pa.nulls(batch.num_rows, field.type)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RowsRefusedError(
                f"a value of column {field.name} ({column.type}) of {path} does not fit Spark's "
                f"type ({field.type}): {error}. Leave the column out with the option columns, or "
                "correct the value in the dataset"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=target)
