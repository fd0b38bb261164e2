"""A check as numbers for Prometheus: the names, and the samples of one dataset; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_lance.diagnostics.check import CheckReport
from airflow_provider_lance.diagnostics.findings import Code, Finding
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.protocol.decoding import without_credentials
from airflow_provider_lance.protocol.model import OwnerState

__all__ = ["METRICS", "Metric", "Sample", "samples"]

_STREAM = ("uri", "query_id")
_FORGOTTEN_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, what it says, and the names of its labels.

    A counter begins at 0 with each driver.
    """

    name: str
    help: str
    labels: tuple[str, ...] = _STREAM
    counter: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; ``labels`` are in the order of the metric's own."""

    name: str
    labels: tuple[str, ...]
    value: float


METRICS = (
    Metric("lance_stream_state", "1 for the stream's state", (*_STREAM, "state")),
    Metric(
        "lance_stream_worst_severity",
        "worst finding: 0 none, 1 info, 2 warning, 3 error, 4 critical",
    ),
    Metric(
        "lance_stream_finding",
        "1 for each finding; without a query id it is about the dataset",
        (*_STREAM, "code", "severity"),
    ),
    Metric("lance_stream_watermark_epoch", "newest committed epoch, -1 before the first"),
    Metric("lance_stream_epoch_age_seconds", "since the newest epoch was committed"),
    Metric("lance_stream_rows_behind", "available and not read: records, rows, or files"),
    Metric("lance_stream_versions_behind", "versions of a Lance source that are not read"),
    Metric("lance_stream_seconds_behind", "age of the oldest that is not read"),
    Metric("lance_stream_input_rows_per_second", "rows that arrive, in the newest epoch"),
    Metric("lance_stream_processed_rows_per_second", "rows processed, in the newest epoch"),
    Metric(
        "lance_stream_unmet_rows_total",
        "rows of the driver's run that did not meet an expectation",
        (*_STREAM, "expectation"),
        counter=True,
    ),
    Metric(
        "lance_stream_dropped_rows_total",
        "rows of the driver's run that were dropped",
        counter=True,
    ),
    Metric(
        "lance_stream_quarantined_rows_total",
        "rows of the driver's run that went to the quarantine",
        counter=True,
    ),
    Metric("lance_stream_state_rows", "rows that the query's stateful operators hold"),
    Metric("lance_stream_state_bytes", "memory that they hold"),
    Metric(
        "lance_stream_too_late_rows_total",
        "rows of the driver's run that stateful operators dropped behind the event-time watermark",
        counter=True,
    ),
    Metric("lance_stream_dataset_version", "newest version of the dataset", ("uri",)),
    Metric("lance_stream_dataset_rows", "rows of the dataset", ("uri",)),
    Metric("lance_stream_dataset_fragments", "fragments of the dataset", ("uri",)),
    Metric("lance_stream_dataset_queries", "streaming queries that the dataset knows", ("uri",)),
    Metric(
        "lance_stream_consumer_versions_behind",
        "versions that a consumer of the dataset has not read",
        ("uri", "consumer_id"),
    ),
    Metric(
        "lance_stream_consumer_seconds_behind",
        "age of the oldest version that a consumer has not read, 0 if it has read all",
        ("uri", "consumer_id"),
    ),
)


def samples(report: CheckReport, *, all_queries: bool = False) -> Iterator[Sample]:
    """Yield the samples of one dataset; a value that is unknown has none.

    :param all_queries: also those that ended in good order, and committed nothing for 7 days.
    """
    uri = without_credentials(report.uri)
    yield Sample("lance_stream_dataset_version", (uri,), report.version)
    yield Sample("lance_stream_dataset_queries", (uri,), len(report.statuses))
    for name in ("rows", "fragments"):
        value = next((getattr(each, name) for each in report.statuses), None)
        if value is not None:
            yield Sample(f"lance_stream_dataset_{name}", (uri,), value)
    found = [each for each in report.findings if each.code is not Code.HEALTHY]
    shown = [
        each
        for each in report.statuses
        if all_queries or not _is_over(each) or any(f.query_id == each.query_id for f in found)
    ]
    for query_id in ("", *(each.query_id for each in shown)):
        yield from _severity((uri, query_id), [f for f in found if f.query_id == query_id])
    for status in shown:
        yield from _stream((uri, status.query_id), status)
    for consumer in report.consumers:
        labels = uri, consumer.consumer_id
        if consumer.versions_behind is not None:
            yield Sample("lance_stream_consumer_versions_behind", labels, consumer.versions_behind)
            behind = consumer.seconds_behind or 0.0
            yield Sample("lance_stream_consumer_seconds_behind", labels, behind)


def _is_over(status: Status) -> bool:
    """Return whether a query was released, and long ago: each run may have had one of its own."""
    age = status.epoch_age_seconds
    released = status.owner_state == OwnerState.RELEASED.value
    return released and age is not None and age > _FORGOTTEN_SECONDS


def _severity(labels: tuple[str, str], found: list[Finding]) -> Iterator[Sample]:
    worst = max((each.severity for each in found), default=0)
    yield Sample("lance_stream_worst_severity", labels, worst)
    kinds = {(each.code.value, each.severity.label) for each in found}
    for kind in sorted(kinds):
        yield Sample("lance_stream_finding", (*labels, *kind), 1)


def _stream(labels: tuple[str, str], status: Status) -> Iterator[Sample]:
    yield Sample("lance_stream_state", (*labels, status.state), 1)
    yield Sample("lance_stream_watermark_epoch", labels, status.watermark)
    for name in (
        "epoch_age_seconds",
        "rows_behind",
        "versions_behind",
        "seconds_behind",
        "input_rows_per_second",
        "processed_rows_per_second",
    ):
        value = getattr(status, name)
        if value is not None:
            yield Sample(f"lance_stream_{name}", labels, value)
    if checks := status.checks:
        for name, met in checks.expectations.items():
            yield Sample("lance_stream_unmet_rows_total", (*labels, name), met.unmet)
        yield Sample("lance_stream_dropped_rows_total", labels, checks.dropped)
        yield Sample("lance_stream_quarantined_rows_total", labels, checks.quarantined)
    if kept := status.query_state:
        yield Sample("lance_stream_state_rows", labels, kept.rows)
        yield Sample("lance_stream_state_bytes", labels, kept.bytes)
        yield Sample("lance_stream_too_late_rows_total", labels, kept.too_late)
