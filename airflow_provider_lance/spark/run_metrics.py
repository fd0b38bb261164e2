"""What a sink did: in one epoch, and in the whole run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_lance.protocol.decision import Decision

__all__ = ["EpochReport", "RunMetrics"]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one call of the sink did; times in milliseconds."""

    epoch_id: int
    decision: Decision | None
    rows: int = 0
    deletes: int = 0
    fragments: int = 0
    bytes: int = 0
    write_ms: float = 0.0
    commit_ms: float = 0.0
    version: int = 0


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What a sink has committed since it was made."""

    epochs: int = 0
    rows: int = 0
    deletes: int = 0
    skipped: int = 0
    first_epoch: int | None = None
    last_epoch: int | None = None

    def plus(self, report: EpochReport) -> RunMetrics:
        """Return the totals with one more epoch added."""
        if report.decision in (Decision.SKIP_REPLAY, Decision.RECOVERY_TXN2_ONLY):
            return replace(self, skipped=self.skipped + 1)
        if report.decision is not Decision.FULL_COMMIT:
            return self
        first = report.epoch_id if self.first_epoch is None else self.first_epoch
        return replace(
            self,
            epochs=self.epochs + 1,
            rows=self.rows + report.rows,
            deletes=self.deletes + report.deletes,
            first_epoch=first,
            last_epoch=report.epoch_id,
        )
