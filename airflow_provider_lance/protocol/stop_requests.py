"""Ask a query's driver, through the dataset, to stop after its current epoch; and who obeys.

A request is a token and a note. The token names an owner, the note may name one launch.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import decode_query, encode_stop
from airflow_provider_lance.protocol.model import (
    Owner,
    OwnerState,
    QueryState,
    StopNote,
    utc_now,
)
from airflow_provider_lance.protocol.port import Configure, DatasetPort

__all__ = ["found_request", "request_stop", "standing_request", "stop_for"]


def request_stop(
    port: DatasetPort,
    query_id: str,
    backoff: Backoff | None = None,
    *,
    by: str = "",
    launch_id: str = "",
) -> int | None:
    """Ask a query's driver to stop; return the token asked for, ``None`` if no request was made.

    The request names the owner's token, or after a release the next one: a driver that waits for
    its first rows, or is starting, obeys it too. It never reaches a driver that is launched
    later. A busy driver sees it
    at its next commit, an idle one when it polls. One request exists at a time: the newest.

    :param by: who asks, for the driver's summary.
    :param launch_id: ask only this launch, also before its claim. ``None`` is returned and no
        request is made once it has released the query.
    :raises TransientError: the store refused too often, or the outcome is not known.
    """
    for attempt in backoff or Backoff():
        port = port.latest()
        state = decode_query(port.config, query_id, port.version)
        owner = state.owner
        if owner is None and not launch_id:
            return None
        holds = owner is not None and launch_id in ("", owner.driver.launch_id)
        active = owner is not None and owner.state is OwnerState.ACTIVE
        if holds and launch_id and not active:
            return None  # it has stopped
        last = owner.token if owner else 0
        # A launch that has not claimed yet is asked under the token that it would get.
        token = last if active and holds else last + 1
        if _stands(state, token, launch_id):
            return token
        note = StopNote(token, launch_id, by, utc_now())
        try:
            port.commit(Configure(encode_stop(query_id, note)))
        except CommitPreemptedError as error:
            attempt.error = error
        else:
            return token
    return None


def _stands(state: QueryState, token: int, launch_id: str) -> bool:
    """Return whether a request with the same effect already exists."""
    if state.stop_token != token:
        return False
    named = state.stop_note.launch_id if state.stop_note else ""
    if state.owner is not None and token == state.owner.token:
        return named in ("", state.owner.driver.launch_id)
    # A driver that waits for its first rows may have found the current request at its start. It
    # then treats the request as another driver's, unless the request names it.
    return bool(launch_id) and named == launch_id


def standing_request(state: QueryState) -> StopNote | None:
    """Return the current stop request; one without a note has neither names nor time."""
    if state.stop_token is None:
        return None
    return state.stop_note or StopNote(state.stop_token)


def found_request(state: QueryState, launched_at: datetime | None) -> StopNote | None:
    """Return the request that a driver finds at its start and that is meant for another one.

    A request that was made after the launch is meant for this driver, too: Spark may take many
    seconds to start.

    :param launched_at: when this driver was launched; ``None`` if that is not known.
    """
    found = standing_request(state)
    if found is None or launched_at is None:
        return found
    try:
        made = datetime.fromisoformat(found.time)
    except ValueError:
        return found
    return found if made.tzinfo is None or made < launched_at else None


def stop_for(
    state: QueryState, *, launch_id: str, owner: Owner | None, found: StopNote | None
) -> StopNote | None:
    """Return the request if this driver has to obey it.

    :param owner: the driver's own ownership; ``None`` before its claim.
    :param found: the request that :func:`found_request` returned at the driver's start.
    """
    asked = standing_request(state)
    if asked is None or asked.launch_id not in ("", launch_id):
        return None
    if owner is not None:
        return asked if asked.token == owner.token else None
    # Not claimed yet: the request is for this driver, or for a dead one whose query it will take.
    last = state.owner.token if state.owner else 0
    meant = asked.token in (last, last + 1)
    return asked if meant and (asked != found or asked.launch_id) else None
