"""Epochs that history has and the newest version has not: somebody restored an older version."""

from __future__ import annotations

from airflow_provider_lance.exceptions import DatasetRestoredError
from airflow_provider_lance.protocol.model import Watermark
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["refuse_undone"]


def refuse_undone(port: DatasetPort, watermark: Watermark) -> None:
    """Raise if rows of epochs are gone, or may be, although history has or had the epochs.

    :raises DatasetRestoredError: with the versions to look at.
    """
    if watermark.undone_by is None or not watermark.may_lack_epochs:
        return
    version, restored = watermark.undone_by
    epochs = [stamp.epoch_id for stamp in watermark.undone]
    took = f"took epochs {epochs[0]} to {epochs[-1]} with it" if epochs else "may have taken epochs"
    raise DatasetRestoredError(
        f"version {version} of {port.uri} brought version {restored} back, and {took}: nothing is "
        "folded over that. Start the stream: it says whether rows are gone, and both ways out"
    )
