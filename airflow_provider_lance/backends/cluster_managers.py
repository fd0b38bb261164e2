"""The kinds of Spark master, one class each, and the one that a Spark connection names."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from airflow_provider_lance.backends.base import ClusterManager, Master
from airflow_provider_lance.backends.kubernetes import Kubernetes
from airflow_provider_lance.backends.yarn import Yarn
from airflow_provider_lance.exceptions import MasterUnreachableError, SpecError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["CLUSTER_MANAGERS", "MASTERS", "driver_name", "master_kind", "master_of"]

_SECONDS = 5.0


class Local(Master):
    """Driver and executors in one process of this host."""

    masters = r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.*\]"
    example = "local[*]"
    is_local = True


class Standalone(Master):
    """Spark's own cluster manager. The driver runs on this host, the executors in the cluster."""

    masters = r"spark://[^:/,\s]+:\d+(,[^:/,\s]+:\d+)*|spark://(\[[^\]]+\]:\d+,?)+"
    example = "spark://host:7077"
    runs_driver = False

    def require(self, connection: Connection) -> None:
        """Raise if no address of the master accepts a connection; Spark would try for a minute."""
        master, refusals = master_of(connection), []
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


MASTERS: tuple[Master, ...] = (Local(), Standalone(), Yarn(), Kubernetes())
"""Every kind of master; another that Spark's hook can submit to is one file and its entry here."""

CLUSTER_MANAGERS = {each.name: each for each in MASTERS if isinstance(each, ClusterManager)}
"""Those that can be polled for a driver, by their names in a driver's JSON."""


def master_of(connection: Connection) -> str:
    """Return the master URL that the Spark provider's hook derives from a connection."""
    host = connection.host or ""
    whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def master_kind(connection: Connection) -> Master:
    """Return the kind of a connection's master; opens no connection.

    :raises SpecError: the connection has another type, or Spark does not know such a master.
    """
    master = master_of(connection)
    for each in MASTERS:
        if re.fullmatch(each.masters, master):
            return each
    *others, last = (each.example for each in MASTERS)
    raise SpecError(
        f"spark_conn_id {connection.conn_id!r} is a connection of type {connection.conn_type!r}, "
        f"and {master!r} is no master of Spark. Name a connection of type 'spark' whose host is "
        f"{', '.join(others)} or {last}"
    )


def driver_name(hook: SparkSubmitHook | None) -> str:
    """Return the cluster's name for the driver that a hook submitted; empty if none was printed."""
    names = (each.submitted(hook)[0] for each in CLUSTER_MANAGERS.values())
    return next(filter(None, names), "")
