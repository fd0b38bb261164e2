"""An epoch's records beside the versions of their keys (`scdType=2`): in a task, or on the driver.

What :mod:`.comparison` is for a table with one row for each key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import RowsRefusedError, SchemaMismatchError, SpecError
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.row_ids import look_up
from airflow_provider_lance.spark.casts import conform, one_form_of_floats, with_negative_zeros
from airflow_provider_lance.spark.columns import arrow_schema, folding
from airflow_provider_lance.spark.comparison import Comparison, remembered
from airflow_provider_lance.spark.ranks import ranks
from airflow_provider_lance.spark.scd2 import (
    END_AT,
    OPERATION,
    SEQUENCE,
    START_AT,
    Operation,
    Rebuilt,
    Versions,
)
from airflow_provider_lance.spark.sequencing import refuse_unordered
from airflow_provider_lance.spark.streaming_plan import quoted
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["History", "history_schema", "refuse_no_history", "sequence_of", "versions_of"]

_BATCH_ROWS = 262_144


@dataclass(frozen=True)
class History(Comparison):
    """A comparison with all versions of a key that the epoch's records may change."""

    versions: Versions = field(kw_only=True)

    @property
    def row_keys(self) -> list[str]:
        """Return the columns that identify a row: the merge keys, and when the version began."""
        return [*self.order.keys, START_AT]

    def tombstones_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of what is remembered beside the table."""
        return self.versions.remembered_schema

    def changes(
        self, rows: pa.Table, operations: pa.Array, replaceable: Collection[str]
    ) -> pa.Table:
        """Return records in the dataset's types; a delete has a key only, a truncate not even one.

        :param rows: the dataset's columns without validity, and the sequence.
        :param operations: what each of them does, see :class:`.scd2.Operation`.
        :param replaceable: columns in which bytes that are not UTF-8 become U+FFFD.
        :raises RowsRefusedError: a value does not fit, or a key or sequence is null.
        """
        keys, of = list(self.order.keys), self.versions
        schema = pa.schema([*of.schema, pa.field(SEQUENCE, of.schema.field(START_AT).type)])
        parts = [of.changes_schema.empty_table()]
        for operation, names in enumerate((of.columns, keys, [])):
            part = rows.filter(pc.equal(operations, operation))
            if not part.num_rows:
                continue
            kinds = pa.schema([schema.field(name) for name in [*names, SEQUENCE]])
            made = conform(part.select(kinds.names), kinds, replaceable=replaceable)
            if names:
                made = one_form_of_floats(made, keys)
                _refuse_null_keys(made.select(keys))
            refuse_unordered(_named(made[SEQUENCE], self.order.columns), self.order.columns)
            kind = pa.array(np.full(len(made), operation, np.int8))
            parts.append(made.append_column(OPERATION, kind))
        return pa.concat_tables(parts, promote_options="default").cast(of.changes_schema)

    def rebuild(self, changes: pa.Table, table: Any, tombstones: Any) -> Rebuilt:
        """Return what records change; see :meth:`.HistoryTask.resolve`."""
        names = list(self.order.keys)
        cuts = pc.equal(changes[OPERATION], Operation.TRUNCATE)
        keys = None
        if not pc.any(cuts).as_py():
            keys = changes.select(names).group_by(names).aggregate([])
            keys = with_negative_zeros(keys.cast(_fields(self.versions.schema, names)))
        with reading(table.uri):
            stored = self._stored(table, changes, keys)
        known = remembered(tombstones, keys, self.versions.remembered_schema)
        before = pa.concat_tables(
            [self.versions.changes_schema.empty_table(), known], promote_options="default"
        )
        return self.versions.rebuild(stored, before, changes)

    def _stored(self, table: Any, changes: pa.Table, keys: pa.Table | None) -> pa.Table:
        """Return the versions that may change, of some keys or of all."""
        names, validity = list(self.order.keys), [START_AT, END_AT]
        if keys is None:
            scanner = table.scanner(
                columns=[*names, END_AT], with_row_id=True, batch_size=_BATCH_ROWS
            )
            rows = scanner.to_table()
        else:
            found = look_up(table, keys, validity)
            rows = found.keys.take(found.rows["position"].combine_chunks())
            rows = rows.append_column(END_AT, found.rows[END_AT])
            rows = rows.append_column("_rowid", found.rows["_rowid"])
        ids = rows["_rowid"].filter(pa.array(self._may_change(rows, changes))).to_pylist()
        columns = self.versions.schema.names
        taken: pa.Table = table._take_rows(ids, columns=columns) if ids else None
        return taken if ids else self.versions.schema.empty_table()

    def _may_change(self, rows: pa.Table, changes: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which versions did not end before their key's first record, or any truncate."""
        names = list(self.order.keys)
        cut = changes[OPERATION].to_numpy() == Operation.TRUNCATE
        keys = [each.select(names).cast(_fields(rows.schema, names)) for each in (rows, changes)]
        key, new = np.split(ranks(pa.concat_tables(keys)), [len(rows)])
        ends = rows[END_AT]
        ended = ends.is_valid().to_numpy()
        chunks = [c for column in (ends.drop_null(), changes[SEQUENCE]) for c in column.chunks]
        rank = ranks(pa.table([pa.chunked_array(chunks, ends.type)], [SEQUENCE]))
        end = np.full(len(rows), len(rank))
        end[ended], at = np.split(rank, [int(ended.sum())])
        first = np.full(len(rows) + len(changes), at[cut].min(initial=len(rank)))
        np.minimum.at(first, new[~cut], at[~cut])
        may_change: npt.NDArray[np.bool_] = end >= first[key]
        return may_change


