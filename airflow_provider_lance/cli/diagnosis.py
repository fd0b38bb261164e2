"""One thing that the doctor checked, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["Diagnosis", "Level"]


class Level(StrEnum):
    """The result of one check."""

    OK = "ok"
    NOTE = "note"
    """For information: something is not available here, and need not be."""
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"
    """It could not be checked."""


@dataclass(frozen=True, slots=True)
class Diagnosis(JsonRecord):
    """What was checked, the result, what was seen, and what to do about it."""

    name: str
    level: Level
    seen: str
    advice: str = ""
