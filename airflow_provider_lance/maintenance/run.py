"""One maintenance run: measure, decide which steps pay off, run them, measure again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.maintenance.cleanup import (
    Retention,
    clean_up,
    explain_cleanup,
)
from airflow_provider_lance.maintenance.compaction import (
    Compacted,
    Execute,
    compact,
    execute_here,
    hot_fragments,
    plan_compaction,
)
from airflow_provider_lance.maintenance.dataset_metrics import DatasetMetrics, camel, measure
from airflow_provider_lance.maintenance.indexing import refresh_indices
from airflow_provider_lance.maintenance.options import MaintenanceOptions, Step
from airflow_provider_lance.maintenance.report import Report
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import named_panics

__all__ = ["maintain"]


def maintain(
    port: LanceDatasetPort,
    options: MaintenanceOptions,
    storage_options: Mapping[str, str] | None = None,
    *,
    execute: Execute = execute_here,
    on_progress: Callable[[int, int], None] = lambda done, tasks: None,
) -> Report:
    """Run the requested steps that pay off.

    Each step is committed on its own: what one has done stays when a later one fails.

    :param execute: where compaction tasks run.
    :raises HistoryGapError: cleanup would remove evidence that is already incomplete.
    :raises SpecError: unverified files are to be removed while a query has an active owner.
    :raises TransientError: writers conflicted repeatedly, or the store did not answer.
    """
    began = time.monotonic()
    with named_panics(port.uri):
        run = _Run(port, options, storage_options, execute, on_progress)
        for step in options.steps:
            run.do(step)
        run.report.after = run.measure()
    run.report.seconds = time.monotonic() - began
    return run.report


class _Run:
    def __init__(
        self,
        port: LanceDatasetPort,
        options: MaintenanceOptions,
        storage_options: Mapping[str, str] | None,
        execute: Execute,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._port, self._options, self._storage = port, options, storage_options
        self._execute, self._on_progress = execute, on_progress
        self._deadline = time.monotonic() + options.deadline if options.deadline else None
        before = self.measure()
        self.report = Report(port.uri, before, before, options.dry_run)

    def measure(self) -> DatasetMetrics:
        self._port = self._port.latest()
        target_rows = self._options.target_rows(self._port.config)
        return measure(self._port, target_rows, self._storage)

    def do(self, step: Step) -> None:
        if self._is_over():
            self.report.skipped[step] = f"the deadline of {self._options.deadline} s is over"
            return
        {Step.COMPACT: self._compact, Step.INDEX: self._index, Step.CLEANUP: self._clean}[step]()

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _compact(self) -> None:
        options, seen = self._options, self.report.before
        least = max(2, options.min_small_fragments)
        if seen.small_fragments < least and not seen.ragged_fragments:
            self.report.skipped[Step.COMPACT] = (
                f"{seen.small_fragments} small fragments, fewer than {least}, and none that lost a "
                "tenth of its rows"
            )
            return
        if options.dry_run:
            hot = hot_fragments(self._port)
            tasks = plan_compaction(self._port, options.compaction, hot)
            done = Compacted(left=len(tasks), hot_fragments=len(hot))
            planned = sum(len(task.fragments) for task in tasks)
        else:
            done = compact(
                self._port,
                options.compaction,
                execute=self._execute,
                is_over=self._is_over,
                on_progress=self._on_progress,
            )
            planned = done.tasks + done.left
        if not planned and not done.conflicts:
            self.report.skipped[Step.COMPACT] = (
                f"no two of {seen.small_fragments} small fragments can be put together; "
                f"{done.hot_fragments} are in use by a live upsert"
            )
            return
        figures = {camel(name): value for name, value in asdict(done).items()}
        self.report.done[Step.COMPACT] = figures | (
            {"sourceFragments": planned} if options.dry_run else {}
        )

    def _index(self) -> None:
        self._port = self._port.latest()
        rows = self.report.before.uncovered_rows
        if Step.COMPACT in self.report.done and not self._options.dry_run:
            rows = self.measure().uncovered_rows
        least = max(1, self._options.min_uncovered_rows)
        if rows < least:
            self.report.skipped[Step.INDEX] = f"{rows} rows are not covered, fewer than {least}"
            return
        left = {} if self._options.dry_run else refresh_indices(self._port)
        self.report.done[Step.INDEX] = {"rows": rows, "left": left}

    def _clean(self) -> None:
        options = self._options
        retention = Retention(
            older_than=options.older_than,
            retain_versions=options.retain_versions,
            rate=options.delete_rate_limit,
            unverified=options.delete_unverified,
        )
        self._port = self._port.latest()
        plan = explain_cleanup(self._port, retention, self._storage)
        least = max(1, options.min_old_versions)
        if plan.versions < least and not options.delete_unverified:
            self.report.skipped[Step.CLEANUP] = (
                f"{plan.versions} versions are older than {plan.older_than} s and not kept for "
                f"another reason, fewer than {least}"
            )
            return
        cleaned = plan
        if not options.dry_run:
            for attempt in Backoff(attempts=5, first=0.5):
                try:
                    cleaned = clean_up(self._port, retention, self._storage)
                    break
                except CommitPreemptedError as error:
                    attempt.error = error
        self.report.done[Step.CLEANUP] = {
            camel(name): list(value) if isinstance(value, tuple) else value
            for name, value in asdict(cleaned).items()
        }
