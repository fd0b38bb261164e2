"""Tell Airflow which errors a retry cannot mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.exceptions import TerminalError

__all__ = ["no_retry_if_terminal"]


@contextmanager
def no_retry_if_terminal() -> Iterator[None]:
    """Turn a terminal error into Airflow's "fail without retrying"; let the others pass."""
    try:
        yield
    except TerminalError as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
