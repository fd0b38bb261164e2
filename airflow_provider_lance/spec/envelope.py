"""How the source's records are wrapped, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_lance.protocol.decoding import plain_text
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.option_parsers import option, switch

__all__ = ["DEBEZIUM", "EnvelopeOptions", "TimestampUnit", "envelope"]

DEBEZIUM = "debezium"


class TimestampUnit(StrEnum):
    """What a number counts in a column of timestamps, since 1970 in UTC."""

    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


def envelope(value: Any) -> str:
    """Read the name of an envelope."""
    if value != DEBEZIUM:
        raise ValueError(f"'{DEBEZIUM}'")
    return DEBEZIUM


def _unit(value: Any) -> TimestampUnit:
    try:
        return TimestampUnit(plain_text(value))
    except ValueError:
        raise ValueError("'ms', 'us' or 'ns'") from None


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions(Options):
    """What the records themselves do not say.

    - ``timestamps``: what numbers in timestamp columns count: ``ms``, ``us`` or ``ns``. Without it
      a number is refused there; texts in ISO form need none.
    - ``decimals``: decimals are ``text`` (Debezium's ``decimal.handling.mode`` is ``string`` or
      ``double``), or ``base64`` (it is ``precise``, the default).
    - ``missingColumns``: ``refuse`` a record whose row lacks a column of the schema, or read it as
      ``null``, for records that are older than the column.
    """

    timestamps: TimestampUnit | None = option(_unit, None, name="timestamps")
    base64_decimals: bool = switch("text", "base64", name="decimals")
    missing_is_null: bool = switch("refuse", "null", name="missingColumns")

    what = "envelope options"

    def check(self, given: Mapping[str, Any]) -> None:
        """Accept every combination."""
