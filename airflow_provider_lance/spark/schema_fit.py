"""How a stream's columns fit a dataset: as they are, added to it, or filled with null.

Columns are added only with ``schemaEvolution=addColumns``: whole columns, and fields of structs,
also of structs in structs and lists. Lance adds these without rewriting data. It has no wider type
without rewriting: data files hold values in the width of their column (pylance 14.0.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame

from airflow_provider_lance.exceptions import SchemaMismatchError
from airflow_provider_lance.spark.columns import arrow_schema, check_schema, dataset_schema
from airflow_provider_lance.spark.history import history_schema
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["SchemaFit", "fit_schema"]

_OWN_PREFIX = "__lance_"
"""Names under which the sink itself evaluates conditions beside a stream's columns."""


@dataclass(frozen=True)
class SchemaFit:
    """What becomes of a stream's columns.

    ``schema`` is the dataset's once ``added`` is part of it; ``added`` is what
    :class:`.protocol.port.AddColumns` takes. ``missing`` are columns of the dataset that the stream
    lacks, and that are filled with null.
    """

    schema: pa.Schema
    added: pa.Schema
    missing: tuple[str, ...] = ()

    @property
    def types(self) -> dict[str, str]:
        """Return the type of each added column or field, by path."""
        return dict(_leaves(self.added, self.schema))


def fit_schema(
    df: DataFrame, dataset: pa.Schema, options: SinkOptions, *, passing: Collection[str]
) -> SchemaFit:
    """Fit a stream's columns to a dataset that exists.

    :param passing: columns that the dataset need not have, and that are not added.
    :raises SchemaMismatchError: a column does not fit, or may neither be added nor be missing; the
        message names every such column, both types, and the way out.
    """
    kept = [
        name
        for name in df.columns
        if (name in dataset.names or name not in passing) and name not in options.except_columns
    ]
    stream = arrow_schema(df, kept)
    if options.scd_type == 2:
        stream = history_schema(df, stream, options)
    schema, added = dataset, pa.schema([])
    if options.add_columns:
        new = [field for field in stream if field.name not in dataset.names]
        sizes = {
            f.name: options.vector_sizes[f.name] for f in new if f.name in options.vector_sizes
        }
        vectors = {field.name: field for field in dataset_schema(pa.schema(new), sizes)}
        stream_now = pa.schema([vectors.get(field.name, field) for field in stream])
        if faults := [*_unaddable(stream_now, dataset)]:
            raise SchemaMismatchError(
                f"the stream has columns that cannot be added to {options.uri}: "
                + "; ".join(faults)
            )
        schema, added = _union(dataset, stream_now), _difference(stream_now, dataset)
    missing: tuple[str, ...] = ()
    if options.fill_missing:
        missing = tuple(name for name in dataset.names if name not in stream.names)
        _refuse_needed(missing, dataset, options)
        stream = _union(stream, schema)
    check_schema(stream, schema, uri=options.uri)
    return SchemaFit(schema, added, missing)


def _refuse_needed(missing: tuple[str, ...], dataset: pa.Schema, options: SinkOptions) -> None:
    needed = [
        f"{name!r} ({dataset.field(name).type})"
        for name in missing
        if name in options.merge_keys or not dataset.field(name).nullable
    ]
    if needed:
        raise SchemaMismatchError(
            f"columns {', '.join(needed)} of {options.uri} are missing from the stream and may not "
            "be null: they are merge keys, or not nullable in the dataset. missingColumns=null "
            "does not apply to them; add them in sql"
        )


# ------------------------------------------------------------------------------- fields of a type


def _fields(kind: pa.Schema | pa.DataType) -> list[pa.Field] | None:
    """Return the fields of a schema, of a struct, or of a list's structs; otherwise ``None``."""
    if isinstance(kind, pa.Schema) or pt.is_struct(kind):
        return list(kind)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _fields(kind.value_type)
    return None


def _with_fields(kind: pa.Schema | pa.DataType, fields: list[pa.Field]) -> Any:
    """Return the same kind of type over other fields."""
    if isinstance(kind, pa.Schema):
        return pa.schema(fields)
    if pt.is_struct(kind):
        return pa.struct(fields)
    make = pa.large_list if pt.is_large_list(kind) else pa.list_
    return make(kind.value_field.with_type(_with_fields(kind.value_type, fields)))


def _union(first: Any, second: Any) -> Any:
    """Return a schema or type with what only the second one has, as nullable fields at the end."""
    ours, theirs = _fields(first), _fields(second)
    if ours is None or theirs is None:
        return first
    others = {field.name: field for field in theirs}
    merged = [
        field.with_type(_union(field.type, others[field.name].type))
        if field.name in others
        else field
        for field in ours
    ]
    known = {field.name for field in ours}
    merged += [field.with_nullable(True) for field in theirs if field.name not in known]
    return _with_fields(first, merged)


def _difference(wanted: Any, there: Any) -> Any:
    """Return what a schema or type has that another lacks, in the form that Lance adds."""
    ours, theirs = _fields(wanted), {field.name: field for field in _fields(there) or ()}
    added = []
    for field in ours or ():
        if field.name not in theirs:
            added.append(field.with_nullable(True))
        elif _fields(theirs[field.name].type) is not None and _fields(field.type) is not None:
            inner = _difference(field.type, theirs[field.name].type)
            if _fields(inner):
                added.append(field.with_type(inner).with_nullable(True))
    return _with_fields(there, added)


def _leaves(added: Any, whole: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and type of what is added: a field that is as in the whole schema is all new."""
    theirs = {field.name: field for field in _fields(whole) or ()}
    for field in _fields(added) or ():
        if field.type.equals(theirs[field.name].type):
            yield f"{path}{field.name}", str(field.type)
        else:
            yield from _leaves(field.type, theirs[field.name].type, f"{path}{field.name}.")


def _unaddable(wanted: Any, there: Any, path: str = "") -> Iterator[str]:
    """Yield why a new column or field cannot be added."""
    theirs = {field.name: field for field in _fields(there) or ()}
    alike = {name.lower(): name for name in theirs}
    for field in _fields(wanted) or ():
        name = f"{path}{field.name}"
        if field.name in theirs:
            yield from _unaddable(field.type, theirs[field.name].type, f"{name}.")
        elif twin := alike.get(field.name.lower()):
            yield (
                f"{name!r} ({field.type}) differs only in case from {path + twin!r} "
                f"({theirs[twin].type}) of the dataset: rename it in sql, with AS"
            )
        elif pt.is_null(field.type):
            yield f"{name!r} has no type: in sql, CAST(… AS …)"
        elif not path and field.name.startswith(_OWN_PREFIX):
            yield f"{name!r} begins with {_OWN_PREFIX}, as the sink's own columns: rename it in sql"
        alike.setdefault(field.name.lower(), field.name)
        theirs.setdefault(field.name, field)
