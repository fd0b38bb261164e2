"""The named steps of a driver's work on a dataset, and the result of a commit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_lance.protocol.decision import Decision

__all__ = ["CommitResult", "Failpoint"]


class Failpoint(StrEnum):
    """The points between two side effects, in the order in which they are reached."""

    CLAIM_OPENED = "claim.opened"
    CLAIM_OWNED = "claim.owned"
    CLAIM_BARRED = "claim.barred"
    CLAIM_REPAIRED = "claim.repaired"
    COMMIT_CHECKED = "commit.checked"
    COMMIT_LANDED = "commit.landed"
    COMMIT_FOLDED = "commit.folded"
    RELEASE_CHECKED = "release.checked"
    RELEASE_DONE = "release.done"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of one epoch; ``version`` is the dataset's version after it."""

    decision: Decision
    epoch_id: int
    version: int
    commit_ms: float = 0.0
