"""Errors that a retry cannot solve, in Airflow's terms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_lance.compat import AirflowFailException, retry_policy
from airflow_provider_lance.exceptions import TerminalError, TransientError

if TYPE_CHECKING:
    from airflow.sdk import ExceptionRetryPolicy

__all__ = ["lance_retry_policy", "no_retry_if_terminal"]


@contextmanager
def no_retry_if_terminal() -> Iterator[None]:
    """Turn a terminal error into Airflow's "fail without retrying"; let the others pass."""
    try:
        yield
    except TerminalError as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def lance_retry_policy(delay: timedelta | None = None) -> ExceptionRetryPolicy:
    """Return a ``retry_policy`` for tasks of your own that call this package.

    Terminal errors fail at once, transient ones are retried; any other error is left to the task's
    ``retries``. This package's operators need none.

    :param delay: the wait before a transient error is retried; by default the task's own.
    :raises SpecError: this Airflow has no retry policies, which came with 3.3.
    """
    return retry_policy(
        [
            (TerminalError, "FAIL", None, "a retry would fail again"),
            (TransientError, "RETRY", delay, "it may pass"),
        ]
    )
