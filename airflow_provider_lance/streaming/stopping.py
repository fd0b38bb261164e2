"""Ask a query's driver to stop after its current epoch, through the dataset."""

from __future__ import annotations

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.streaming.backoff import Backoff
from airflow_provider_lance.streaming.epoch import OwnerState
from airflow_provider_lance.streaming.port import Configure, DatasetPort
from airflow_provider_lance.streaming.properties import decode_query, key

__all__ = ["request_stop"]


def request_stop(port: DatasetPort, query_id: str, backoff: Backoff | None = None) -> int | None:
    """Ask the owner of a query to stop; return its token, or ``None`` if nobody owns the query.

    The request names the owner's token, so it can never reach a successor. The driver sees it at
    its next commit, or when it polls while idle.

    :raises TransientError: the store refused too often, or the outcome is not known.
    """
    for attempt in backoff or Backoff():
        port = port.latest()
        state = decode_query(port.config, query_id, port.version)
        if state.owner is None or state.owner.state is OwnerState.RELEASED:
            return None
        token = state.owner.token
        if state.stop_token == token:
            return token
        try:
            port.commit(Configure({key("stop", query_id): str(token)}))
        except CommitPreemptedError as error:
            attempt.error = error
        else:
            return token
    return None
