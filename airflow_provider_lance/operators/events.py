"""Tell Airflow's assets how far a stream got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, Context

__all__ = ["emit_events"]

_WORDS = {
    "epoch": "watermark",
    "version": "version",
    "epochs": "epochs",
    "queryId": "queryId",
    "uri": "uri",
}


def emit_events(
    context: Context, outlets: Sequence[Any], summary: Mapping[str, Any], rows: int
) -> None:
    """Put epoch, version and rows into the event of every Lance asset among a task's outlets.

    :param rows: those of all drivers of this task try, as far as they were heard.
    """
    extra = {word: summary[name] for word, name in _WORDS.items() if summary.get(name) is not None}
    if summary.get("watermark") is not None:  # else nothing was heard of it
        extra["rows"] = rows
    for outlet in outlets:
        if isinstance(outlet, Asset) and outlet.uri.startswith("lance:"):
            context["outlet_events"][outlet].extra.update(extra)
