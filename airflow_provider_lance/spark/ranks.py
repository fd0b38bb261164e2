"""The order of rows: of keys, sequences and whole rows, as dense numbers that numpy compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

__all__ = ["ranks"]

_Ints = npt.NDArray[np.int64]


def ranks(rows: pa.Table) -> _Ints:
    """Return a number for each row: equal for equal rows, greater for greater ones, dense from 0.

    Rows compare by their columns in order, a struct by its fields in order. Null is less than every
    value; NaN equals NaN and is greater than every number; 0.0 equals -0.0. Lists and maps have an
    order too, that of their text.
    """
    number = np.zeros(len(rows), np.int64)
    for column in rows.columns:
        for leaf in _leaves(_whole(column)):
            values = _rank(leaf)
            combined = number * (values.max(initial=0) + 1) + values
            number = np.unique(combined, return_inverse=True)[1].astype(np.int64, copy=False)
    return number


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield an array of a plain type, or for a struct its validity and its fields' leaves."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif pt.is_dictionary(kind):
        yield array.dictionary_decode()
    elif pt.is_struct(kind):
        yield array.is_valid()
        for field in array.flatten():
            yield from _leaves(field)
    elif pt.is_floating(kind):
        # Float16 cannot be sorted; and -0.0 becomes 0.0.
        yield pc.add(array.cast(pa.float32()) if pt.is_float16(kind) else array, 0.0)
    elif pt.is_nested(kind) or pt.is_interval(kind):
        yield pa.array(
            [None if each is None else repr(each) for each in array.to_pylist()], pa.string()
        )
    else:
        yield array


def _rank(array: pa.Array) -> _Ints:
    """Return dense ranks of a plain array's values from 1, and 0 for null."""
    encoded = pc.dictionary_encode(array)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    rank[-1] = 0
    ranked: _Ints = rank[pc.fill_null(encoded.indices, len(order)).to_numpy()]
    return ranked
