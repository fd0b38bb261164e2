"""The lines of the page's list: one for each stream, those that need somebody first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from airflow_provider_lance.diagnostics.findings import Finding, Severity
from airflow_provider_lance.diagnostics.formatting import lasted
from airflow_provider_lance.diagnostics.status import UNKNOWN, Status
from airflow_provider_lance.links.lance import stream_address
from airflow_provider_lance.plugins.page.cache import CachedResult
from airflow_provider_lance.plugins.page.mutes import Mute, muted
from airflow_provider_lance.plugins.page.queries import Row
from airflow_provider_lance.plugins.page.registry import RegisteredDataset

__all__ = [
    "Line",
    "Verdict",
    "list_streams",
    "sentence_of",
    "summary",
    "verdict_of",
    "without_consumers",
    "without_consumers_of",
]

Tone = Literal["bad", "warning", "muted", "good", "none"]
"""The colour of a line, a class of the style sheet."""
_ORDER = ("bad", "warning", "muted", "good", "none")
_NO_ANSWER = Severity.ERROR


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a stream's badge says: a colour, and a word that agrees with it; a code if any."""

    tone: Tone
    word: str
    code: str = ""
    severity: Severity = Severity.INFO


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a stream with its status, or a sentence instead. ``age`` is in seconds."""

    uri: str
    verdict: Verdict
    sentence: str
    age: float
    query_id: str = ""
    link: str = ""
    status: Status | None = None
    mute: Mute | None = None

    @property
    def key(self) -> str:
        """Return what stays the same as long as it is the same line."""
        return f"{self.uri} {self.query_id}"


def list_streams(
    looks: Iterable[tuple[RegisteredDataset, CachedResult[tuple[Row, ...]]]],
    mutes: Sequence[Mute] = (),
) -> list[Line]:
    """Return the lines for the results of the known datasets, the worst first."""
    now = datetime.now(UTC)
    lines = [line for known, look in looks for line in _lines(known, look, mutes, now)]
    return sorted(
        lines,
        key=lambda line: (
            _ORDER.index(line.verdict.tone),
            -line.verdict.severity,
            line.uri,
            line.query_id,
        ),
    )


def summary(lines: Iterable[Line]) -> str:
    """Return how many lines need somebody, and how the others are."""
    tones = Counter(line.verdict.word if line.verdict.tone == "none" else "" for line in lines)
    del tones[""]
    counted = Counter(line.verdict.tone for line in lines)
    need, warned = counted["bad"], counted["warning"]
    parts = [
        f"{need} {'needs' if need == 1 else 'need'} you" if need else "",
        f"{warned} warned" if warned else "",
        f"{counted['muted']} acknowledged" if counted["muted"] else "",
        f"{counted['good']} fine" if counted["good"] else "",
        *(f"{count} {word}" for word, count in sorted(tones.items())),
    ]
    return ", ".join(filter(None, parts))


def verdict_of(status: Status, mute: Mute | None = None) -> Verdict:
    """Return the verdict on a stream that was readable."""
    return _verdict(status.findings, status.state, mute)


def sentence_of(status: Status) -> str:
    """Return a stream's sentence without its state or severity, which is shown beside it."""
    head, _, rest = status.sentence.partition(": ")
    return rest if head in {status.state, *(each.label for each in Severity)} else status.sentence


def without_consumers(status: Status) -> Status:
    """Return a status for a viewer who may see this stream and not all of its dataset.

    A consumer names its own dataset and query, which may be those of another team's DAG.
    """
    kept = without_consumers_of(status.findings)
    if kept == status.findings:
        return status
    worst = max(kept, key=lambda each: each.severity, default=None)
    is_bad = worst is not None and worst.severity >= Severity.ERROR
    said = worst.summary if worst and is_bad else f"watermark {status.watermark}"
    sentence = f"{status.state}: {said}"
    return replace(status, findings=kept, healthy=not is_bad, sentence=sentence)


def without_consumers_of(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings that name no consumer."""
    return tuple(each for each in findings if "consumerId" not in each.evidence)


def _verdict(findings: Sequence[Finding], state: str, mute: Mute | None = None) -> Verdict:
    worst = max(findings, key=lambda each: each.severity, default=None)
    if worst is None or worst.severity < Severity.WARNING:
        # No finding is no proof that it is well: nobody could tell.
        return Verdict("bad" if state == UNKNOWN else "good", state)
    severity = worst.severity
    if mute is not None:
        return Verdict("muted", "muted", worst.code.value, severity)
    tone: Tone = "bad" if severity >= Severity.ERROR else "warning"
    return Verdict(tone, severity.label, worst.code.value, severity)


def _lines(
    known: RegisteredDataset,
    look: CachedResult[tuple[Row, ...]],
    mutes: Sequence[Mute],
    now: datetime,
) -> list[Line]:
    unread = Verdict("bad", UNKNOWN, severity=_NO_ANSWER)
    if look.value is None and look.last:
        lines = [_line(known, look.last_age, row, mutes, now) for row in look.last]
        seen = lasted(look.last_age)
        return [
            replace(
                line,
                verdict=unread,
                mute=None,
                sentence=f"cannot be read: {look.error}. What was seen {seen} ago: {line.sentence}",
            )
            for line in lines
        ]
    if look.value is None and look.error:
        return [Line(known.uri, unread, f"cannot be read: {look.error}", look.age)]
    if look.value is None:
        return [Line(known.uri, Verdict("none", "not seen yet"), "no answer yet", look.age)]
    if not look.value:
        return [
            Line(known.uri, Verdict("none", "empty"), "no stream has written here yet", look.age)
        ]
    return [_line(known, look.age, row, mutes, now) for row in look.value]


def _line(
    known: RegisteredDataset, age: float, row: Row, mutes: Sequence[Mute], now: datetime
) -> Line:
    link = stream_address(known.uri, row.query_id, known.conn_id)
    status = row.status
    if status is not None:
        mute = muted(mutes, known.uri, status, now)
        verdict, said = verdict_of(status, mute), sentence_of(status)
        return Line(known.uri, verdict, said, age, row.query_id, link, status, mute)
    if row.error:
        verdict = Verdict("bad", UNKNOWN, row.code, _NO_ANSWER)
        return Line(known.uri, verdict, row.error, age, row.query_id, link)
    verdict = _verdict(row.findings, "only read")
    if verdict.tone == "good":  # it needs nobody, and no stream is fine because of it
        verdict = replace(verdict, tone="none")
    return Line(known.uri, verdict, row.sentence, age, "", link)
