"""What can be wrong with a stream: stable codes, their severity and title; and one finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

__all__ = ["Code", "Finding", "Repair", "Severity", "Step"]


class Severity(IntEnum):
    """How severe a finding is; a larger value is worse."""

    INFO = 1
    """For information; no action needed."""
    WARNING = 2
    """The stream is exact and runs; it will get slower and costlier, and harder to restart."""
    ERROR = 3
    """The stream has stopped making progress, or will not start again by itself."""
    CRITICAL = 4
    """Rows are lost or duplicated, or would be if the stream continued unchecked."""

    @property
    def label(self) -> str:
        """Return the severity's name, as users write and read it."""
        return self.name.lower()


class Repair(StrEnum):
    """Repairs that run without asking: each is proven before it is done."""

    WATERMARK = "watermark"
    """Fold the epochs of history into the config's watermark."""
    OWNER = "owner"
    """Release an owner whose driver is proven dead."""


class Code(StrEnum):
    """The codes; each has its own page in the runbook, and never changes its meaning.

    Each has the severity of its findings, unless one says otherwise, and a short name of the
    problem as its ``title``.
    """

    severity: Severity
    title: str  # type: ignore[assignment]

    def __new__(cls, code: str, severity: Severity, title: str) -> Code:
        """Make a member whose value is the code alone."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.severity, member.title = severity, title
        return member

    @property
    def driver(self) -> bool:
        """Return whether it is about a stream's drivers."""
        return self.value.startswith("LS1")

    HEALTHY = "LS000", Severity.INFO, "healthy"
    STALLED = "LS101", Severity.ERROR, "an epoch is planned and not committed for too long"
    DRIVER_GONE = "LS102", Severity.ERROR, "the driver is gone and nobody runs the stream"
    TWO_DRIVERS = "LS103", Severity.ERROR, "two drivers of one query are running"
    QUERY_FAILED = "LS104", Severity.ERROR, "the query ended with an error"
    STOP_PENDING = "LS105", Severity.WARNING, "asked to stop, and has not stopped yet"
    DRIVER_UNSEEN = "LS106", Severity.WARNING, "the driver cannot be seen from here"
    NOT_RESPONDING = "LS107", Severity.ERROR, "the driver does not respond"
    EPOCH_IN_FLIGHT = "LS201", Severity.INFO, "an epoch is in flight"
    EPOCH_TO_SKIP = "LS202", Severity.INFO, "committed, and absent from Spark's commit log"
    WATERMARK_BEHIND = "LS203", Severity.INFO, "the config's watermark is behind history"
    COMMIT_LOG_AHEAD = "LS204", Severity.CRITICAL, "Spark's commit log is ahead of the dataset"
    HISTORY_GAP = "LS205", Severity.ERROR, "the evidence for an epoch was cleaned up"
    WATERMARK_JUMPED = "LS206", Severity.CRITICAL, "the config's watermark is ahead of all evidence"
    SIDE_TABLE_LOST = "LS207", Severity.CRITICAL, "a side table lacks rows that were committed"
    SIDE_TABLE_UNREADABLE = "LS208", Severity.WARNING, "a side table cannot be read"
    EXPECTATION_UNMET = "LS209", Severity.WARNING, "rows often miss what is expected of them"
    SOURCE_LOST = "LS210", Severity.CRITICAL, "records of the source were lost, and passed over"
    CHECKPOINT_MISSING = "LS301", Severity.ERROR, "the checkpoint is missing"
    CHECKPOINT_FOREIGN = "LS302", Severity.ERROR, "the checkpoint is another query's"
    CHECKPOINT_OLDER = "LS303", Severity.CRITICAL, "the checkpoint is older than the dataset says"
    CHECKPOINT_UNREADABLE = "LS304", Severity.WARNING, "the checkpoint cannot be read from here"
    CHECKPOINT_CORRUPT = "LS305", Severity.ERROR, "a file of the checkpoint is corrupt"
    CHECKPOINT_CHANGED = (
        "LS306",
        Severity.CRITICAL,
        "the checkpoint says other end offsets than the commit",
    )
    TOPIC_REPLACED = "LS307", Severity.ERROR, "the topic is not the one that the offsets belong to"
    FOREIGN_CLEANUP = "LS401", Severity.WARNING, "a foreign auto-cleanup is on"
    SMALL_FRAGMENTS = "LS402", Severity.WARNING, "too many small fragments"
    MANY_VERSIONS = "LS403", Severity.WARNING, "too many versions"
    ORPHANED_FILES = "LS404", Severity.INFO, "data files that no version references"
    INDEX_BEHIND = "LS405", Severity.WARNING, "an index does not cover the newest rows"
    PROTOCOL_NEWER = "LS501", Severity.ERROR, "written with another protocol"
    CONSUMER_LAGS = "LS601", Severity.WARNING, "a consumer lags behind"
    CONSUMER_GONE = "LS602", Severity.ERROR, "a consumer is gone and its versions are not kept"
    CONSUMER_AT_RISK = "LS603", Severity.ERROR, "a consumer loses versions that it needs"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of what ends a problem: a sentence, a command to type as it is, or both.

    ``host`` names the host on which the command must be typed, empty if any will do. ``link`` is
    the page where the step can be done by hand, empty if its address is not known. ``alone`` says
    that the command is refused while a driver runs.
    """

    text: str = ""
    command: str = ""
    host: str = ""
    link: str = ""
    alone: bool = False

    def to_json(self) -> dict[str, str]:
        """Return plain values."""
        return {
            "text": self.text,
            "command": self.command,
            "host": self.host,
            "link": self.link,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    ``summary`` is one sentence with the observed values. ``cause`` says how it came about.
    ``steps`` end the problem, in their order; there are none if there is nothing to do.
    ``evidence`` holds the proof: epochs, versions, ISO times, offsets, counts. ``query_id`` is
    empty if the finding is about the dataset as a whole. ``repair`` names the repair that runs
    without asking.
    """

    code: Code
    summary: str
    cause: str = ""
    steps: tuple[Step, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    query_id: str = ""
    repair: Repair | None = None
    raised: Severity | None = None
    """A severity other than the code's own, if this case is worse or better."""

    @property
    def severity(self) -> Severity:
        """Return how severe it is."""
        return self.raised or self.code.severity

    @property
    def command(self) -> str:
        """Return the first command of the steps, empty if they have none."""
        return next((step.command for step in self.steps if step.command), "")

    def step_lines(self) -> Iterator[str]:
        """Yield the steps as lines of text; a command stands on a line of its own, to be copied."""
        for number, step in enumerate(self.steps, 1):
            head = f"{number}. " if len(self.steps) > 1 else ""
            there = f"On {step.host}:" if step.host else ""
            text = " ".join(filter(None, (step.text, there)))
            if text:
                yield head + text
            if step.command:
                yield (
                    f"{' ' * len(head)}  {step.command}" if text else f"{head}type: {step.command}"
                )
            if step.link:
                yield f"{' ' * len(head)}  {step.link}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        return {
            "code": self.code.value,
            "severity": self.severity.label,
            "title": self.code.title,
            "queryId": self.query_id,
            "summary": self.summary,
            "cause": self.cause,
            "command": self.command,
            "steps": [step.to_json() for step in self.steps],
            "evidence": dict(self.evidence),
            "repair": self.repair.value if self.repair else None,
        }
