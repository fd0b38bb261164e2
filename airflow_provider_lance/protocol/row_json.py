"""Rows as JSON that a person can mend, and back, without loss.

Numbers, booleans, lists and nulls are JSON's own; a struct is an object, a map a list of pairs.
Times, dates and decimals are texts as Arrow writes them, durations numbers in their unit. Bytes,
and text that is not UTF-8, are ``{"$base64": "…"}``; floats that JSON lacks are texts such as
``"NaN"``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from datetime import time
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.protocol.decoding import LARGEST, json_value, shown, whole

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["encode_rows", "read_row", "table_of"]

_BYTES = "$base64"
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_rows(rows: pa.Table) -> list[str]:
    """Return each row as one JSON object, by its columns' names."""
    columns = [
        [_written(value, field.type) for value in _as_plain(rows.column(number)).to_pylist()]
        for number, field in enumerate(rows.schema)
    ]
    names = rows.column_names
    return [
        json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":"))
        for values in zip(*columns, strict=True)
    ]


def read_row(text: object) -> dict[str, Any]:
    """Read one row's JSON object; its values are read by :func:`table_of`.

    :raises ValueError: it is not one.
    """
    row = json_value(text)
    if not isinstance(row, dict):
        raise ValueError("one JSON object, with the row's columns")
    return row


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows that :func:`encode_rows` or a person wrote, in a dataset's types.

    A column that a row lacks is null.

    :raises ValueError: a value does not fit its column; the message names the column.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        try:
            values = [_read(row.get(field.name), field.type) for row in rows]
            column = pa.array(values, field.type)
            column.validate(full=True)
        except (pa.lib.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"column {field.name!r} takes {field.type}, and a value does not fit: {error}"
            ) from None
        if column.null_count and not field.nullable:
            raise ValueError(f"column {field.name!r} may not be null")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _as_plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(_plain(column.type))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Python shows every value of a type: text as bytes, times as text.

    All in it may be null: pyarrow does not cast a null struct whose field is never null.
    """
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return pa.large_binary()
    if pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind) or pt.is_decimal(kind):
        return pa.string()
    if pt.is_duration(kind):
        return pa.int64()
    if pt.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if pt.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if pt.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def _written(value: Any, kind: pa.DataType) -> Any:
    import pyarrow.types as pt

    if value is None:
        return None
    if isinstance(value, bytes):
        if pt.is_string(kind) or pt.is_large_string(kind):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if pt.is_struct(kind):
        return {field.name: _written(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        return [[_written(k, kind.key_type), _written(v, kind.item_type)] for k, v in value]
    if isinstance(value, list):
        return [_written(each, kind.value_type) for each in value]
    return value


def _read(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa
    import pyarrow.types as pt

    if value is None:
        return None
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _text(value)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return _bytes(value)
    if pt.is_nested(kind):
        return _read_nested(value, kind)
    if pt.is_floating(kind):
        return _NO_NUMBERS.get(value, value) if isinstance(value, str) else value
    if pt.is_time(kind):
        return time.fromisoformat(_text(value).decode())  # pyarrow casts no text to a time
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return pa.scalar(_text(value).decode()).cast(kind).value
    if pt.is_decimal(kind):
        number = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        return pa.scalar(_text(number).decode()).cast(kind).as_py()
    if pt.is_integer(kind) or pt.is_duration(kind):
        return whole(value, -LARGEST - 1, 2 * LARGEST + 1)  # pyarrow would cut 1.5 to 1
    return value


def _read_nested(value: Any, kind: pa.DataType) -> Any:
    import pyarrow.types as pt

    if pt.is_struct(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"an object is expected, not {shown(value)}")
        if unknown := sorted(set(value) - {field.name for field in kind}):
            raise ValueError(f"it has no fields {unknown}")
        return {field.name: _read(value.get(field.name), field.type) for field in kind}
    if pt.is_map(kind):
        pairs = _list(value)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"a list of [key, value] is expected, not {shown(value)}")
        return [(_read(k, kind.key_type), _read(v, kind.item_type)) for k, v in pairs]
    return [_read(each, kind.value_type) for each in _list(value)]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"a list is expected, not {shown(value)}")
    return value


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()  # a lone surrogate is a UnicodeError, which is a ValueError
    if isinstance(value, Mapping) and set(value) == {_BYTES}:
        raise ValueError(f"text that is not UTF-8 is still to be mended: {_bytes(value)!r}")
    raise ValueError(f"a text is expected, not {shown(value)}")


def _bytes(value: Any) -> bytes:
    if isinstance(value, Mapping) and set(value) == {_BYTES}:
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (TypeError, binascii.Error) as error:
            raise ValueError(f"{shown(value)} is not base64 ({error})") from None
    raise ValueError(f'bytes are expected, as {{"{_BYTES}": "…"}}, not {shown(value)}')
