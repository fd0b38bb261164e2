"""Text for a terminal: control characters are made visible, so no text can steer it."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_lance.diagnostics import formatting

__all__ = ["ago", "harmless", "size", "span", "whole"]


def harmless(text: object) -> str:
    """Return a text on one line, with every unprintable character spelled out.

    Query ids, names of processes and messages come from the dataset, where any tool may have
    written them: escape sequences, line ends, marks that change the direction of writing.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text)
    )


def whole(value: int | None) -> str:
    """Return a number with thousands separators; ``-`` if there is none."""
    return "-" if value is None else f"{value:,}"


def size(count: int | None) -> str:
    """Return a number of bytes; ``-`` if there is none."""
    return "-" if count is None else formatting.size(count)


def span(duration: float | None) -> str:
    """Return a duration in seconds; ``-`` if there is none."""
    return "-" if duration is None else formatting.lasted(duration)


def ago(moment: str | None) -> str:
    """Return an ISO time with how long ago it was, by this machine's clock."""
    if not moment:
        return "-"
    since = formatting.ago(moment, datetime.now(UTC))
    return f"{moment} ({since})" if since else moment
