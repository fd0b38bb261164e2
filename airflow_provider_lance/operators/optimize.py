"""Compact a dataset, update its indices, remove old versions; safe beside live streams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_lance.backends.submission import (
    Submission,
    check_submission,
    spark_connection,
)
from airflow_provider_lance.compat import AirflowSkipException
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.lance import LanceDatasetLink, dataset_url
from airflow_provider_lance.maintenance.options import (
    MaintenanceOptions,
    MaintenanceSpec,
)
from airflow_provider_lance.maintenance.run import summary_lines
from airflow_provider_lance.operators.checks import check_dataset, is_mapped, is_open
from airflow_provider_lance.operators.engines import LocalEngine, SparkEngine
from airflow_provider_lance.operators.specification import mapping

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["LanceOptimizeOperator"]


class LanceOptimizeOperator(BaseOperator):
    """
    Keep a dataset fast and small: compaction, indices, cleanup. Safe beside running streams.

    Compaction merges small fragments and never conflicts with appends; fragments that a live upsert
    touches are left alone. Cleanup first folds every query's epoch watermark into the dataset's
    config, and removes nothing that a restart of a stream needs. Clearing the task runs it again.
    Returns numbers ``before`` and ``after``, what was ``done`` in each step and why a step was
    ``skipped``. A run without anything worth doing is skipped, with the reason.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param steps: Which of ``compact``, ``index`` and ``cleanup``; all by default. (templated)
    :param compaction: pylance's ``CompactionOptions``: ``target_rows_per_fragment``,
        ``max_source_fragments``, ``max_source_rows``, ``max_source_bytes``, ``defer_index_remap``
        and the others. Omitted options come from the dataset's own ``lance.compaction.*`` settings.
        (templated)
    :param min_small_fragments: Compact only if there are at least this many small fragments.
    :param min_uncovered_rows: Refresh indices only if some index omits at least this many rows.
    :param min_old_versions: Clean up only if at least this many versions can be removed.
    :param older_than: Remove versions older than this; a week by default. While a stream is active,
        those of the last ten minutes stay in any case.
    :param retain_versions: Keep this many of the newest versions, however old.
    :param delete_rate_limit: Deletions per second.
    :param consumer_retention: For how long after a consumer of the dataset wrote its position
        cleanup keeps what the consumer still needs; a week by default.
    :param delete_unverified: Also remove files that no version references, however young; refused
        while a stream is active.
    :param deadline: Start nothing new after this time; the next run continues from there.
    :param dry_run: Report what would be done, and change nothing.
    :param engine: ``local``, in this worker, or ``spark``, where compaction tasks run on executors.
        (templated)
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param spark_conn_id: The Spark connection, for engine ``spark``. (templated)
    :param conf: Spark configuration properties; they show on the command line. (templated)
    :param packages: Maven coordinates to load, separated by commas. (templated)
    :param spark_submit: Further keyword arguments of ``SparkSubmitHook``. (templated)
    """

    template_fields: Sequence[str] = (
        "uri",
        "steps",
        "compaction",
        "engine",
        "lance_conn_id",
        "spark_conn_id",
        "conf",
        "packages",
        "spark_submit",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "compaction": "json",
        "conf": "json",
        "spark_submit": "json",
    }
    operator_extra_links = (LanceDatasetLink(),)
    ui_color = "#d0e0e3"

    def __init__(
        self,
        *,
        uri: str,
        steps: Sequence[str] = ("compact", "index", "cleanup"),
        compaction: dict[str, Any] | None = None,
        min_small_fragments: int | None = None,
        min_uncovered_rows: int | None = None,
        min_old_versions: int | None = None,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        delete_rate_limit: int | None = None,
        consumer_retention: timedelta | None = None,
        delete_unverified: bool = False,
        deadline: timedelta | None = None,
        dry_run: bool = False,
        engine: str = "local",
        lance_conn_id: str | None = LanceHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        conf: dict[str, Any] | None = None,
        packages: str | None = None,
        spark_submit: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.steps = steps
        self.compaction = compaction
        self.min_small_fragments = min_small_fragments
        self.min_uncovered_rows = min_uncovered_rows
        self.min_old_versions = min_old_versions
        self.older_than = older_than
        self.retain_versions = retain_versions
        self.delete_rate_limit = delete_rate_limit
        self.consumer_retention = consumer_retention
        self.delete_unverified = delete_unverified
        self.deadline = deadline
        self._dry_run = dry_run  # BaseOperator has a method of that name
        self.engine = engine
        self.lance_conn_id = lance_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.packages = packages
        self.spark_submit = spark_submit
        self.dataset_url = ""
        self._running: LocalEngine | SparkEngine | None = None
        if not is_mapped(self):
            self._check_arguments()

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            options, uri = self._options(), self.hook.resolve(self.uri)
            self._running = self._engine()
            self.dataset_url = dataset_url(uri, self.hook.store.endpoint)
            context["ti"].xcom_push(LanceDatasetLink.xcom_key, self.dataset_url)
            spec = MaintenanceSpec(
                uri=uri, storage_options=self.hook.storage_options, options=options
            )
            report = self._running.run(spec)
        for line in summary_lines(report):
            self.log.info(line)
        if not report["done"] and not options.dry_run:
            why = "; ".join(f"{step}: {reason}" for step, reason in report["skipped"].items())
            context["ti"].xcom_push("return_value", report)
            raise AirflowSkipException(f"Nothing to do. {why}")
        return report

    def on_kill(self) -> None:
        # What a run has committed stays; the next run finds the rest again.
        if self._running:
            self._running.kill()

    def _check_arguments(self) -> None:
        """Check, when the DAG is parsed, the arguments that hold no template."""
        check_dataset(self.uri, "any", self.lance_conn_id)
        if not any(map(is_open, (self.steps, self.compaction))):
            self._options()
        if not is_open(self.engine):
            _require_engine(self.engine)
        if not any(map(is_open, (self.conf, self.packages, self.spark_submit))):
            check_submission(
                conf=mapping(self.conf, "conf"),
                further=mapping(self.spark_submit, "spark_submit"),
                deploy_mode=None,
                packages=self.packages,
            )

    def _engine(self) -> LocalEngine | SparkEngine:
        _require_engine(self.engine)
        if self.engine == "local":
            return LocalEngine(self.log)
        submission = Submission(
            connection=spark_connection(self.spark_conn_id),
            name="lance-optimize",
            conf=mapping(self.conf, "conf"),
            packages=self.packages,
            py_files=None,
            deploy_mode=None,
            further=mapping(self.spark_submit, "spark_submit"),
        )
        return SparkEngine(self.log, submission)

    def _options(self) -> MaintenanceOptions:
        return MaintenanceOptions.parse(
            {
                "steps": list(self.steps),
                "compaction": self.compaction,
                "deadline": _whole_seconds(self.deadline, "deadline"),
                "minSmallFragments": self.min_small_fragments,
                "minUncoveredRows": self.min_uncovered_rows,
                "minOldVersions": self.min_old_versions,
                "olderThan": _whole_seconds(self.older_than, "older_than"),
                "retainVersions": self.retain_versions,
                "deleteRateLimit": self.delete_rate_limit,
                "consumerRetention": _whole_seconds(self.consumer_retention, "consumer_retention"),
                "deleteUnverified": self.delete_unverified,
                "dryRun": self._dry_run,
            }
        )


def _require_engine(engine: object) -> None:
    if engine not in ("local", "spark"):
        raise SpecError(f"engine must be 'local' or 'spark', got {engine!r}")


def _whole_seconds(value: object, name: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise SpecError(f"{name} must be a timedelta of 0 or more, got {value!r}")
    return int(value.total_seconds())
