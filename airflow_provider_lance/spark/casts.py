"""A batch's rows in the dataset's types, checked value by value at every level of nesting.

Lance does not check its input: text that is not UTF-8 is committed and then fails every read, and
an unexpected null fails deep in its writer. So each batch is checked here, before anything is
written. A path in a message is Spark's: ``items.element.price``, ``tags.key``, ``tags.value``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_provider_lance.exceptions import RowsRefusedError
from airflow_provider_lance.spark.columns import is_list, is_text

__all__ = ["conform", "misfits", "one_form_of_floats", "with_negative_zeros"]

_SHOWN_BYTES = 20
"""Bytes that an example shows on each side of the first byte that is not UTF-8."""

_ONE_ARRAY_BYTES = 2**31 - 1
"""The most that one array of text or bytes can hold: its offsets are 32 bits wide."""


def conform(data: pa.Table, schema: pa.Schema, *, replaceable: Collection[str] = ()) -> pa.Table:
    """Cast a table to the dataset's schema, column by column, in the dataset's order.

    :param replaceable: columns in which bytes that are not UTF-8 become U+FFFD.
    :raises RowsRefusedError: a value does not fit, is an unexpected null, or is text that is not
        UTF-8; the message names column, path, types and reason.
    """
    columns = [
        _column(data.column(field.name), field, field.name in replaceable) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def misfits(
    data: pa.Table, schema: pa.Schema, *, replaceable: Collection[str] = ()
) -> dict[int, RowsRefusedError]:
    """Return the rows that :func:`conform` refuses, by their positions, each with its first fault.

    Columns without a fault are read once; a faulty one is halved until the rows are found.
    """
    found: dict[int, RowsRefusedError] = {}
    for field in schema:
        column, replace = data.column(field.name), field.name in replaceable
        for row, error in _faulty(column, 0, field, replace):
            found.setdefault(row, error)
    return found


def _faulty(
    column: pa.ChunkedArray, first: int, field: pa.Field, replace: bool
) -> Iterator[tuple[int, RowsRefusedError]]:
    try:
        _column(column, field, replace)
    except RowsRefusedError as error:
        if len(column) == 1:
            yield first, error
            return
        half = len(column) // 2
        yield from _faulty(column.slice(0, half), first, field, replace)
        yield from _faulty(column.slice(half), first + half, field, replace)


def _column(column: pa.ChunkedArray, field: pa.Field, replace: bool) -> pa.ChunkedArray:
    whole = column.num_chunks == 0 or column.nbytes < _ONE_ARRAY_BYTES
    chunks = [column.combine_chunks()] if whole else column.chunks
    try:
        return pa.chunked_array([_fit(each, field, field.name, replace) for each in chunks])
    except pa.lib.ArrowException as error:
        raise RowsRefusedError(
            f"a value of column {field.name!r} does not fit the dataset's {field.type} "
            f"(the stream has {column.type}): {error}. Correct it in sql or in the source, or "
            "widen the dataset's column once with dataset.alter_columns, while no stream runs; "
            "nothing of this epoch was committed",
            reason=f"column {field.name!r} does not fit {field.type}",
            detail=str(error),
        ) from None


def _null(path: str, count: int) -> RowsRefusedError:
    return RowsRefusedError(
        f"column {path!r} may not be null in the dataset and is null in {count} "
        f"{'places' if '.' in path else 'rows'}; filter or COALESCE them in sql. "
        "Nothing of this epoch was committed",
        reason=f"column {path!r} is null",
    )


def _fit(array: pa.Array, field: pa.Field, path: str, replace: bool) -> pa.Array:
    """Return the array in the field's type; the array itself if nothing changed."""
    fitted = _cast(array, field.type, path, replace)
    if fitted.null_count and not field.nullable:
        raise _null(path, fitted.null_count)
    return fitted


def _cast(array: pa.Array, target: pa.DataType, path: str, replace: bool) -> pa.Array:
    if array.type.equals(target) and not _needs_a_look(target):
        return array
    if pt.is_null(array.type):
        return pa.nulls(len(array), target)
    if pt.is_struct(target):
        return _struct(array, target, path, replace)
    if pt.is_map(target):
        return _map(array, target, path, replace)
    if pt.is_fixed_size_list(target):
        return _vector(array, target, path, replace)
    if is_list(target):
        return _list(array, target, path, replace)
    try:
        made = _plain(array, target)
    except pa.lib.ArrowException as error:
        raise _at(path, error) from None
    return _valid_text(made, path, replace) if is_text(target) else made


