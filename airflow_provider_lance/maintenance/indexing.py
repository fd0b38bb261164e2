"""Add new fragments to the indices of a dataset."""

from __future__ import annotations

import logging

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.maintenance.dataset_metrics import uncovered_rows
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, is_conflict, read_error

__all__ = ["refresh_indices"]

log = logging.getLogger(__name__)


def refresh_indices(port: LanceDatasetPort, backoff: Backoff | None = None) -> dict[str, int]:
    """Cover what the indices do not cover yet; return the rows that each still leaves out.

    :raises CommitPreemptedError: a compaction conflicted in every one of the attempts.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    for attempt in backoff or Backoff(attempts=5, first=0.5):
        port = port.latest()
        open_rows = {name: rows for name, rows in uncovered_rows(port).items() if rows}
        if not open_rows:
            return {}
        try:
            port.dataset.optimize.optimize_indices(index_names=sorted(open_rows))
        except LANCE_ERRORS as error:
            if not is_conflict(error):
                port.latest()  # raises if the dataset is gone
                raise read_error(port.uri, error) from error
            attempt.error = CommitPreemptedError(
                f"the refresh of {sorted(open_rows)} of {port.uri} was preempted: "
                f"{str(error).splitlines()[0]}"
            )
            log.info("Thrown out by a compaction, to be repeated. error=%s", attempt.error)
        else:
            return uncovered_rows(port.latest())
    raise AssertionError("a backoff ends in its last error")
