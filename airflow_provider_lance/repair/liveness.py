"""Whether a driver of a query may still be running; checked before its owner is released.

Only what is observed counts: a process of this host that has exited, or a driver's own summary. An
old heartbeat proves nothing, and a recent one refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain

from airflow_provider_lance.diagnostics.collect_drivers import collect_drivers, with_owner
from airflow_provider_lance.exceptions import DriverAliveError
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import Owner, OwnerState, QueryState
from airflow_provider_lance.supervision.liveness import DriverObservation, Sign

__all__ = ["named", "refuse_live_driver", "seen_from_here"]

_YOUNG_SECONDS = 600.0


def seen_from_here(
    state: QueryState, reports: Files | None, *others: Files | None
) -> tuple[DriverObservation, ...]:
    """Return the newest launches that left reports, and the owner, with or without reports.

    :param reports: those beside the owner's checkpoint; ``None`` if they cannot be read.
    :param others: those beside other checkpoints of the query.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    now = datetime.now(UTC)
    seen = [
        collect_drivers(each, state.query_id, now) if each else () for each in (reports, *others)
    ]
    return with_owner(seen[0], state, reports, now) + tuple(chain.from_iterable(seen[1:]))


def refuse_live_driver(
    state: QueryState, drivers: Iterable[DriverObservation], *, proven_dead: bool, command: str
) -> None:
    """Raise unless every visible driver of the query has exited.

    A driver that is seen alive always refuses. ``proven_dead`` answers only for drivers that are
    not visible from here.

    :param command: what to type once the driver is proven dead by other means.
    :raises DriverAliveError: a driver is alive, or its state is unknown.
    """
    owner = state.owner
    for driver in sorted(drivers, key=lambda each: not each.alive):
        own = owner is not None and driver.is_of(owner.driver)
        holds = own and owner is not None and owner.state is OwnerState.ACTIVE
        if own and not holds:
            continue  # it released the query
        seen = driver.liveness(_YOUNG_SECONDS, process_first=holds)
        at_work = seen.alive
        if seen.shown_by is Sign.HEARTBEAT:
            at_work = None
        elif at_work is None and not holds:
            at_work = False  # a launch that owns nothing, and has been silent for long
        if at_work is False or (at_work is None and proven_dead):
            continue
        raise _refusal(state, driver, own=own, at_work=at_work, command=command)


def _refusal(
    state: QueryState, driver: DriverObservation, *, own: bool, at_work: bool | None, command: str
) -> DriverAliveError:
    assert state.owner is not None
    who = f"launch {driver.launch_id}"
    if own:
        who = f"the owner (token {state.owner.token}, {named(state.owner)})"
    process = driver.process
    where = f"pid {process.pid} on {process.host}" if process else "a process that is not recorded"
    last = f"last heartbeat {driver.heartbeat.time}" if driver.heartbeat else "no heartbeat"
    seen = f"{who} of query {state.query_id!r}, {where}, {last},"
    if at_work is None:
        return DriverAliveError(
            f"{seen} cannot be told dead from alive from here. Run this on that host, or make sure "
            f"that this process is gone and type: {command}"
        )
    if own:
        return DriverAliveError(
            f"{seen} is alive. Ask it to stop, which releases the query, or end that process first"
        )
    return DriverAliveError(
        f"{seen} is alive. It takes the query over by itself; ask it to stop, or end that process "
        "first"
    )


def named(owner: Owner) -> str:
    """Return an owner's name: its run, or its launch before Spark has named the run."""
    driver = owner.driver
    return f"run {driver.run_id}" if driver.run_id else f"launch {driver.launch_id or 'unknown'}"
