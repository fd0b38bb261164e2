"""The mended rows of a feed, checked and in the table's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.exceptions import PreconditionError, SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.row_ids import look_up
from airflow_provider_lance.protocol.row_json import read_row, table_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FeedPlan", "Mended", "plan_feed"]

_RAW = "__lance_raw"


@dataclass(frozen=True, slots=True)
class Mended:
    """One row of the file: the id that it has in the quarantine, and its columns."""

    id: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class FeedPlan:
    """The rows to feed, as a table's writer takes them."""

    ids: list[str]
    rows: pa.Table
    merge_keys: tuple[str, ...] = ()
    replaced: int = 0


def plan_feed(
    port: LanceDatasetPort,
    held: Sequence[Mapping[str, Any]],
    mended: Sequence[Mended],
    *,
    replace: bool,
) -> FeedPlan:
    """Return the rows to feed, in the file's order.

    :param held: the rows as the quarantine has them.
    :param replace: rows of an upsert may replace rows that the table has now.
    :raises SpecError: a column is unknown, or a value does not fit.
    :raises PreconditionError: a row is in the table already, deletes, or cannot be fed.
    """
    schema = port.dataset.schema
    rows = {each.id: each.row for each in mended}
    held = sorted(held, key=lambda row: list(rows).index(row["id"]))
    chosen = [rows[row["id"]] for row in held]
    _refuse_unfeedable(held)
    for row in held:
        known = {*schema.names, *read_row(row["row"]), _RAW}
        if unknown := sorted(set(rows[row["id"]]) - known):
            raise SpecError(f"row {row['id']} has columns {unknown}, which {port.uri} has not")
    try:
        table = table_of(chosen, schema)
    except ValueError as error:
        raise SpecError(f"the mended rows do not fit {port.uri}: {error}") from None
    ids = [row["id"] for row in held]
    keys = tuple(held[0]["merge_keys"]) if held else ()
    if not keys:
        return FeedPlan(ids, table)
    replaced = _refuse_keys(port, table.select(list(keys)), replace=replace)
    return FeedPlan(ids, table, keys, replaced)


def _refuse_unfeedable(held: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows that do not land by an append or an upsert.

    :raises PreconditionError: names them, and what to do.
    """
    if any(row["deletes"] for row in held):
        raise PreconditionError(
            "some of these rows delete by their keys. Delete the rows of the table yourself, for "
            "example with lance.dataset(uri).delete(...), and leave them out of the file"
        )
    modes = {OutputMode.APPEND.value, OutputMode.UPDATE.value}
    if other := sorted({row["mode"] for row in held} - modes):
        raise PreconditionError(
            f"rows of a stream with {other} cannot be written beside it: correct them in the "
            "source, or in the stream's sql"
        )
    if len({(row["mode"], *row["merge_keys"]) for row in held}) > 1:
        raise PreconditionError(
            "these rows were quarantined under different merge keys: feed them in one file for "
            "each value of merge_keys"
        )


def _refuse_keys(port: LanceDatasetPort, keys: pa.Table, *, replace: bool) -> int:
    """Return how many rows of the table have these keys.

    :raises SpecError: a key is null or is there twice, or is a float.
    :raises PreconditionError: rows would be replaced, and may not.
    """
    import pyarrow.types as pt

    names = keys.column_names
    if floats := [each.name for each in keys.schema if pt.is_floating(each.type)]:
        raise SpecError(f"merge keys {floats} are floats: send such rows through the source")
    if nulls := [name for name in names if keys.column(name).null_count]:
        raise SpecError(f"merge keys {nulls} are null in some of the mended rows")
    if keys.group_by(names).aggregate([]).num_rows != keys.num_rows:
        raise SpecError(f"some of the mended rows have the same merge keys {names}")
    with reading(port.uri):
        count = int(look_up(port.dataset, keys).rows.num_rows)
    if count and not replace:
        raise PreconditionError(
            f"{count} rows of {port.uri} (version {port.version}) have the keys of mended rows, "
            "and may be newer. Leave those rows out of the file, or add --replace"
        )
    return count
