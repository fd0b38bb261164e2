"""A known dataset is opened: with the connection it names, or Airflow's ``lance_default``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.plugins.page.registry import RegisteredDataset

if TYPE_CHECKING:
    from airflow_provider_lance.protocol.dataset import LanceDatasetPort

__all__ = ["Opened", "open_known"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset at its newest version.

    ``connection_arguments`` is what a command needs to open it in the same way.
    """

    port: LanceDatasetPort
    storage_options: Mapping[str, str] = field(repr=False)
    connection_arguments: str


def open_known(known: RegisteredDataset) -> Opened:
    """Open a known dataset.

    :raises SpecError: its connection is missing or cannot be read, or its name is relative.
    :raises DatasetNotFoundError: there is none.
    :raises StorageUnavailableError: the store did not answer or refused.
    """
    from airflow_provider_lance.hooks.lance import LanceHook

    conn_id = _default() if known.conn_id is None else known.conn_id or None
    hook = LanceHook(conn_id)
    port = hook.open(known.uri)
    return Opened(
        port, hook.storage_options, f"--conn-id {shlex.quote(conn_id)}" if conn_id else ""
    )


def _default() -> str | None:
    from airflow_provider_lance.compat import AirflowNotFoundException
    from airflow_provider_lance.hooks.lance import LanceHook

    try:
        LanceHook.get_connection(LanceHook.default_conn_name)
    except AirflowNotFoundException:
        return None
    return LanceHook.default_conn_name
