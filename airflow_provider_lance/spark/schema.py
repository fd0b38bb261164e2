"""The stream's columns against the dataset's schema: checked once, then applied to every batch.

The dataset's Arrow schema rules. What changes only the form (time zone, list to fixed-size list,
width of a number) is cast; what would change the meaning is refused before any data is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError

__all__ = ["check_schema", "conform", "dataset_schema"]


def check_schema(
    stream: pa.Schema, dataset: pa.Schema, *, uri: str, droppable: Sequence[str] = ()
) -> None:
    """Refuse a stream whose columns do not fit.

    :param droppable: columns of the stream that are used before the write and may be extra.
    :raises SchemaMismatchError: names every column at fault, both types, and the way out.
    """
    faults = [
        f"column {name!r} ({stream.field(name).type}) is not in the dataset: leave it out of the "
        f"stream, or add it with dataset.add_columns"
        for name in stream.names
        if name not in dataset.names and name not in droppable
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
    if pt.is_fixed_size_list(source) and pt.is_fixed_size_list(target):
        if source.list_size != target.list_size:
            return "the sizes differ"
        return _obstacle(source.value_type, target.value_type)
    if _is_list(source) and _is_list(target):
        if pt.is_fixed_size_list(target) and not _fits_vector(target.value_type):
            return f"Lance cannot write vectors of {target.value_type}; make the column a list"
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _fits_vector(item: pa.DataType) -> bool:
    # Of texts and bytes Lance panics at the first rows; lists and maps it refuses (pylance 14.0.2).
    if pt.is_fixed_size_list(item):
        return _fits_vector(item.value_type)
    if pt.is_struct(item):
        return not any(pt.is_nested(field.type) for field in item)
    return not (
        _is_text(item) or pt.is_binary(item) or pt.is_large_binary(item) or pt.is_nested(item)
    )


_MOST_DIGITS = 38
"""Digits that a decimal128 holds; an int64 takes 19 of them before the point."""

# Within a kind only the width differs; a value that does not fit is refused at run time by name.
_KINDS = (
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_duration,
    _is_text,
    _is_bytes,
)


def conform(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to the dataset's schema, column by column, in the dataset's order.

    :raises RowsRefusedError: a value does not fit; the message names column, types and why.
    """
    columns = []
    for field in schema:
        column = data.column(field.name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        try:
            cast = _cast(column, field.type)
        except pa.lib.ArrowException as error:
            raise RowsRefusedError(
                f"a value of column {field.name!r} does not fit the dataset's {field.type} "
                f"(the stream has {column.type}): {error}. Correct it in sql or in the source; "
                "nothing of this epoch was committed"
            ) from None
        if cast.null_count and not field.nullable:
            raise RowsRefusedError(
                f"column {field.name!r} may not be null in the dataset and is null in "
                f"{cast.null_count} rows; filter or COALESCE them in sql. Nothing of this epoch "
                "was committed"
            )
        columns.append(cast)
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.equals(target):
        return array
    if pt.is_struct(target):
        # pyarrow casts structs by position; the dataset's fields are found by name.
        children = [_cast(pc.struct_field(array, f.name), f.type) for f in target]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pt.is_fixed_size_list(target):
        if pt.is_fixed_size_list(array.type):
            array = pc.cast(array, pa.list_(array.type.value_type))
        return _fixed_size(array, target)
    if _is_list(target) and pt.is_struct(target.value_type):
        values = _cast(array.flatten(), target.value_type)
        offsets = _offsets(array)
        kind = pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
        return kind.from_arrays(offsets, values, type=target)
    if pt.is_integer(array.type) and pt.is_decimal(target):
        # pyarrow wants room for the largest integer there is, not for those that are there.
        array = pc.cast(array, pa.decimal128(19 + target.scale, target.scale))
    cast = pc.cast(array, target)
    if pt.is_floating(array.type) and pt.is_floating(target):
        _refuse_overflow(array, cast)
    return cast


def _refuse_overflow(array: pa.Array, cast: pa.Array) -> None:
    grown = pc.and_(pc.is_inf(cast), pc.invert(pc.is_inf(array)))
    if count := pc.sum(grown).as_py():
        raise pa.ArrowInvalid(f"{count} values are too large for {cast.type}")


def _offsets(array: pa.Array) -> pa.Array:
    """Return list offsets that start at 0 and carry the nulls, whatever slice the array is."""
    lengths = pc.list_value_length(array)
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0))
    starts = pa.concat_arrays([pa.array([0], ends.type), ends])
    if not array.null_count:
        return starts.cast(pa.int32())
    # A null offset marks the list that begins there as null.
    nulls = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(nulls, pa.scalar(None, pa.int32()), starts.cast(pa.int32()))


def _fixed_size(array: pa.Array, target: pa.FixedSizeListType) -> pa.Array:
    """Turn lists into vectors of one size; a null list stays null, another length is refused."""
    size = target.list_size
    lengths = pc.list_value_length(array)
    wrong = pc.filter(lengths, pc.not_equal(lengths, size))
    if len(wrong):
        raise pa.ArrowInvalid(
            f"{len(wrong)} lists of other lengths than {size}, the first has {wrong[0].as_py()}"
        )
    values = _cast(array.flatten(), target.value_type)
    if not array.null_count:
        return pa.FixedSizeListArray.from_arrays(values, type=target)
    # Null lists have no values in `flatten`; give them places by taking from row positions.
    present = pc.cast(pc.is_valid(array), pa.int64())
    row = pc.subtract(pc.cumulative_sum(present), 1)
    positions = pc.if_else(pc.is_valid(array), row, pa.scalar(None, pa.int64()))
    vectors = pa.FixedSizeListArray.from_arrays(values, type=target)
    return vectors.take(positions)


def dataset_schema(stream: pa.Schema, vector_sizes: Mapping[str, int]) -> pa.Schema:
    """Return the schema of a dataset made for a stream; named list columns become vectors.

    :raises SchemaMismatchError: a vector column that the stream lacks, that is no list, or whose
        items are no numbers.
    """
    for name in vector_sizes:
        if name not in stream.names or not _is_list(stream.field(name).type):
            seen = stream.field(name).type if name in stream.names else "no such column"
            raise SchemaMismatchError(
                f"vectorSizes names {name!r}, which must be an array column of the stream; "
                f"it has: {seen}"
            )
        if not _fits_vector(item := stream.field(name).type.value_type):
            raise SchemaMismatchError(
                f"vectorSizes names {name!r}, an array of {item}: a vector's items are numbers; "
                f"cast it in sql, for example CAST({name} AS ARRAY<FLOAT>), or leave it out of "
                "vectorSizes to keep it a list"
            )
    return pa.schema(
        [
            field.with_type(pa.list_(field.type.value_type, vector_sizes[field.name]))
            if field.name in vector_sizes
            else field
            for field in stream
        ]
    )
