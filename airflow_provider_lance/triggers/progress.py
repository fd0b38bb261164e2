"""One line about how a stream gets on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["progress_line"]

_SINK = {
    "version": "version",
    "rows": "rows",
    "totalRows": "totalRows",
    "commitMs": "commitMs",
}
_SPARK = {"processedRowsPerSecond": "rowsPerSecond", "batchDuration": "batchMs"}


def progress_line(heartbeat: Mapping[str, Any]) -> str:
    """Return one line about the newest epoch; whatever the heartbeat lacks is left out."""
    sink, spark = _part(heartbeat, "sink"), _part(heartbeat, "progress")
    pairs = [(label, sink.get(name)) for name, label in _SINK.items()]
    pairs += [(label, spark.get(name)) for name, label in _SPARK.items()]
    tail = " ".join(f"{label}={_number(value)}" for label, value in pairs if value is not None)
    return f"Epoch {sink.get('epoch')} committed. {tail}".rstrip()


def _part(heartbeat: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = heartbeat.get(name)
    return part if isinstance(part, Mapping) else {}


def _number(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value
