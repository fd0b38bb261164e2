"""What can be wrong with a stream: stable codes, and the text of each finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

__all__ = ["Code", "Finding", "Repair", "Severity"]


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
    """The codes; each has its own page in the runbook, and never changes its meaning."""

    HEALTHY = "LS000"
    STALLED = "LS101"
    DRIVER_GONE = "LS102"
    TWO_DRIVERS = "LS103"
    QUERY_FAILED = "LS104"
    STOP_PENDING = "LS105"
    DRIVER_UNSEEN = "LS106"
    EPOCH_IN_FLIGHT = "LS201"
    EPOCH_TO_SKIP = "LS202"
    WATERMARK_BEHIND = "LS203"
    COMMIT_LOG_AHEAD = "LS204"
    HISTORY_GAP = "LS205"
    WATERMARK_JUMPED = "LS206"
    CHECKPOINT_MISSING = "LS301"
    CHECKPOINT_FOREIGN = "LS302"
    CHECKPOINT_OLDER = "LS303"
    CHECKPOINT_UNREADABLE = "LS304"
    CHECKPOINT_CORRUPT = "LS305"
    CHECKPOINT_CHANGED = "LS306"
    FOREIGN_CLEANUP = "LS401"
    SMALL_FRAGMENTS = "LS402"
    MANY_VERSIONS = "LS403"
    ORPHANED_FILES = "LS404"
    INDEX_BEHIND = "LS405"
    PROTOCOL_NEWER = "LS501"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Return a short name of the problem."""
        return _CATALOG[self][1]

    @property
    def severity(self) -> Severity:
        """Return the default severity of the code's findings."""
        return _CATALOG[self][0]


_CATALOG: dict[Code, tuple[Severity, str]] = {
    Code.HEALTHY: (Severity.INFO, "healthy"),
    Code.STALLED: (Severity.ERROR, "an epoch is planned and not committed for too long"),
    Code.DRIVER_GONE: (Severity.ERROR, "the owner is active and its driver is gone"),
    Code.TWO_DRIVERS: (Severity.ERROR, "two drivers of one query are alive"),
    Code.QUERY_FAILED: (Severity.ERROR, "the query ended with an error"),
    Code.STOP_PENDING: (Severity.WARNING, "asked to stop, and has not yet"),
    Code.DRIVER_UNSEEN: (Severity.WARNING, "the driver cannot be seen from here"),
    Code.EPOCH_IN_FLIGHT: (Severity.INFO, "an epoch is in flight"),
    Code.EPOCH_TO_SKIP: (Severity.INFO, "committed, and absent from Spark's commit log"),
    Code.WATERMARK_BEHIND: (Severity.INFO, "the config's watermark is behind history"),
    Code.COMMIT_LOG_AHEAD: (Severity.CRITICAL, "Spark's commit log is ahead of the dataset"),
    Code.HISTORY_GAP: (Severity.ERROR, "the evidence for an epoch was cleaned up"),
    Code.WATERMARK_JUMPED: (Severity.CRITICAL, "the config's watermark is ahead of all evidence"),
    Code.CHECKPOINT_MISSING: (Severity.ERROR, "the checkpoint is missing"),
    Code.CHECKPOINT_FOREIGN: (Severity.ERROR, "the checkpoint is another query's"),
    Code.CHECKPOINT_OLDER: (Severity.CRITICAL, "the checkpoint is older than the dataset says"),
    Code.CHECKPOINT_UNREADABLE: (Severity.WARNING, "the checkpoint cannot be read from here"),
    Code.CHECKPOINT_CORRUPT: (Severity.ERROR, "a file of the checkpoint is corrupt"),
    Code.CHECKPOINT_CHANGED: (
        Severity.CRITICAL,
        "the checkpoint says other end offsets than the commit",
    ),
    Code.FOREIGN_CLEANUP: (Severity.WARNING, "a foreign auto-cleanup is on"),
    Code.SMALL_FRAGMENTS: (Severity.WARNING, "too many small fragments"),
    Code.MANY_VERSIONS: (Severity.WARNING, "too many versions"),
    Code.ORPHANED_FILES: (Severity.INFO, "data files that no version names"),
    Code.INDEX_BEHIND: (Severity.WARNING, "an index does not cover the newest rows"),
    Code.PROTOCOL_NEWER: (Severity.ERROR, "written with another protocol"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    ``summary`` is one sentence with the observed values. ``cause`` says how it came about.
    ``command`` is what to type next, empty if there is nothing to do. ``evidence`` holds the proof:
    epochs, versions, ISO times, offsets, counts. ``query_id`` is empty if the finding is about the
    dataset as a whole. ``repair`` names the repair that runs without asking.
    """

    code: Code
    summary: str
    cause: str = ""
    command: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    query_id: str = ""
    repair: Repair | None = None
    raised: Severity | None = None
    """A severity other than the code's own, if this case is worse or better."""

    @property
    def severity(self) -> Severity:
        """Return how severe it is."""
        return self.raised or self.code.severity

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
            "evidence": dict(self.evidence),
            "repair": self.repair.value if self.repair else None,
        }