def _refuse_null_keys(keys: pa.Table) -> None:
    if nulls := [name for name in keys.column_names if keys[name].null_count]:
        raise RowsRefusedError(
            f"merge key {nulls} is null in some rows: a null matches no row. Filter them in sql; "
            "nothing of this epoch was committed"
        )


def _fields(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([pa.field(name, schema.field(name).type) for name in names])


def _named(sequence: pa.ChunkedArray, names: tuple[str, ...]) -> pa.Table:
    """Return a sequence as the columns that the user named."""
    if len(names) == 1:
        return pa.table([sequence], list(names))
    return pa.Table.from_arrays(sequence.combine_chunks().flatten(), list(names))


# ---------------------------------------------------------------------------------------- the table


def versions_of(options: SinkOptions, schema: pa.Schema) -> Versions | None:
    """Return how a dataset's versions are made, ``None`` if it has one row for each key."""
    if options.scd_type != 2:
        return None
    return Versions(schema, options.merge_keys, options.track_history_columns)


def sequence_of(names: tuple[str, ...]) -> Column:
    """Return a record's sequence: a column, or a struct of several."""
    columns = [F.col(quoted(name)) for name in names]
    return columns[0] if len(columns) == 1 else F.struct(*columns)


def history_schema(df: DataFrame, columns: pa.Schema, options: SinkOptions) -> pa.Schema:
    """Return a history table's columns: the stream's, and from when until when a version is valid.

    :raises SchemaMismatchError: the stream has such a column, or no column that options name.
    """
    folded = folding(df)
    if taken := [name for name in df.columns if folded(name) in (START_AT, END_AT, SEQUENCE)]:
        raise SchemaMismatchError(
            f"column {taken[0]!r} of the stream has a name that scdType=2 gives to a column of its "
            "own: rename it in sql, with AS, or leave it out"
        )
    for what, given, known in (
        ("sequenceBy", options.sequence_by, df.columns),
        ("trackHistoryColumns", options.track_history_columns, columns.names),
    ):
        if unknown := [name for name in given if name not in known]:
            raise SchemaMismatchError(
                f"{what} {unknown} are not columns of the stream, which has {known}"
            )
    ordered = df.select(sequence_of(options.sequence_by).alias(SEQUENCE))
    kind = arrow_schema(ordered, [SEQUENCE]).field(0).type
    return pa.schema([*columns, pa.field(START_AT, kind), pa.field(END_AT, kind)])


def refuse_no_history(dataset: Any, uri: str) -> None:
    """Refuse an existing dataset that cannot hold versions.

    :raises SchemaMismatchError: it has no columns of validity.
    :raises SpecError: its row ids are stable.
    """
    if missing := [name for name in (START_AT, END_AT) if name not in dataset.schema.names]:
        raise SchemaMismatchError(
            f"scdType=2 writes versions, and {uri} has no columns {missing}: it holds one row for "
            "each key. Write to another uri, with createIfMissing=true"
        )
    if dataset.has_stable_row_ids:
        raise SpecError(
            f"scdType=2 does not write to {uri}, whose row ids are stable: a history table is its "
            "own record of changes. Write to another uri, with createIfMissing=true and without "
            "changeFeed"
        )