def _needs_a_look(kind: pa.DataType) -> bool:
    """Return whether values of a type may be wrong although the type is right."""
    if is_text(kind):
        return True
    children = [kind.field(number) for number in range(kind.num_fields)]
    return any(not child.nullable or _needs_a_look(child.type) for child in children)


def _at(path: str, error: Exception) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"{path}: {error}" if "." in path else str(error))


# --------------------------------------------------------------------------------- nested values


def _struct(array: pa.Array, target: pa.StructType, path: str, replace: bool) -> pa.Array:
    # pyarrow casts structs by position; this finds the dataset's fields by name.
    children = []
    same = array.type.equals(target)
    for field in target:
        position = array.type.get_field_index(field.name)
        missing = position < 0  # accepted at the start, with missingColumns=null
        child = pa.nulls(len(array), field.type) if missing else pc.struct_field(array, [position])
        fitted = _cast(child, field.type, f"{path}.{field.name}", replace)
        if not field.nullable and fitted.null_count:
            # A field of a null struct is null too; that is not an error.
            nulls = fitted.is_null()
            if array.null_count:
                nulls = pc.and_(nulls, array.is_valid())
            if count := pc.sum(nulls).as_py():
                raise _null(f"{path}.{field.name}", count)
        same = same and fitted is child
        children.append(fitted)
    if same:
        return array
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _list(array: pa.Array, target: pa.DataType, path: str, replace: bool) -> pa.Array:
    values = array.flatten()
    fitted = _fit(values, target.value_field, f"{path}.element", replace)
    if fitted is values and array.type.equals(target):
        return array
    large = pt.is_large_list(target)
    offsets = _offsets(array, pa.int64() if large else pa.int32())
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(offsets, fitted, type=target)


def _map(array: pa.Array, target: pa.MapType, path: str, replace: bool) -> pa.Array:
    if array.offset or array.null_count:
        # Drop the entries of other rows and of null maps, as `flatten` does for lists.
        array = array.take(pa.array(range(len(array)), pa.int64()))
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys, values = (each.slice(first, last - first) for each in (array.keys, array.items))
    fitted_keys = _fit(keys, target.key_field, f"{path}.key", replace)
    fitted_values = _fit(values, target.item_field, f"{path}.value", replace)
    if fitted_keys is keys and fitted_values is values and array.type.equals(target):
        return array
    if first:
        offsets = pc.subtract(offsets, offsets[0])
    if array.null_count:
        offsets = _with_nulls(offsets, array)
    return pa.MapArray.from_arrays(offsets, fitted_keys, fitted_values, type=target)


