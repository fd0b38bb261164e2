"""What became of a launch, from the summary its driver left and how spark-submit ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.exceptions import (
    LanceStreamError,
    SpecError,
    TransientError,
    error_class,
)
from airflow_provider_lance.streaming.backoff import Backoff
from airflow_provider_lance.streaming.files import Files
from airflow_provider_lance.streaming.report import (
    EndReason,
    Summary,
    read_summary,
    report_location,
)
from airflow_provider_lance.streaming.spec import JobSpec

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["outcome"]


def outcome(
    spec: JobSpec,
    open_reports: Callable[[], Files],
    exit_error: Exception | None,
    log: Logger,
) -> dict[str, Any]:
    """Return a launch's summary, or raise what ended it. The summary counts, not the exit status.

    :param open_reports: opens the folder of the query's reports.
    :param exit_error: how spark-submit ended, ``None`` if with success.
    :raises LanceStreamError: the error that the summary names, as its own class.
    :raises TransientError: the driver failed and left no summary.
    """
    summary = _read(spec, open_reports, log)
    if summary is None:
        if exit_error:
            raise _killed(spec, exit_error) from None  # spark-submit's words are in the log already
        return _unknown(spec, log)
    if summary.reason is EndReason.FAILED:
        known = error_class(summary.error or "")
        name = "" if known.__name__ == summary.error else f"{summary.error}: "
        raise known(f"{name}{summary.message}")
    if exit_error:
        log.warning("The stream ended well, spark-submit did not. exit=%s", _exit(exit_error))
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


def _read(spec: JobSpec, open_reports: Callable[[], Files], log: Logger) -> Summary | None:
    error: LanceStreamError | None = None
    for _ in Backoff(attempts=5, first=0.2):
        try:
            return read_summary(open_reports(), spec.launch_id)
        except TransientError as refused:
            error = refused
        except SpecError as unserved:  # a store that Spark reaches and pyarrow does not
            error = unserved
            break
    log.warning("The driver's summary cannot be read. error=%s", error)
    return None


def _killed(spec: JobSpec, exit_error: Exception) -> TransientError:
    return TransientError(
        f"the driver of query {spec.sink.query_id!r} ended without a summary in {_place(spec)} "
        f"(spark-submit ended with {_exit(exit_error)}). Its last words are in the log above. "
        "A retry takes over safely: no epoch is lost or doubled"
    )


def _unknown(spec: JobSpec, log: Logger) -> dict[str, Any]:
    log.warning(
        "spark-submit ended with success, and there is no summary in %s that this worker can read. "
        "Is the checkpoint on a disk of the cluster? On one that both reach, epochs and rows are "
        "known here too",
        _place(spec),
    )
    return {
        "launchId": spec.launch_id,
        "queryId": spec.sink.query_id,
        "uri": spec.sink.uri,
        "reason": "unknown",
    }


def _place(spec: JobSpec) -> str:
    return f"{report_location(spec.sink.checkpoint_location)}/{spec.launch_id}"


def _exit(error: Exception) -> str:
    """Return an exit status without the command line and the log tail that come with it."""
    code = re.search(r"[Ee]rror code is: (-?\d+)", str(error))
    if code is None:
        return str(error).partition("\n")[0]
    status = int(code[1])
    return f"signal {-status}" if status < 0 else f"exit status {status}"
