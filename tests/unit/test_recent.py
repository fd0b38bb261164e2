"""What a heartbeat remembers of the newest epochs; Spark's own part is tested with Spark."""

from __future__ import annotations

from typing import Any

from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.spark.run_metrics import (
    EpochHistory,
    EpochReport,
    RunMetrics,
    WatchedTotals,
)


class Query:
    """A query whose last progress is all there is."""


def done(epoch: int, decision: Decision | None = Decision.FULL_COMMIT) -> EpochReport:
    return EpochReport(
        epoch, decision, rows=5, fragments=2, write_ms=12.34, commit_ms=1.26, version=epoch + 10
    )


def progress(batch: int, took: int | None) -> dict[str, Any]:
    durations = {"latestOffset": 1, "triggerExecution": took or 1}
    return {"batchId": batch, "durationMs": durations | ({"addBatch": took} if took else {})}


def test_epoch_history_keeps_the_newest_60_epochs_with_short_values() -> None:
    recent = EpochHistory()
    for epoch in range(100):
        recent.add(done(epoch))
    epochs = recent.to_json()
    assert [each["epoch"] for each in epochs] == list(range(40, 100))
    at = epochs[0].pop("at")
    assert at.endswith("+00:00")
    assert epochs[0] == {
        "epoch": 40,
        "version": 50,
        "rows": 5,
        "fragments": 2,
        "writeMs": 12.3,
        "commitMs": 1.3,
        "batchMs": None,
    }


def test_an_epoch_that_committed_nothing_is_not_remembered() -> None:
    recent = EpochHistory()
    for decision in (None, Decision.SKIP_REPLAY, Decision.RECOVERY_TXN2_ONLY):
        recent.add(done(1, decision))
    assert recent.to_json() == []


def test_sparks_trigger_is_joined_once_it_has_run() -> None:
    recent, query = EpochHistory(), Query()
    recent.add(done(0))
    recent.join(query, progress(0, None))  # type: ignore[arg-type]
    assert recent.to_json()[0]["batchMs"] is None
    recent.join(query, progress(0, 250))  # type: ignore[arg-type]
    recent.join(query, progress(1, None))  # type: ignore[arg-type]
    recent.join(None, progress(1, 1))
    recent.join(query, None)  # type: ignore[arg-type]
    recent.join(query, {})  # type: ignore[arg-type]
    recent.join(query, {"batchId": 7})  # type: ignore[arg-type]
    assert recent.to_json()[0]["batchMs"] == 250


def test_rows_that_came_too_late_are_summed_for_each_operator_and_trigger_once() -> None:
    recent, query = EpochHistory(), Query()
    for batch, dropped in enumerate([(0, 2), (3, 0), (1, 1)]):
        operators = [{"numRowsDroppedByWatermark": each} for each in dropped]
        ran = progress(batch, 250) | {"stateOperators": operators}
        idle = progress(batch + 1, None) | {"stateOperators": operators}
        for seen in (ran, ran, idle):
            recent.join(query, seen)  # type: ignore[arg-type]
    assert recent.too_late == (4, 3)


def test_watcher_gets_every_epoch_that_is_added_to_the_totals() -> None:
    seen: list[EpochReport] = []
    totals: RunMetrics = WatchedTotals(watcher=seen.append)
    plain = RunMetrics()
    for report in (done(0), done(1, None), done(2, Decision.SKIP_REPLAY), done(3)):
        totals, plain = totals.plus(report), plain.plus(report)
    assert [report.epoch_id for report in seen] == [0, 1, 2, 3]
    assert (totals.epochs, totals.rows, totals.skipped) == (2, 10, 1)
    assert (totals.first_epoch, totals.last_epoch) == (plain.first_epoch, plain.last_epoch)
