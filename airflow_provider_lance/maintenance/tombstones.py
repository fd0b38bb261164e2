"""Forget deleted keys whose time is over; see :mod:`~airflow_provider_lance.protocol.sides`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import reading
from airflow_provider_lance.protocol.sides import DELETED_AT, EXPIRES_AT

__all__ = ["forget_tombstones"]

log = logging.getLogger(__name__)


def forget_tombstones(port: LanceDatasetPort) -> int:
    """Remove the tombstones that may be forgotten; return how many.

    Those of the newest epoch stay: the rows of its commit prove to a running driver that the
    dataset is still the one it wrote.

    :raises StorageUnavailableError: the store did not answer.
    """
    import pyarrow.compute as pc

    with reading(port.uri):
        dataset = port.dataset
        newest = pc.max(dataset.to_table(columns=[DELETED_AT])[DELETED_AT]).as_py()
        if newest is None:
            return 0
        over = f"{EXPIRES_AT} < {_literal(datetime.now(UTC))} AND {DELETED_AT} < {_literal(newest)}"
        number = int(dataset.count_rows(over))
        if number:
            dataset.delete(over)
            log.info("Tombstones forgotten. uri=%s rows=%d", port.uri, number)
        return number


def _literal(moment: datetime) -> str:
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return f"to_timestamp_micros({microseconds})"
