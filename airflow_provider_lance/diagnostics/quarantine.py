"""What is in a table's quarantine: counts by reason, and the newest rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.quarantine import NAME
from airflow_provider_lance.protocol.row_json import read_row
from airflow_provider_lance.protocol.sides import decode_sides

__all__ = [
    "QuarantineTable",
    "QuarantinedRow",
    "ReasonCount",
    "open_quarantine",
    "open_rows",
    "read_quarantine",
]


@dataclass(frozen=True, slots=True)
class ReasonCount(JsonRecord):
    """How many rows have one reason. ``open`` are those that no feed has written back."""

    reason: str
    rows: int
    open: int
    first_epoch: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class QuarantinedRow(JsonRecord):
    """One row; ``state`` is ``open``, ``in doubt`` (a feed of it did not finish) or ``fed``."""

    id: str
    reason: str
    detail: str
    expectations: tuple[str, ...]
    epoch: int
    quarantined_at: datetime
    state: str
    row: str


@dataclass(frozen=True, slots=True)
class QuarantineTable(JsonRecord):
    """A quarantine: all rows of one query by reason, and the newest of them."""

    uri: str
    query_id: str
    reasons: tuple[ReasonCount, ...]
    newest: tuple[QuarantinedRow, ...]


def open_quarantine(
    port: DatasetPort, query_id: str, storage_options: Mapping[str, str]
) -> LanceDatasetPort:
    """Open the quarantine that a query has registered in its table.

    :raises SpecError: it has registered none.
    :raises DatasetNotFoundError, StorageUnavailableError: it cannot be opened.
    """
    uri = decode_sides(port.config, query_id).get(NAME)
    if uri is None:
        raise SpecError(
            f"query {query_id!r} of {port.uri} has no quarantine: no row has gone there. See the "
            "options expectations and onRefusedRow"
        )
    return open_dataset(uri, storage_options)


def read_quarantine(
    quarantine: LanceDatasetPort, query_id: str, *, last: int, reason: str | None = None
) -> QuarantineTable:
    """Read counts and the newest rows.

    :param last: how many of the newest rows; 0 reads none.
    :param reason: only rows with this reason.
    :raises StorageUnavailableError: the store did not answer.
    """
    with reading(quarantine.uri):
        table = quarantine.dataset.to_table(
            columns=["reason", "epoch", "fed_at"], filter=_chosen(query_id, reason)
        )
        counts = tuple(_counts(table))
        newest_epochs = f"{_chosen(query_id, reason)} AND epoch >= {_since(table, last)}"
        found = quarantine.dataset.to_table(filter=newest_epochs).to_pylist() if last else []
    found.sort(key=lambda row: (-row["epoch"], row["id"]))
    newest = tuple(_row(each) for each in found[:last])
    return QuarantineTable(quarantine.uri, query_id, counts, newest)


def open_rows(
    quarantine: LanceDatasetPort, query_id: str, *, reason: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows that are not fed, oldest first, as the file of an export has them."""
    with reading(quarantine.uri):
        rows = quarantine.dataset.to_table(
            columns=["id", "epoch", "reason", "detail", "row"],
            filter=f"{_chosen(query_id, reason)} AND fed_at IS NULL",
        ).to_pylist()
    for each in sorted(rows, key=lambda row: (row["epoch"], row["id"])):
        yield each | {"row": read_row(each["row"])}


def _chosen(query_id: str, reason: str | None) -> str:
    texts = {"query_id": query_id} | ({"reason": reason} if reason is not None else {})
    return " AND ".join(
        "{} = '{}'".format(name, text.replace("'", "''")) for name, text in texts.items()
    )


def _since(table: Any, last: int) -> int:
    """Return an epoch from which on there are at least so many rows."""
    epochs = sorted(table.column("epoch").to_pylist(), reverse=True)
    return int(epochs[min(last, len(epochs)) - 1]) if epochs and last else 0


def _counts(table: Any) -> Iterator[ReasonCount]:
    import pyarrow.compute as pc

    still = pc.cast(pc.is_null(table.column("fed_at")), "int64")
    groups = (
        table.append_column("open", still)
        .group_by("reason")
        .aggregate([("open", "sum"), ("epoch", "count"), ("epoch", "min"), ("epoch", "max")])
    )
    found = [
        ReasonCount(
            each["reason"],
            each["epoch_count"],
            each["open_sum"],
            each["epoch_min"],
            each["epoch_max"],
        )
        for each in groups.to_pylist()
    ]
    yield from sorted(found, key=lambda each: (-each.rows, each.reason))


def _row(each: Mapping[str, Any]) -> QuarantinedRow:
    state = "fed" if each["fed_at"] else "in doubt" if each["feed"] else "open"
    names = ("id", "reason", "detail", "epoch", "quarantined_at", "row")
    return QuarantinedRow(
        expectations=tuple(each["expectations"]),
        state=state,
        **{name: each[name] for name in names},
    )
