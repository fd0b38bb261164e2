"""The master that a Spark connection names: its kind, and whether it answers."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from airflow_provider_lance.backends.cluster import CLUSTER_MANAGERS
from airflow_provider_lance.exceptions import MasterUnreachableError, SpecError

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["master_of", "refuse_master", "require_master"]

_KNOWN = re.compile(
    "|".join(
        (
            r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.*\]",
            r"spark://[^:/,\s]+:\d+(,[^:/,\s]+:\d+)*|spark://(\[[^\]]+\]:\d+,?)+",
            *(each.masters for each in CLUSTER_MANAGERS.values()),
        )
    )
)
_SECONDS = 5.0


def master_of(connection: Connection) -> str:
    """Return the master URL that the Spark provider's hook derives from a connection."""
    host = connection.host or ""
    whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def refuse_master(connection: Connection) -> None:
    """Refuse a master that Spark does not know; opens no connection.

    :raises SpecError: the connection has another type, or its master cannot be parsed.
    """
    master = master_of(connection)
    if _KNOWN.fullmatch(master):
        return
    raise SpecError(
        f"spark_conn_id {connection.conn_id!r} is a connection of type {connection.conn_type!r}, "
        f"and {master!r} is no master of Spark. Name a connection of type 'spark' whose host is "
        "local[*], spark://host:7077, yarn or k8s://https://host:443"
    )


def require_master(connection: Connection) -> None:
    """Raise if a standalone master does not answer; Spark would try for a minute.

    Other masters are not checked: their address is not in the connection, or behind a proxy.

    :raises MasterUnreachableError: none of its addresses accepts a connection.
    """
    master = master_of(connection)
    if not master.startswith("spark://"):
        return
    refusals = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            refusals.append(f"{address}: {error}")
        else:
            return
    raise MasterUnreachableError(
        f"the master of Spark connection {connection.conn_id!r}, {master}, does not answer "
        f"({'; '.join(refusals)}). Start it, or correct the connection's host and port; "
        "nothing was started"
    )
