"""What happened to a query and its dataset, newest first: from the versions and the reports.

Bounded: reads the newest versions only, and the launches that an observation has read anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import ByHand, OwnerState, QueryState
from airflow_provider_lance.protocol.port import DatasetPort
from airflow_provider_lance.protocol.upkeep import LAST_TURN, read_turn
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.supervision.driver_reports import EndReason, launched_at
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["Change", "collect_changes", "ended_at", "launch_changes"]

_VERSIONS = 60
_SECONDS = 0.4
"""Reading a version's transaction loads its manifest, which grows with the fragments."""
_MOST = 20
_ROW_CHANGES = {
    "Append": "appended rows",
    "Delete": "deleted rows",
    "Merge": "added columns",
    "Overwrite": "overwrote the table",
    "Update": "updated rows",
}


@dataclass(frozen=True, slots=True)
class Change(JsonRecord):
    """One thing that happened; an unknown value is empty or ``None``.

    ``at`` is ISO 8601. ``by`` is who did it, as they were recorded. ``version`` is the dataset's
    version that it made, ``launch_id`` the driver's launch.
    """

    at: str | None
    what: str
    by: str = ""
    version: int | None = None
    launch_id: str = ""

    def __str__(self) -> str:
        """Return it as people read it, without its time."""
        return f"{self.what}, by {self.by}" if self.by else self.what


def collect_changes(
    port: DatasetPort, query_id: str, drivers: Iterable[DriverObservation] = ()
) -> tuple[Change, ...]:
    """Return what happened, newest first; epochs and folds are no change.

    :raises StorageUnavailableError: the dataset's store did not answer.
    """
    seen = _of_versions(port, query_id) if isinstance(port, LanceDatasetPort) else ()
    found = list(_merged(seen))
    found += [change for driver in drivers for change in launch_changes(driver)]
    return tuple(sorted(found, key=lambda each: each.at or "", reverse=True)[:_MOST])


def launch_changes(driver: DriverObservation) -> Iterator[Change]:
    """Yield the start of a launch and its end, as its reports say; pure."""
    launch, begun = driver.launch_id, launched_at(driver.launch_id)
    summary = driver.summary
    if summary is not None:
        words = {
            EndReason.FINISHED: "its driver finished",
            EndReason.STOPPED: "its driver stopped",
            EndReason.FAILED: f"its driver failed with {summary.error or 'an error'}",
        }
        by = summary.stopped_by or ""
        yield Change(ended_at(driver), words[summary.reason], by, launch_id=launch)
    if begun:
        at = begun.isoformat(timespec="seconds")
        yield Change(at, "a driver was launched", driver.launched_by, launch_id=launch)


def ended_at(driver: DriverObservation) -> str | None:
    """Return when a driver ended, by its reports; the last heartbeat is written at the end.

    Of a driver that left no summary, it is the last sign of life.
    """
    heartbeat, summary = driver.heartbeat, driver.summary
    if heartbeat is not None:
        return heartbeat.time
    begun = launched_at(driver.launch_id)
    if summary is None or begun is None:
        return None
    return (begun + timedelta(seconds=summary.seconds)).isoformat(timespec="seconds")


def _of_versions(port: LanceDatasetPort, query_id: str) -> Iterator[Change]:
    deadline = time.monotonic() + _SECONDS
    for version in range(port.version, max(0, port.version - _VERSIONS), -1):
        if time.monotonic() > deadline:
            return
        transaction = port.transaction(version)
        if transaction is None:
            return
        operation, properties = transaction.operation, transaction.transaction_properties or {}
        if not any(name.startswith("streaming.") for name in properties):
            change = _change(operation, query_id, version)
            if change is not None:
                here = port.at(version)
                yield replace(change, at=_committed(here) if here else None)


def _committed(port: LanceDatasetPort) -> str:
    moment = datetime.fromtimestamp(commit_time(port) / 1_000_000, UTC)
    return moment.isoformat(timespec="seconds")


def _change(operation: Any, query_id: str, version: int) -> Change | None:
    name = type(operation).__name__
    if name == "Restore":
        return Change(None, f"version {operation.version} was restored", version=version)
    if name == "Rewrite":
        return Change(None, "the dataset was compacted", version=version)
    if name == "CreateIndex":
        return Change(None, "an index was written", version=version)
    if name == "UpdateConfig":
        return _of_config(operation, query_id, version)
    if version == 1:
        return Change(None, "the dataset was created", version=1)
    if name == "Project":  # also the barrier of a claim
        return None
    if done := _ROW_CHANGES.get(name):
        return Change(None, f"another client {done}", version=version)
    return None


def _of_config(operation: Any, query_id: str, version: int) -> Change | None:
    updates: Mapping[str, str | None] = getattr(operation.config_updates, "updates", None) or {}
    if LAST_TURN in updates:
        return _of_turn(updates, version)
    names = {word: key(word, query_id) for word in ("owner", "stop", "stopNote")}
    state = _state(updates, query_id, version)
    if state is None:
        return None
    if names["owner"] in updates and state.owner is not None:
        return _of_owner(state, version)
    if names["stop"] in updates and state.stop_token is not None:
        note = state.stop_note
        return Change(None, "a stop was asked for", note.by if note else "", version)
    return None


def _of_turn(updates: Mapping[str, str | None], version: int) -> Change | None:
    """Return what the record of a driver's turn says."""
    try:
        turn = read_turn({name: value for name, value in updates.items() if value is not None})
    except ProtocolVersionError:
        return None
    if turn is None:
        return None
    gone = f"; it has removed {turn.removed:,} old versions so far" if turn.removed else ""
    what = f"the driver of query {turn.query_id} looked after the dataset{gone}"
    return Change(None, what, version=version)


def _state(updates: Mapping[str, str | None], query_id: str, version: int) -> QueryState | None:
    given = {name: value for name, value in updates.items() if value is not None}
    try:
        return decode_query(given, query_id, version)
    except ProtocolVersionError:
        return None


def _of_owner(state: QueryState, version: int) -> Change:
    owner = state.owner
    assert owner is not None
    launch, repair = owner.driver.launch_id, owner.driver.by_hand
    if repair:
        done = "released by hand" if repair.what == ByHand.RELEASED else repair.what
        return Change(None, done, repair.who, version)
    if owner.state is OwnerState.RELEASED:
        return Change(None, "its driver released it", version=version, launch_id=launch)
    begun = f"a driver claimed it with token {owner.token}"
    return Change(None, begun, owner.driver.launched_by, version, launch)


def _merged(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes, of equal ones that follow each other only the newest, with their number.

    A repair is a claim and a release; a compaction may be many commits.
    """
    last: Change | None = None
    count = 0
    for change in changes:
        if last is not None and (change.what, change.by) == (last.what, last.by):
            count += 1
            continue
        if last is not None:
            yield _times(last, count)
        last, count = change, 1
    if last is not None:
        yield _times(last, count)


def _times(change: Change, count: int) -> Change:
    if count == 1 or change.by:
        return change
    return replace(change, what=f"{change.what} {count} times")
