"""The lines of the page's list: one for each stream, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.links.lance import stream_address
from airflow_provider_lance.plugins.page.cache import CachedResult
from airflow_provider_lance.plugins.page.queries import Row
from airflow_provider_lance.plugins.page.registry import RegisteredDataset

__all__ = ["Line", "list_streams", "tone_of"]

Tone = Literal["bad", "warning", "good", "none"]
"""The colour of a line, a class of the style sheet."""
_WORST_FIRST = ("bad", "warning", "good", "none")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a stream with its status, or a sentence instead. ``age`` is in seconds."""

    uri: str
    tone: Tone
    age: float
    query_id: str = ""
    link: str = ""
    status: Status | None = None
    sentence: str = ""


def list_streams(
    looks: Iterable[tuple[RegisteredDataset, CachedResult[tuple[Row, ...]]]],
) -> list[Line]:
    """Return the lines for the results of the known datasets."""
    lines = [line for known, look in looks for line in _lines(known, look)]
    return sorted(lines, key=lambda line: (_WORST_FIRST.index(line.tone), line.uri, line.query_id))


def _lines(known: RegisteredDataset, look: CachedResult[tuple[Row, ...]]) -> list[Line]:
    if look.value is None:
        sentence = f"cannot be read: {look.error}"
        return [Line(known.uri, "bad", look.age, sentence=sentence)]
    if not look.value:
        sentence = "no stream has written here yet"
        return [Line(known.uri, "none", look.age, sentence=sentence)]
    return [_line(known, look.age, row) for row in look.value]


def _line(known: RegisteredDataset, age: float, row: Row) -> Line:
    status, sentence = row.status, f"cannot be read: {row.error}"
    if status is not None:  # whose state has its own column
        sentence = status.sentence.removeprefix(f"{status.state}: ")
    return Line(
        uri=known.uri,
        tone=tone_of(status) if status else "bad",
        age=age,
        query_id=row.query_id,
        link=stream_address(known.uri, row.query_id, known.conn_id),
        status=status,
        sentence=sentence,
    )


def tone_of(status: Status) -> Tone:
    """Return the tone of a stream that was readable."""
    if not status.healthy:
        return "bad"
    worst = max((each.severity for each in status.findings), default=Severity.INFO)
    return "warning" if worst >= Severity.WARNING else "good"
