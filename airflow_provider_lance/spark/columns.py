"""Which columns a stream may have, and which fit the dataset; checked before the query starts.

Lance must store a column unchanged and under its name. Where the dataset exists, its Arrow schema
decides. A difference in form only (time zone, list to fixed-size list, width of a number) is cast.
A difference in meaning is refused before any data is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    CharType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from airflow_provider_lance.exceptions import SchemaMismatchError
from airflow_provider_lance.spark.compat import (
    GeographyType,
    GeometryType,
    TimeType,
    utc_arrow_schema,
)

__all__ = [
    "arrow_schema",
    "check_schema",
    "dataset_schema",
    "folding",
    "is_list",
    "is_text",
    "refuse_collated_keys",
]

RESERVED = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
    }
)
"""Columns that every Lance dataset has (pylance 14.0.2)."""

_CURES: dict[type[DataType], str] = {
    VariantType: "to_json(…) or variant_get(…)",
    GeometryType: "ST_AsBinary(…)",
    GeographyType: "ST_AsBinary(…)",
    CalendarIntervalType: "CAST(… AS STRING)",
    YearMonthIntervalType: "CAST(… AS STRING)",
    CharType: "CAST(… AS STRING)",
    VarcharType: "CAST(… AS STRING)",
    UserDefinedType: "a column of the plain values it is made of",
}
"""Types without a counterpart in Lance. As Arrow, some would become structs of their bytes."""


def arrow_schema(df: DataFrame, names: Collection[str]) -> pa.Schema:
    """Return the named columns of a stream as Arrow.

    :raises SchemaMismatchError: a name or type cannot be written, or not be read back unchanged;
        the message names every such column, and the way out.
    """
    faults = [*_unclear_names(df, names)]
    fields = [field for field in df.schema if field.name in names]
    has_time = df.sparkSession.conf.get("spark.sql.timeType.enabled", "false") == "true"
    for field in fields:
        faults += [*_unwritable_name(field.name), *_unreadable(field, field.name, has_time)]
    if not fields:
        faults.append("it has no columns at all")
    if faults:
        raise SchemaMismatchError(
            "the stream has columns that a Lance dataset cannot hold: " + "; ".join(faults)
        )
    return utc_arrow_schema(StructType(fields))


def folding(df: DataFrame) -> Callable[[str], str]:
    """Return the function that normalises names as Spark compares them; by default lower case."""
    sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    return str if sensitive else str.lower


def refuse_collated_keys(df: DataFrame, keys: Collection[str]) -> None:
    """Refuse merge keys that Spark compares differently from Lance, which compares bytes.

    :raises SchemaMismatchError: a key column has a collation.
    """
    for field in df.schema:
        kind = field.dataType
        if field.name in keys and isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise SchemaMismatchError(
                f"mergeKeys: column {field.name!r} is {kind.simpleString()}, and Lance compares "
                f"bytes; in sql: {field.name} COLLATE UTF8_BINARY AS {field.name}"
            )


def _unclear_names(df: DataFrame, names: Collection[str]) -> Iterator[str]:
    folded = folding(df)
    alike: dict[str, list[str]] = {}
    for name in df.columns:
        alike.setdefault(folded(name), []).append(name)
    for group in alike.values():
        if len(group) > 1 and not set(names).isdisjoint(group):
            yield (
                f"columns {group} have one name for Spark: give each its own in sql, with AS, or "
                "leave it out"
            )


def _unwritable_name(name: str) -> Iterator[str]:
    if name in RESERVED:
        yield f"column {name!r} has a name that Lance reserves: rename it in sql, with AS"
    if name in ("", "*") or any(each in name for each in ".`\0"):
        yield (
            f"column {name!r} has a name that Lance or Spark cannot write (empty, a star, or with "
            "a dot, a backtick or a zero byte): rename it in sql, with AS"
        )


def _unreadable(field: StructField, path: str, has_time: bool) -> Iterator[str]:
    """Yield why values of a column's type, or of a nested type, would not be read back."""
    kind = field.dataType
    for refused, cure in _CURES.items():
        if isinstance(kind, refused):
            yield (
                f"column {path!r} is {kind.simpleString()}, a type that Lance does not have: in "
                f"sql, {cure}"
            )
            return
    if isinstance(kind, TimeType) and not has_time:
        yield (
            f"column {path!r} is {kind.simpleString()}, which this Spark session refuses: set "
            "spark.sql.timeType.enabled=true, or in sql, CAST(… AS STRING)"
        )
    if isinstance(kind, NullType) and not field.nullable:
        yield f"column {path!r} has no type, as in array() or map(): in sql, CAST(… AS …)"
    children = _children(kind)
    names = Counter(child.name for child in children)
    if unclear := [name for name, count in names.items() if count > 1 or "\0" in name]:
        yield (
            f"column {path!r} is a struct with duplicate field names, or names with a zero byte: "
            f"{unclear}; rename them in sql, with named_struct(…)"
        )
    for child in children:
        yield from _unreadable(child, f"{path}.{child.name}", has_time)


def _children(kind: DataType) -> list[StructField]:
    match kind:
        case StructType():
            return kind.fields
        case ArrayType():
            return [StructField("element", kind.elementType, kind.containsNull)]
        case MapType():
            return [
                StructField("key", kind.keyType, False),
                StructField("value", kind.valueType, kind.valueContainsNull),
            ]
    return []


def check_schema(stream: pa.Schema, dataset: pa.Schema, *, uri: str) -> None:
    """Refuse a stream whose columns do not fit.

    :raises SchemaMismatchError: names every such column, both types, and the way out.
    """
    faults = [
        f"column {name!r} ({stream.field(name).type}) is not in the dataset: leave it out of the "
        "stream, add it with dataset.add_columns, or set schemaEvolution=addColumns"
        for name in stream.names
        if name not in dataset.names
    ]
    for field in dataset:
        if field.name not in stream.names:
            faults.append(
                f"column {field.name!r} ({field.type}) is missing from the stream: add it, for "
                f"example with sql: SELECT *, CAST(NULL AS …) AS {field.name} FROM source, "
                "or set missingColumns=null"
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
    return (
        f"cast it in sql, for example CAST(… AS {target}), or rewrite the dataset's column once "
        "with dataset.alter_columns, while no stream runs"
    )


def _struct_obstacle(source: pa.StructType, target: pa.StructType) -> str | None:
    ours, theirs = {f.name: f.type for f in source}, {f.name: f.type for f in target}
    if set(ours) != set(theirs):
        return (
            f"fields {sorted(set(ours) ^ set(theirs))} are on one side only; leave them out or add "
            "them in sql, with named_struct(…), or set schemaEvolution=addColumns and "
            "missingColumns=null, which add and fill fields of structs, but not of maps and vectors"
        )
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
