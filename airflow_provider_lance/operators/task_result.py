"""From the end of a stream to its task's return value, asset events, or error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.compat import AirflowTaskTimeout
from airflow_provider_lance.exceptions import FencedError, TransientError, error_class
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary, report_location
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.triggers.supervision_outcome import SupervisionOutcome

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["emit_events", "task_result"]


def task_result(launch: Launch, outcome: SupervisionOutcome, log: Logger) -> dict[str, Any]:
    """Return a stream's summary, or raise the error that ended it.

    :raises LanceStreamError: the error that the driver's summary or its log names, as its own
        class.
    :raises FencedError: another driver owns the query.
    :raises TransientError: the driver was lost, and may not be started again.
    :raises AirflowTaskTimeout: the task's time was up, and the stream was asked to stop.
    """
    query, where = f"query {launch.query_id!r}", launch.driver.where()
    known = {"launchId": launch.launch_id, "queryId": launch.query_id, "uri": launch.uri}
    if outcome.timed_out:
        raise AirflowTaskTimeout(f"{query}: {outcome.reason}")
    if outcome.ended is not None:
        return _summary(Summary.from_json(outcome.ended), outcome, log)
    if outcome.state is StreamState.FENCED:
        raise FencedError(f"{query}: {outcome.reason}")
    if outcome.state is StreamState.STOPPED:
        return {**known, "reason": EndReason.STOPPED.value, "released": False}
    if outcome.state is StreamState.FINISHED:
        log.warning(
            "The driver ended with success, but this worker finds no summary in %s. If the "
            "checkpoint is on a disk of the cluster, move it to a store that both reach: then the "
            "result has epochs and rows",
            f"{report_location(launch.checkpoint_location)}/{launch.launch_id}",
        )
        return {**known, "reason": "unknown"}
    if outcome.error:
        raise error_class(outcome.error)(f"{query}: {outcome.reason} ({where})")
    raise TransientError(
        f"{query} {outcome.state}: {outcome.reason} ({where}). A retry takes over safely: no "
        "epoch is lost or doubled"
    )


def _summary(summary: Summary, outcome: SupervisionOutcome, log: Logger) -> dict[str, Any]:
    if summary.reason is EndReason.FAILED:
        known = error_class(summary.error or "")
        name = "" if known.__name__ == summary.error else f"{summary.error}: "
        again = outcome.reason.partition("; not restarted again: ")[2]
        raise known(f"{name}{summary.message}" + (f" ({again})" if again else ""))
    log.info(
        "Stream %s. epochs=%s rows=%s watermark=%s version=%s seconds=%.1f",
        summary.reason.value,
        summary.epochs,
        summary.rows,
        summary.watermark,
        summary.version,
        summary.seconds,
    )
    return summary.to_json()


_IN_EVENT = {
    "epoch": "watermark",
    "version": "version",
    "epochs": "epochs",
    "queryId": "queryId",
    "uri": "uri",
}
"""The keys of an asset event, and where the summary has their values."""


def emit_events(
    context: Context, outlets: Sequence[Any], summary: Mapping[str, Any], rows: int
) -> None:
    """Add epoch, version and rows to the event of every Lance asset among a task's outlets.

    :param rows: those of all drivers of this task try, as far as they were reported.
    """
    extra = {key: summary[name] for key, name in _IN_EVENT.items() if summary.get(name) is not None}
    if summary.get("watermark") is not None:  # otherwise it reported nothing
        extra["rows"] = rows
    for outlet in outlets:
        if isinstance(outlet, Asset) and outlet.uri.startswith("lance:"):
            context["outlet_events"][outlet].extra.update(extra)
