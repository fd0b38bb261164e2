"""What differs between PySpark 4.0 and the newest, or is private there."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

__all__ = ["GeographyType", "GeometryType", "TimeType", "utc_arrow_schema"]


def _type(name: str) -> type[DataType]:
    """Return one of Spark's types; where this PySpark has no such type, one that no column has."""
    found: type[DataType] | None = getattr(types, name, None)
    return found or type(name, (DataType,), {})


# All three are missing in PySpark 4.0.
GeographyType = _type("GeographyType")
GeometryType = _type("GeometryType")
TimeType = _type("TimeType")


def utc_arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Arrow; its timestamps with a time zone are in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.0 and 4.1: UTC is what it does
