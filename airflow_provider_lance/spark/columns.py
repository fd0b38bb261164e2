"""Which columns a stream may have: those that Lance stores unchanged, under their names.

The stream's schema decides all of it, before a dataset is made or changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa
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

__all__ = ["arrow_schema", "folding", "refuse_collated_keys"]

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
        yield f"column {name!r} has a name that Lance keeps for itself: rename it in sql, with AS"
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
            yield f"column {path!r} is {kind.simpleString()}, which Lance has not: in sql, {cure}"
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
            f"column {path!r} is a struct with field names that are there twice, or have a zero "
            f"byte: {unclear}; rename them in sql, with named_struct(…)"
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
