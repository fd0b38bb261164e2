"""Bring indices up to date: new rows get a part of their own, and small parts are merged.

An index has parts (Lance: segments, or delta indices); each covers some fragments, and a search
looks into all of them. Rows in none of them are found by a plain search, which scans them, and not
by one with ``fast_search``. A refresh conflicts with no epoch but one of complete mode, which drops
all indices, and with a compaction of the same fragments (seen on pylance 14.0.2).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.maintenance.dataset_metrics import (
    IndexPart,
    read_indices,
    uncovered_rows,
)
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.lance_errors import LANCE_ERRORS, is_conflict, read_error

__all__ = ["MANY_PARTS", "parts_to_merge", "refresh_indices"]

log = logging.getLogger(__name__)

MANY_PARTS = 16
"""From here on an index has so many parts that merging goes before its cost."""


def refresh_indices(
    port: LanceDatasetPort, backoff: Backoff | None = None, *, most_bytes: int | None = None
) -> dict[str, int]:
    """Cover what the indices do not cover yet; return the rows that each still leaves out.

    :param most_bytes: how large the parts are that may be merged, see :func:`parts_to_merge`.
        Without it, Lance chooses while there are few parts: a part more, or all in one if a
        partition has grown so large that it is split.
    :raises CommitPreemptedError: a compaction conflicted in every one of the attempts.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    for attempt in backoff or Backoff(attempts=5, first=0.5):
        port = port.latest()
        found = {name: each for name, each in read_indices(port).items() if each.uncovered}
        if not found:
            return {}
        together: dict[int | None, list[str]] = {}
        for name, index in found.items():
            lances = most_bytes is None and len(index.parts) < MANY_PARTS
            count = None if lances else parts_to_merge(index.parts, index.uncovered, most_bytes)
            together.setdefault(count, []).append(name)
        try:
            for count, names in together.items():
                chosen: dict[str, Any] = {} if count is None else {"num_indices_to_merge": count}
                port.dataset.optimize.optimize_indices(index_names=names, **chosen)
        except LANCE_ERRORS as error:
            if not is_conflict(error):
                port.latest()  # raises if the dataset is gone
                raise read_error(port.uri, error) from error
            attempt.error = CommitPreemptedError(
                f"the refresh of {sorted(found)} of {port.uri} was preempted: "
                f"{str(error).splitlines()[0]}"
            )
            log.info("Preempted by a compaction, to be repeated. error=%s", attempt.error)
        else:
            return uncovered_rows(port.latest())
    raise AssertionError("a backoff ends in its last error")


def parts_to_merge(parts: Sequence[IndexPart], rows: int, most_bytes: int | None) -> int:
    """Return how many of the newest parts go into one with the new rows.

    As many as leave no part that has fewer rows than all newer ones together. So the number of
    parts grows as the logarithm of the rows, and a row moves only as often as the index doubles.

    :param parts: oldest first.
    :param rows: the new rows.
    :param most_bytes: the size of all parts that are merged at once; twice as much for each part
        above :data:`MANY_PARTS`, so that their number stays bounded, too. ``None`` is no limit.
    """
    limit = None if most_bytes is None else most_bytes << max(0, len(parts) - MANY_PARTS)
    size = merged = 0
    for taken, part in enumerate(reversed(parts), start=1):
        size += part.bytes
        if limit is not None and size > limit:
            break
        if part.rows <= rows:
            merged = taken
        rows += part.rows
    return merged
