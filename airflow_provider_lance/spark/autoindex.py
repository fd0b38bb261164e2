"""The sink's own refresh of indices: after its epochs, in the driver, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.indexing import refresh_indices
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import Owner

__all__ = ["MERGED_BYTES", "IndexRefresh"]

log = logging.getLogger(__name__)

_REST = 2.0
"""Seconds of rest that a second of refreshing needs: so it takes a third of the time at most."""
_SAVED = 5.0
"""Seconds of refreshing that earlier rest pays for at most: a merge delays no refresh after it."""
MERGED_BYTES = 64 * 1024 * 1024
"""Parts of an index that are merged at once; it takes about a second."""


class IndexRefresh:
    """Covers the rows of new epochs in the dataset's indices, one refresh at a time.

    Epochs never wait for it. The driver's own compactions do not run beside it. One of another
    program may: if that commits first, the refresh is repeated at once.
    """

    def __init__(
        self,
        query_id: str,
        without_compaction: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Store the arguments; starts nothing.

        :param without_compaction: what keeps the driver's compactions out during a refresh.
        """
        self._query_id, self._without_compaction = query_id, without_compaction
        self._thread: threading.Thread | None = None
        self._due, self._over = threading.Event(), threading.Event()
        self._seen: tuple[LanceDatasetPort, Owner | None] | None = None

    def epoch_done(self, port: LanceDatasetPort, owner: Owner | None) -> None:
        """Ask for a refresh if the dataset has an index; returns at once.

        :param port: any handle of the dataset; the thread opens the newest version.
        :param owner: the driver's ownership; the thread does nothing once the dataset has another
            owner.
        """
        if self._over.is_set() or not port.dataset.describe_indices():
            return
        self._seen = (port, owner)
        self._due.set()
        if self._thread is None:
            # A daemon thread: a store that hangs must not keep the driver from ending.
            self._thread = threading.Thread(target=self._run, name="lance-autoindex", daemon=True)
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Cover the last epochs and end the thread; wait for it up to ``seconds``."""
        self._over.set()
        self._due.set()
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("A refresh of indices is still running. query_id=%s", self._query_id)

    def _run(self) -> None:
        saved, ended = _SAVED, time.monotonic()
        while True:
            self._due.wait()
            self._due.clear()
            ends = self._over.is_set()  # after the clear: end() sets it before it wakes this thread
            with self._without_compaction():
                began = time.monotonic()
                saved = min(_SAVED, saved + (began - ended) / _REST)
                try:
                    self._refresh()
                except LanceStreamError as error:
                    log.warning(
                        "Indices not refreshed. query_id=%s error=%s", self._query_id, error
                    )
                except BaseException:  # a panic of Lance's is not an Exception
                    log.exception("Indices not refreshed. query_id=%s", self._query_id)
            if ends:
                return
            ended = time.monotonic()
            saved -= ended - began
            self._over.wait(max(0.0, -saved * _REST))

    def _refresh(self) -> None:
        assert self._seen is not None
        port, owner = self._seen
        began, port = time.monotonic(), port.latest()
        held = decode_query(port.config, self._query_id, port.version).owner
        if owner is None or held != owner:
            log.info(
                "Indices not refreshed: the query has another owner. query_id=%s", self._query_id
            )
            return
        left = refresh_indices(port, Backoff(attempts=3, first=0.05), most_bytes=MERGED_BYTES)
        if left:
            took = (time.monotonic() - began) * 1000
            log.info("Indices refreshed. query_id=%s left=%s ms=%.0f", self._query_id, left, took)
