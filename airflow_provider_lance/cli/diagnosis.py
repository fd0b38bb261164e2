"""One thing that the doctor looked at, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = ["Diagnosis", "Level"]


class Level(StrEnum):
    """How it looks."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; something cannot be done here, and need not be."""
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"
    """It could not be told."""


@dataclass(frozen=True, slots=True)
class Diagnosis(JsonRecord):
    """What was looked at, how it looks, what was seen, and what to do about it."""

    name: str
    level: Level
    seen: str
    advice: str = ""
