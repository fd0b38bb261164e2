"""One maintenance run: measure, decide which steps pay off, run them, measure again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from airflow_provider_lance.exceptions import CommitPreemptedError, DatasetNotFoundError
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
from airflow_provider_lance.maintenance.dataset_metrics import (
    DatasetMetrics,
    measure,
)
from airflow_provider_lance.maintenance.indexing import refresh_indices
from airflow_provider_lance.maintenance.options import MaintenanceOptions, Step
from airflow_provider_lance.maintenance.tombstones import forget_tombstones
from airflow_provider_lance.maintenance.upkeep import note_policy
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import query_ids
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.lance_errors import named_panics
from airflow_provider_lance.protocol.sides import TOMBSTONES, decode_sides

__all__ = ["Report", "maintain", "summary_lines"]

log = logging.getLogger(__name__)

_SHOWN = [
    "rows",
    "fragments",
    "smallFragments",
    "files",
    "bytes",
    "versions",
    "manifestBytes",
    "historyBytes",
    "uncoveredRows",
]


@dataclass
class Report(JsonRecord):
    """One run.

    ``done`` has the figures of each step that did something; ``skipped`` says why each other step
    was skipped. ``warnings`` name the consumers whose position keeps nothing, or everything, and
    side tables that are missing. ``sides`` are the reports of the dataset's side tables.
    """

    uri: str
    before: DatasetMetrics
    after: DatasetMetrics
    dry_run: bool = False
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    sides: tuple[Report, ...] = ()


def summary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines for a log: what each step did, then the numbers side by side."""
    what = "Would do" if report["dryRun"] else "Done"
    for step, figures in report["done"].items():
        numbers = " ".join(f"{name}={value}" for name, value in figures.items())
        yield f"{what}: {step}. {numbers}"
    for step, reason in report["skipped"].items():
        yield f"Skipped: {step}. {reason}"
    for warning in report["warnings"]:
        yield f"Warning: {warning}"
    before, after = report["before"], report["after"]
    for name in _SHOWN:
        yield f"{name:>15} {before[name]:>15,} -> {after[name]:>15,}"
    yield f"{report['uri']} at version {after['version']}, {report['seconds']:.1f} s"
    for side in report["sides"]:
        yield from summary_lines(side)


def maintain(
    port: LanceDatasetPort,
    options: MaintenanceOptions,
    storage_options: Mapping[str, str] | None = None,
    *,
    execute: Execute = execute_here,
    on_progress: Callable[[int, int], None] = lambda done, tasks: None,
) -> Report:
    """Run the requested steps that pay off, on the dataset and then on its side tables.

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
        run.maintain_sides()
    run.report.seconds = round(time.monotonic() - began, 3)
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

    def maintain_sides(self) -> None:
        """Do the same to every side table that a query has registered."""
        config, reports, lost = self._port.config, list[Report](), list[str]()
        registered = (decode_sides(config, query_id).items() for query_id in query_ids(config))
        for name, uri in dict(chain.from_iterable(registered)).items():
            options = self._options
            if self._deadline is not None:
                left = max(1, round(self._deadline - time.monotonic()))
                options = replace(options, deadline=left)
            if self._is_over():
                self.report.skipped[name] = f"the deadline of {self._options.deadline} s is over"
                continue
            try:
                port = open_dataset(uri, self._storage)
            except DatasetNotFoundError:
                lost.append(f"side table {name!r} is missing: there is no dataset at {uri}")
                continue
            if name == TOMBSTONES and Step.CLEANUP in options.steps and not options.dry_run:
                forget_tombstones(port)
                port = port.latest()
            reports.append(
                maintain(
                    port,
                    options,
                    self._storage,
                    execute=self._execute,
                    on_progress=self._on_progress,
                )
            )
        self.report.sides = tuple(reports)
        self.report.warnings += tuple(lost)

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
                f"no two of {seen.small_fragments} small fragments can be merged; "
                f"{done.hot_fragments} are in use by a live upsert"
            )
            return
        self.report.done[Step.COMPACT] = done.to_json() | (
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
            consumers=options.consumer_retention,
            files=options.min_old_versions == 0,
        )
        self._port = self._port.latest()
        if not options.dry_run:
            note_policy(self._port, options)
            self._port = self._port.latest()
        plan = explain_cleanup(self._port, retention, self._storage)
        least = max(1, options.min_old_versions)
        found = plan.versions >= least or (retention.files and plan.data_files)
        if not found and not options.delete_unverified:
            held = "".join(f"; {name!r} holds back {count}" for name, count in plan.held.items())
            self.report.skipped[Step.CLEANUP] = (
                f"{plan.versions} versions are older than {plan.older_than} s and not kept for "
                f"another reason, fewer than {least}{held}"
            )
            self.report.warnings = plan.warnings
            return
        cleaned = plan
        if not options.dry_run:
            for attempt in Backoff(attempts=5, first=0.5):
                try:
                    cleaned = clean_up(self._port, retention, self._storage)
                    break
                except CommitPreemptedError as error:
                    attempt.error = error
        figures = cleaned.to_json()
        self.report.warnings = tuple(figures.pop("warnings"))
        self.report.done[Step.CLEANUP] = figures
