"""The lines of the page's list: one for each stream, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from airflow_provider_lance.diagnostics.findings import Severity
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.links.lance import stream_address
from airflow_provider_lance.plugins.page.cache import CachedResult
from airflow_provider_lance.plugins.page.queries import Row
from airflow_provider_lance.plugins.page.registry import RegisteredDataset

__all__ = ["Line", "Tone", "list_streams", "tone_of"]


class Tone(IntEnum):
    """The colour of a line; a larger value is worse. Its name is a class of the style sheet."""

    NONE = 0
    GOOD = 1
    WARNING = 2
    BAD = 3

    @property
    def word(self) -> str:
        """Return the tone as the templates write it."""
        return self.name.lower()


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
    return sorted(lines, key=lambda line: (-line.tone, line.uri, line.query_id))


def _lines(known: RegisteredDataset, look: CachedResult[tuple[Row, ...]]) -> list[Line]:
    if look.value is None:
        sentence = f"cannot be read: {look.error}"
        return [Line(known.uri, Tone.BAD, look.age, sentence=sentence)]
    if not look.value:
        sentence = "no stream has written here yet"
        return [Line(known.uri, Tone.NONE, look.age, sentence=sentence)]
    return [_line(known, look.age, row) for row in look.value]


def _line(known: RegisteredDataset, age: float, row: Row) -> Line:
    status, sentence = row.status, f"cannot be read: {row.error}"
    if status is not None:  # whose state has its own column
        sentence = status.sentence.removeprefix(f"{status.state}: ")
    return Line(
        uri=known.uri,
        tone=tone_of(status) if status else Tone.BAD,
        age=age,
        query_id=row.query_id,
        link=stream_address(known.uri, row.query_id, known.conn_id),
        status=status,
        sentence=sentence,
    )


def tone_of(status: Status) -> Tone:
    """Return the tone of a stream that was readable."""
    if not status.healthy:
        return Tone.BAD
    worst = max((each.severity for each in status.findings), default=Severity.INFO)
    return Tone.WARNING if worst >= Severity.WARNING else Tone.GOOD
