"""The quarantine of a table: a side table with the rows that did not land, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NAME", "quarantine_schema"]

NAME = "quarantine"
"""The side table's name: ``orders.quarantine.lance`` beside ``orders.lance``."""


def quarantine_schema() -> pa.Schema:
    """Return the columns of a quarantine.

    - ``id``: the row's own, 32 hexadecimal digits.
    - ``reason``: why, in a few words without values; ``detail``: what was seen.
    - ``expectations``: the names of all expectations that the row did not meet.
    - ``row``: the stream's columns as JSON, see :mod:`.row_json`.
    - ``query_id``, ``epoch``, ``source_ends``: where the row came from; the last is where its epoch
      ends in the sources, as in the epoch's stamp.
    - ``quarantined_at``: when the epoch was written.
    - ``mode``, ``merge_keys``, ``deletes``: how it would have landed.
    - ``feed``, ``feed_version``, ``fed_at``: the feed that writes the row back, the table's version
      before it, and when it was done; see :mod:`~airflow_provider_lance.repair.feed`.
    """
    import pyarrow as pa

    moment = pa.timestamp("ms", "UTC")
    columns: dict[str, Any] = {
        "id": pa.string(),
        "reason": pa.string(),
        "detail": pa.string(),
        "expectations": pa.list_(pa.string()),
        "row": pa.large_string(),
        "query_id": pa.string(),
        "epoch": pa.int64(),
        "source_ends": pa.string(),
        "quarantined_at": moment,
        "mode": pa.string(),
        "merge_keys": pa.list_(pa.string()),
        "deletes": pa.bool_(),
        "feed": pa.string(),
        "feed_version": pa.int64(),
        "fed_at": moment,
    }
    return pa.schema(list(columns.items()))
