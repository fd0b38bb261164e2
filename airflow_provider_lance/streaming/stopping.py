"""Ask a query's driver to stop after its current epoch, through the dataset."""

from __future__ import annotations

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.streaming.backoff import Backoff
from airflow_provider_lance.streaming.epoch import OwnerState
from airflow_provider_lance.streaming.port import Configure, DatasetPort
from airflow_provider_lance.streaming.properties import decode_query, key

__all__ = ["request_stop"]


def request_stop(port: DatasetPort, query_id: str, backoff: Backoff | None = None) -> int | None:
    """Ask a query's driver to stop; return the token asked for, ``None`` if there is no such query.

    The request names the owner's token, or after a release the next one: a driver that waits for
    its first rows obeys it too. It never reaches a driver that starts later. A busy driver sees it
    at its next commit, an idle one when it polls.

    :raises TransientError: the store refused too often, or the outcome is not known.
    """
    for attempt in backoff or Backoff():
        port = port.latest()
        state = decode_query(port.config, query_id, port.version)
        if state.owner is None:
            return None
        token = state.owner.token + (state.owner.state is OwnerState.RELEASED)
        if state.stop_token == token:
            return token
        try:
            port.commit(Configure({key("stop", query_id): str(token)}))
        except CommitPreemptedError as error:
            attempt.error = error
        else:
            return token
    return None
