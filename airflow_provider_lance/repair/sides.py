"""The repair of a side table that lost rows: it begins again, without them."""

from __future__ import annotations

from typing import Unpack

from airflow_provider_lance.exceptions import PreconditionError
from airflow_provider_lance.protocol.port import Configure, DatasetPort
from airflow_provider_lance.protocol.sides import decode_sides, side_key
from airflow_provider_lance.repair.preconditions import Preconditions, RepairOptions
from airflow_provider_lance.repair.result import Action, RepairResult, Write

__all__ = ["forget_side"]


def forget_side(
    port: DatasetPort,
    query_id: str,
    name: str,
    *,
    checkpoint_location: str | None = None,
    **options: Unpack[RepairOptions],
) -> RepairResult:
    """Remove a side table's registration, so that the next start lets it begin again.

    :raises PreconditionError: the query has no side table of this name; as
        :class:`DriverAliveError` a driver is alive, or its state is unknown.
    :raises TransientError: the store refused.
    """
    preconditions = Preconditions(port, query_id, options)
    port, owner = preconditions.port, preconditions.owner
    location = checkpoint_location or owner.driver.checkpoint_location
    preconditions.refuse_live_driver(location, verb=["resolve", "side", "--name", name])
    known = decode_sides(port.config, query_id)
    if name not in known:
        names = ", ".join(map(repr, known)) or "none"
        raise PreconditionError(
            f"query {query_id!r} in {port.uri} has no side table {name!r}; it has {names}"
        )
    updates: dict[str, str | None] = {side_key(query_id, name): None}
    write = Write(port.version + 1, f"forget side table {name}", updates)
    landed = port if preconditions.dry_run else port.commit(Configure(updates))
    return RepairResult(
        action=Action.SIDE,
        uri=port.uri,
        query_id=query_id,
        sentence=f"side table {name} at {known[name]} begins again at the next start",
        changed=not preconditions.dry_run,
        version=landed.version,
        watermark=preconditions.state.watermark,
        token=owner.token,
        generation=preconditions.state.generation,
        dry_run=preconditions.dry_run,
        writes=(write,) if preconditions.dry_run else (),
    )
