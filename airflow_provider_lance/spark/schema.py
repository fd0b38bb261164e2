"""The stream's columns against the dataset's schema, checked once before the query starts.

The dataset's Arrow schema decides. A difference in form only (time zone, list to fixed-size list,
width of a number) is cast. A difference in meaning is refused before any data is read.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.types as pt

from airflow_provider_lance.exceptions import SchemaMismatchError

__all__ = ["check_schema", "dataset_schema", "is_list", "is_text"]


def check_schema(stream: pa.Schema, dataset: pa.Schema, *, uri: str) -> None:
    """Refuse a stream whose columns do not fit.

    :raises SchemaMismatchError: names every such column, both types, and the way out.
    """
    faults = [
        f"column {name!r} ({stream.field(name).type}) is not in the dataset: leave it out of the "
        f"stream, or add it with dataset.add_columns"
        for name in stream.names
        if name not in dataset.names
    ]
    for field in dataset:
        if field.name not in stream.names:
            faults.append(
                f"column {field.name!r} ({field.type}) is missing from the stream: add it, for "
                f"example with sql: SELECT *, CAST(NULL AS …) AS {field.name} FROM source"
            )
        elif why := _obstacle(stream.field(field.name).type, field.type):
            faults.append(
                f"column {field.name!r} is {stream.field(field.name).type} in the stream and "
                f"{field.type} in the dataset: {why}"
            )
    if faults:
        raise SchemaMismatchError(f"the stream does not fit {uri}: " + "; ".join(faults))


def _obstacle(source: pa.DataType, target: pa.DataType) -> str | None:
    """Return why a type cannot be cast to another without changing its meaning."""
    if source.equals(target):
        return None
    if pt.is_fixed_size_list(target) and not _fits_vector(target.value_type):
        return f"Lance cannot write vectors of {target.value_type}; make the column a list"
    if pt.is_fixed_size_list(source) and pt.is_fixed_size_list(target):
        if source.list_size != target.list_size:
            return "the sizes differ"
        return _obstacle(source.value_type, target.value_type)
    if is_list(source) and is_list(target):
        return _obstacle(source.value_type, target.value_type)
    if pt.is_struct(source) and pt.is_struct(target):
        return _struct_obstacle(source, target)
    if pt.is_map(source) and pt.is_map(target):
        return _obstacle(source.key_type, target.key_type) or _obstacle(
            source.item_type, target.item_type
        )
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        if (source.tz is None) == (target.tz is None):
            return None
        return (
            "one has a time zone and the other none; choose one in sql with CAST AS TIMESTAMP or "
            "TIMESTAMP_NTZ"
        )
    if any(is_kind(source) and is_kind(target) for is_kind in _KINDS):
        return None
    if pt.is_integer(source) and pt.is_floating(target):
        return None
    if pt.is_integer(source) and pt.is_decimal(target) and target.scale <= _MOST_DIGITS - 19:
        return None
    return f"cast it in sql, for example CAST(… AS {target})"


def _struct_obstacle(source: pa.StructType, target: pa.StructType) -> str | None:
    ours, theirs = {f.name: f.type for f in source}, {f.name: f.type for f in target}
    if set(ours) != set(theirs):
        return f"fields {sorted(set(ours) ^ set(theirs))} are on one side only"
    obstacles = (
        f"{name}: {why}" for name in theirs if (why := _obstacle(ours[name], theirs[name]))
    )
    return next(obstacles, None)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are text, which must be UTF-8."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list of any kind, a vector included."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _fits_vector(item: pa.DataType) -> bool:
    # For texts and bytes, Lance panics at the first rows; it refuses lists and maps (pylance
    # 14.0.2).
    if pt.is_fixed_size_list(item):
        return _fits_vector(item.value_type)
    if pt.is_struct(item):
        return not any(pt.is_nested(field.type) for field in item)
    return not (
        is_text(item) or pt.is_binary(item) or pt.is_large_binary(item) or pt.is_nested(item)
    )


_MOST_DIGITS = 38
"""Digits that a decimal128 holds; an int64 takes 19 of them before the point."""

# Within a kind only the width differs; a value that does not fit is refused when rows are written.
_KINDS = (
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_duration,
    pt.is_time,
    is_text,
    _is_bytes,
)


def dataset_schema(stream: pa.Schema, vector_sizes: Mapping[str, int]) -> pa.Schema:
    """Return the schema of a dataset created for a stream; named list columns become vectors.

    :raises SchemaMismatchError: a vector column that the stream lacks, that is not a list, or whose
        items have no fixed width.
    """
    for name in vector_sizes:
        seen = stream.field(name).type if name in stream.names else "no such column"
        items = seen.value_type if isinstance(seen, pa.DataType) and is_list(seen) else None
        if items is None or pt.is_nested(items) or not _fits_vector(items):
            raise SchemaMismatchError(
                f"vectorSizes names {name!r}, which must be an array column of the stream, of "
                f"numbers or another type of fixed width; it has: {seen}"
            )
    return pa.schema(
        [
            field.with_type(pa.list_(field.type.value_type, vector_sizes[field.name]))
            if field.name in vector_sizes
            else field
            for field in stream
        ]
    )
