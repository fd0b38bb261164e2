"""The words on disk of the two designs before this one, which are the same, and their search."""

from __future__ import annotations

import lance

from airflow_provider_lance.protocol.codec import key

LOOK_BACK = 100
"""How many versions either design looks back at most."""


def stamp(query_id: str, epoch_id: int) -> dict[str, str]:
    """Return the transaction properties that name an epoch."""
    return {"streaming.queryId": query_id, "streaming.epochId": str(epoch_id)}


def watermark_key(query_id: str) -> str:
    """Return the config key of the classic design's watermark."""
    return key("lastEpoch", query_id)


def landed(dataset: lance.LanceDataset, query_id: str, epoch_id: int) -> bool:
    """Tell whether one of the last versions carries the epoch.

    A live handle keeps what it has read: after the first search only the newest version is new.
    """
    wanted = stamp(query_id, epoch_id).items()
    newest = dataset.version
    for version in range(newest, max(0, newest - LOOK_BACK), -1):
        transaction = dataset.read_transaction(version)
        found = (transaction.transaction_properties or {}) if transaction else {}
        if wanted <= found.items():
            return True
    return False
