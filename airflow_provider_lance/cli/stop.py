"""``lance-stream stop``: ask a driver to stop, through the dataset."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from airflow_provider_lance.cli.output import Exit, Output, Plan, asker
from airflow_provider_lance.cli.target import Target, open_target
from airflow_provider_lance.exceptions import PreconditionError, TransientError
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Owner, OwnerState
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.supervision.liveness import observe_owner

__all__ = ["run"]

_POLL_SECONDS = 1.0


def run(arguments: Namespace, output: Output) -> int:
    """Ask the driver to stop, and wait if requested."""
    target = open_target(arguments)
    query = target.query(arguments.query_id)
    plan = _plan(target, query, arguments)
    if not arguments.yes:
        return plan.refuse(output)
    plan.show(output)
    token = request_stop(target.port, query, by=asker(arguments))
    if token is None:
        raise PreconditionError(
            f"no driver has claimed query {query!r} in {target.uri} yet, so no request was made. A "
            "driver claims it with its first rows: ask again then, or end its process"
        )
    if arguments.wait is None:
        return _tell(output, query, token, "asked", f"asked the driver with token {token} to stop")
    state = _wait(target, query, token, arguments.wait)
    release = target.command("release", query=query)
    sentence = {
        "released": "it has stopped, and released the query",
        "gone": f"its driver has exited without a release. Next: {release}",
        "taken": "a newer driver has taken the query",
        "waiting": f"it has not stopped within {arguments.wait:g} s; the request stands",
    }[state]
    return _tell(output, query, token, state, sentence)


def _plan(target: Target, query: str, arguments: Namespace) -> Plan:
    owner = decode_query(target.port.config, query, target.port.version).owner
    lines = [
        f"ask {_who(owner)} of query {query!r} to stop after its current epoch, by a request in "
        "the dataset",
        f"set {key('stop', query)} and {key('stopNote', query)} in the config of {target.uri}, "
        f"version {target.port.version + 1} or later",
    ]
    return Plan(lines, target.command("stop", query=query))


def _who(owner: Owner | None) -> str:
    if owner is None:
        return "the driver"
    if owner.state is OwnerState.RELEASED:
        return f"a driver that waits for its first rows (token {owner.token} has released)"
    driver = owner.driver
    by = f", launched by {driver.launched_by}" if driver.launched_by else ""
    return f"the driver (token {owner.token}, pid {driver.pid} on {driver.host or '?'}{by})"


def _wait(target: Target, query: str, token: int, patience: float) -> str:
    until = time.monotonic() + patience
    while True:
        try:
            state = _state(target, query, token)
            if state != "waiting":
                return state
        except TransientError as error:
            Output.note(f"the store did not answer; asking again: {error}")
        if time.monotonic() >= until:
            return "waiting"
        time.sleep(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))


def _state(target: Target, query: str, token: int) -> str:
    port = target.port.latest()
    owner = decode_query(port.config, query, port.version).owner
    if owner is None or owner.token > token:
        return "gone" if owner and owner.driver.by_hand else "taken"
    if owner.state is OwnerState.RELEASED:
        return "released" if owner.token == token else "waiting"
    place = target.place
    seen = observe_owner(
        owner.driver,
        lambda location: open_files(location, place.storage_options),
        place.checkpoint or "",
    )
    return "gone" if seen.liveness(process_first=True).alive is False else "waiting"


def _tell(output: Output, query: str, token: int, state: str, sentence: str) -> int:
    document: dict[str, Any] = {"done": True, "queryId": query, "token": token, "state": state}
    if output.json:
        output.document(document | {"sentence": sentence})
    else:
        output.say(f"{sentence[0].upper()}{sentence[1:]}.")
    return Exit.UNHEALTHY if state in ("waiting", "gone") else Exit.HEALTHY