def _offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return list offsets that start at 0 and carry the nulls, for any slice."""
    lengths = pc.list_value_length(array)
    ends = pc.cumulative_sum(pc.cast(pc.fill_null(lengths, 0), pa.int64()))
    starts = pa.concat_arrays([pa.array([0], ends.type), ends]).cast(kind)
    return _with_nulls(starts, array) if array.null_count else starts


def _with_nulls(offsets: pa.Array, array: pa.Array) -> pa.Array:
    """Mark null lists as from_arrays expects: by a null offset where they begin."""
    nulls = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(nulls, pa.scalar(None, offsets.type), offsets)


def _vector(array: pa.Array, target: pa.FixedSizeListType, path: str, replace: bool) -> pa.Array:
    """Turn lists into vectors of one size; a null list stays null, another length is refused."""
    if pt.is_fixed_size_list(array.type):
        array = pc.cast(array, pa.list_(array.type.value_field))
    size = target.list_size
    lengths = pc.list_value_length(array)
    wrong = pc.filter(lengths, pc.not_equal(lengths, size))
    if len(wrong):
        many = f"{len(wrong)} lists of other lengths than {size}, the first has {wrong[0].as_py()}"
        raise _at(path, pa.ArrowInvalid(many))
    values = _fit(array.flatten(), target.value_field, f"{path}.element", replace)
    vectors = pa.FixedSizeListArray.from_arrays(values, type=target)
    if not array.null_count:
        return vectors
    # Null lists have no values in `flatten`; taking from row positions gives them places.
    present = pc.cast(pc.is_valid(array), pa.int64())
    row = pc.subtract(pc.cumulative_sum(present), 1)
    positions = pc.if_else(pc.is_valid(array), row, pa.scalar(None, pa.int64()))
    return vectors.take(positions)


# ---------------------------------------------------------------------------------- plain values


def _plain(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.equals(target):
        return array
    if pt.is_integer(array.type) and pt.is_decimal(target):
        # pyarrow requires room for the largest possible integer, not the largest present.
        array = pc.cast(array, pa.decimal128(19 + target.scale, target.scale))
    cast = pc.cast(array, target)
    if pt.is_floating(array.type) and target.bit_width < array.type.bit_width:
        _refuse_lost_floats(array, cast)
    return cast


def _refuse_lost_floats(array: pa.Array, cast: pa.Array) -> None:
    """Refuse values that a narrower type turns into infinity or null; rounding is accepted."""
    # pyarrow does not compare 16-bit floats.
    seen = pc.cast(cast, pa.float32()) if pt.is_float16(cast.type) else cast
    for limit, fault in ((math.inf, "large"), (-math.inf, "large"), (0.0, "small")):
        count = _equal_to(seen, limit) - _equal_to(array, limit)
        if count:
            lost = pc.and_(
                pc.equal(seen, _like(seen, limit)), pc.not_equal(array, _like(array, limit))
            )
            example = array.filter(lost)[0].as_py()
            raise pa.ArrowInvalid(
                f"{count} values are too {fault} for {cast.type} and would become {limit:g}, for "
                f"example {example!r}"
            )


def _like(array: pa.Array, value: float) -> pa.Scalar:
    return pa.scalar(value, array.type)


def _equal_to(array: pa.Array, value: float) -> int:
    return pc.sum(pc.equal(array, _like(array, value))).as_py() or 0


def _valid_text(array: pa.Array, path: str, replace: bool) -> pa.Array:
    """Return the array if its text is UTF-8; otherwise refuse it, or replace the wrong bytes.

    pyarrow checks 7 to 11 GB/s of ASCII, 2 of Japanese. Spark's rows arrive as bytes that pyarrow
    has not checked.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.large_binary()).to_pylist()
    else:
        return array
    if replace:
        texts = [None if each is None else each.decode("utf-8", "replace") for each in raw]
        return pa.array(texts, array.type)
    faults = [error for each in raw if each is not None and (error := _fault(each))]
    first = faults[0]
    start = max(0, first.start - _SHOWN_BYTES)
    end = first.start + _SHOWN_BYTES
    shown = ("…" if start else "") + ascii(first.object[start:end])
    example = shown + ("…" if end < len(first.object) else "")
    raise RowsRefusedError(
        f"column {path!r} has text that is not UTF-8 in {len(faults)} places, for example "
        f"{example}: it would make the dataset unreadable. Correct it in sql, with "
        "make_valid_utf8(…) or decode(CAST(… AS BINARY), 'ISO-8859-1'), or set "
        "invalidText=replace, which leaves merge keys alone. Nothing of this epoch was committed",
        reason=f"column {path!r} is not UTF-8",
        detail=example,
    )


def _fault(text: bytes) -> UnicodeDecodeError | None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return error
    return None


# --------------------------------------------------------------------------------- floats as keys


def one_form_of_floats(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the rows with -0.0 as 0.0, and NaN as one NaN, in the named float columns.

    Spark groups and joins both as one value; Lance's merge and index compare bits (pylance 14.0.2).
    """
    for number, field in enumerate(rows.schema):
        if field.name in names and pt.is_floating(field.type):
            values = pc.add(pc.cast(rows.column(number), pa.float64()), 0.0)  # -0.0 + 0.0 is 0.0
            values = pc.if_else(pc.is_nan(values), math.nan, values)
            rows = rows.set_column(number, field, pc.cast(values, field.type))
    return rows


def with_negative_zeros(keys: pa.Table) -> pa.Table:
    """Return the keys, and each key with 0.0 also with -0.0, as older rows may hold it."""
    for number, field in enumerate(keys.schema):
        if not pt.is_floating(field.type):
            continue
        values = pc.cast(keys.column(number), pa.float64())
        zeros = keys.filter(pc.equal(values, 0.0))
        if zeros.num_rows:
            negative = pc.cast(pa.array([-0.0] * zeros.num_rows), field.type)
            keys = pa.concat_tables([keys, zeros.set_column(number, field, negative)])
    return keys
