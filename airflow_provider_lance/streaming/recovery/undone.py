"""Epochs that history has and the newest version has not: somebody restored an older version."""

from __future__ import annotations

from airflow_provider_lance.exceptions import HistoryGapError
from airflow_provider_lance.streaming.epoch import Watermark
from airflow_provider_lance.streaming.port import DatasetPort
from airflow_provider_lance.streaming.recovery.transactions import restored_by

__all__ = ["refuse_undone"]


def refuse_undone(port: DatasetPort, mark: Watermark) -> None:
    """Raise if rows of epochs since the last fold are gone, although history has the epochs.

    :raises HistoryGapError: with the versions to look at.
    """
    if not mark.stamps:
        return
    first = mark.stamps[0].version
    stamped = {stamp.version for stamp in mark.stamps}
    there: dict[int, frozenset[int]] = {first - 1: frozenset()}
    undone_by = 0
    for version in range(first, port.version + 1):
        restored = None if version in stamped else restored_by(port, version)
        if restored is None:
            there[version] = there[version - 1] | ({version} & stamped)
        else:
            there[version] = there.get(restored, frozenset())
            undone_by = version
    undone = [stamp for stamp in mark.stamps if stamp.version not in there[port.version]]
    if undone:
        raise HistoryGapError(
            f"version {undone_by} of {port.uri} brought an older version back, and took epochs "
            f"{undone[0].epoch_id} to {undone[-1].epoch_id} of query {undone[0].query_id!r} with "
            f"it, which were there until version {undone_by - 1}: nothing is folded over that. "
            "Bring that version back, or start the stream with a new checkpointLocation and "
            "queryId, which reads the source again"
        )
