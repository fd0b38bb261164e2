"""Differences between PySpark 4.0 and the newest version, and names that are private there."""

from __future__ import annotations

import importlib
import inspect
import pickle
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

__all__ = [
    "OTHER_INTERNALS",
    "GeographyType",
    "GeometryType",
    "ReadAllAvailable",
    "ReadMaxRows",
    "RememberedSchema",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "offsets_of",
    "source_names",
    "utc_arrow_schema",
]

OTHER_INTERNALS = (Py4JError, PySparkException, AttributeError, TypeError, ValueError)
"""What a missing name in Spark, or a value of another kind, raises."""


def _type(name: str) -> type[DataType]:
    """Return one of Spark's types; if this PySpark lacks it, a type that no column has."""
    found: type[DataType] | None = getattr(types, name, None)
    return found or type(name, (DataType,), {})


# PySpark 4.0 lacks all three.
GeographyType = _type("GeographyType")
GeometryType = _type("GeometryType")
TimeType = _type("TimeType")

try:
    _streaming: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ImportError:  # PySpark 4.0 and 4.1, where the Lance source is refused
    _streaming = None
ReadAllAvailable: type[Any] = getattr(_streaming, "ReadAllAvailable", object)
ReadMaxRows: type[Any] = getattr(_streaming, "ReadMaxRows", object)
SupportsTriggerAvailableNow: type[Any] = getattr(_streaming, "SupportsTriggerAvailableNow", object)


class RememberedSchema:
    """Keeps the Python schema of the previous epoch's DataFrame.

    PySpark asks the JVM for it in each epoch. py4j writes an answer of more than 8 KB in two parts,
    and the second waits 40 ms for an acknowledgement (Nagle's algorithm and a delayed ACK): with
    200 columns half of an epoch of 500 rows. Comparing two Java schemas takes 0.2 ms.
    """

    def __init__(self) -> None:
        self._java: Any = None
        self._pickled = b""

    def apply_to(self, df: DataFrame) -> bool:
        """Return whether a DataFrame has the previous one's columns; it then gets their schema.

        Otherwise its own is kept for the next one.
        """
        java: Any = df._jdf.schema()
        if self._java is not None and self._java.equals(java):
            # Where `schema` is not a cached property, this has no effect. Each DataFrame gets a
            # copy: a user's function may change what it gets, as `StructType.add` does.
            vars(df)["schema"] = pickle.loads(self._pickled)
            return True
        self._java, self._pickled = java, pickle.dumps(df.schema)
        return False


def utc_arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Arrow; its timestamps with a time zone are in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # PySpark 4.0 and 4.1: always UTC


def source_names(execution: Any) -> Any:
    """Return a running query's sources by name, ``None`` in PySpark 4.0 and 4.1, which lack them.

    :param execution: Spark's ``MicroBatchExecution``.
    """
    try:
        return execution.sourceIdMap()
    except Py4JError:
        return None


def offsets_of(progress: Any, sources: Any, names: Any, metadata: Any) -> Any:
    """Return Spark's ``StreamProgress`` in the form that it writes into its offset log.

    :param names: what :func:`source_names` returned.
    """
    if names is None:
        return progress.toOffsetSeq(sources, metadata)
    return progress.toOffsets(sources, names, metadata)
