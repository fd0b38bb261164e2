"""How many fragments a dataset had at the versions that a chart shows."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping

from airflow_provider_lance.protocol.dataset import LanceDatasetPort

__all__ = ["fragment_totals"]

_SECONDS = 2.0
"""For the versions that are not known yet; the next look goes on where this one ended."""
_MOST = 20_000

_Key = tuple[str, int, str]
"""URI, version, and its time: a dataset that was made anew counts its versions anew."""

_known: OrderedDict[_Key, int] = OrderedDict()
_lock = threading.Lock()


def fragment_totals(port: LanceDatasetPort, moments: Mapping[int, str]) -> dict[int, int]:
    """Return the number of fragments at each version, newest first, as far as time allows.

    Reading one loads that version's manifest, once in the life of this process.

    :param moments: when each version was committed.
    """
    deadline = time.monotonic() + _SECONDS
    found = {}
    for version in sorted(moments, reverse=True):
        key = (port.uri, version, moments[version])
        with _lock:
            total = _known.get(key)
        if total is None:
            if time.monotonic() > deadline:
                break
            total = _count(port, version)
            if total is None:
                continue
            _keep(key, total)
        found[version] = total
    return found


def _count(port: LanceDatasetPort, version: int) -> int | None:
    """Return the fragments of a version, ``None`` if it was cleaned up meanwhile."""
    try:
        then = port.dataset.checkout_version(version)
    except (ValueError, OSError):
        return None
    return int(then.stats.dataset_stats()["num_fragments"])


def _keep(key: _Key, total: int) -> None:
    with _lock:
        _known[key] = total
        while len(_known) > _MOST:
            _known.popitem(last=False)
