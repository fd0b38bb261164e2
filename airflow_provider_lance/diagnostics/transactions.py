"""What kind of change made a version that carries no epoch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["Kind", "kind_of"]


class Kind(StrEnum):
    """Changes that are worth a mark between two epochs."""

    COMPACTION = "compaction"
    INDEX = "index"
    OTHER = "other"


_KINDS = {"Rewrite": Kind.COMPACTION, "CreateIndex": Kind.INDEX}
_BOOKKEEPING = {"UpdateConfig", "Project", "BaseOperation"}
"""Claims, folds and releases; barriers; fragment ids that a compaction reserves for itself.

The last has no name of its own in pylance 14.0.2.
"""


def kind_of(port: DatasetPort, version: int) -> Kind | None:
    """Return what a version changed, ``None`` if neither rows nor indices, or if it is gone.

    Reads that version's transaction; its operation's class tells.
    """
    try:
        operation = _operation(port, version)
    except _UnreadableCompactionError:
        return Kind.COMPACTION
    name = type(operation).__name__
    if operation is None or name in _BOOKKEEPING:
        return None
    return _KINDS.get(name, Kind.OTHER)


class _UnreadableCompactionError(Exception):
    """pylance 14.0.2 cannot read a compaction that remapped an index."""


def _operation(port: DatasetPort, version: int) -> Any:
    if not isinstance(port, LanceDatasetPort):
        return None
    try:
        transaction = port.dataset.read_transaction(version)
    except TypeError as error:
        if "RewrittenIndex" in str(error):
            raise _UnreadableCompactionError from error
        raise
    except (ValueError, OSError):
        return None  # cleaned up since its properties were read
    return transaction.operation if transaction else None
