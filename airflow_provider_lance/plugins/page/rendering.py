"""Templates into HTML, everything escaped and masked; numbers and times as the page shows them."""

from __future__ import annotations

import base64
import hashlib
import math
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_lance.compat import redact
from airflow_provider_lance.diagnostics.epoch_sources import readable_offset
from airflow_provider_lance.diagnostics.formatting import ago as ago_of
from airflow_provider_lance.diagnostics.formatting import event_time, held, unmet, upkeep

__all__ = ["Templates", "ago", "clock", "cut", "duration", "epoch", "number"]

_PACKAGE = "airflow_provider_lance.plugins.page"
NOTHING = "–"
"""Shown for an unknown value."""


class Templates:
    """The page's templates, and the security policy for their output."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_masked,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = (ago, clock, cut, duration, epoch, event_time, held, number, unmet, upkeep)
        self._environment.filters.update({each.__name__: each for each in filters})
        self._environment.filters |= {"offset": readable_offset, "since": ago_of}
        style, script = _own("style.css"), _own("live.js")
        # This package's own texts, and the only ones that are not escaped.
        self._environment.globals |= {"style": Markup(style), "script": Markup(script)}
        self.policy = "; ".join(
            [
                "default-src 'none'",
                f"style-src '{_digest(style)}'",
                f"script-src '{_digest(script)}'",
                "connect-src 'self'",
                "base-uri 'none'",
                "form-action 'self'",
                "frame-ancestors 'self'",
            ]
        )
        """The value of Content-Security-Policy: no image, no font, one style sheet, one script."""

    def render(self, name: str, **values: Any) -> str:
        """Return a page."""
        return self._environment.get_template(name).render(values)


def _own(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _masked(value: Any) -> Any:
    """Return a template's value with the secrets that Airflow knows masked."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return redact(value)
    return value


# --- Filters -------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a count or a rate with thousands separators."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def epoch(value: int | None) -> str:
    """Return the number of an epoch or a watermark, which is -1 before the first."""
    return NOTHING if value is None or value < 0 else f"{value:,}"


def ago(seconds: float | None) -> str:
    """Return how long ago something was."""
    return NOTHING if seconds is None else f"{duration(max(1, round(seconds)) * 1_000)} ago"


def duration(milliseconds: float | None) -> str:
    """Return a duration in the most readable unit."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    units = ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h"), (math.inf, 86_400, "d"))
    divisor, unit = next((size, name) for limit, size, name in units if seconds < limit)
    value = seconds / divisor
    text = f"{value:,.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"
    return f"{text} {unit}"


def clock(moment: str | datetime | None) -> str:
    """Return a time of day with its date, in UTC; a text of another form unchanged."""
    if not moment:
        return NOTHING
    try:
        read = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        aware = read if read.tzinfo else read.replace(tzinfo=UTC)
        return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):  # the calendar's first day may not exist in UTC
        return str(moment)


def cut(text: str, most: int = 4_000) -> str:
    """Return a text from outside this package, cut to a length that fits the page."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
