"""The sink's own compaction: once every few epochs, in the driver, beside the epochs.

It runs in its own thread on its own handle. An append never conflicts with it and never waits. An
upsert and an overwrite do conflict: they wait for it, at most until one trigger interval after it
began. From then on, the one that commits second commits again.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import Owner

__all__ = ["AutoCompaction", "left_alone"]

log = logging.getLogger(__name__)

_NO_INTERVAL = 5.0
_SHORTEST, _LONGEST = 1.0, 60.0
_BYTES_PER_SECOND = 16 * 1024 * 1024
"""What a slow core rewrites; with the trigger interval, it bounds the work of one run."""


class AutoCompaction:
    """Starts a compaction when the epoch number passes a multiple of ``every``; 0 is never.

    The number counts, not the epochs seen, so short runs compact too. Only one runs at a time: if
    one is due while another runs, it starts after that one.
    """

    def __init__(self, every: int, query_id: str) -> None:
        """Store the arguments; starts nothing."""
        self._every, self._query_id = every, query_id
        self._interval = _NO_INTERVAL
        self._turn: int | None = None
        self._thread: threading.Thread | None = None
        self._wait_until = 0.0
        self._given_up = threading.Event()

    def use_interval(self, seconds: float) -> None:
        """Set the trigger interval to stay within; 0, for none, means a few seconds."""
        self._interval = seconds or _NO_INTERVAL

    @property
    def running(self) -> bool:
        """Return whether a compaction runs."""
        return self._thread is not None and self._thread.is_alive()

    def epoch_done(self, epoch_id: int, port: LanceDatasetPort, owner: Owner | None) -> None:
        """Start a compaction if one is due; returns at once.

        :param port: any handle of the dataset; the thread opens the newest version.
        :param owner: the driver's ownership; the thread does nothing once the dataset has another
            owner.
        """
        if not self._every:
            return
        turn = (epoch_id + 1) // self._every
        if self._turn is None:
            self._turn = epoch_id // self._every
        if turn == self._turn or self.running or self._given_up.is_set():
            return
        self._turn, self._wait_until = turn, time.monotonic() + self._interval
        # A daemon thread: a store that hangs must not keep the driver from ending.
        thread = threading.Thread(
            target=self._run, args=(port, owner), name="lance-autocompact", daemon=True
        )
        thread.start()
        self._thread = thread

    def give_way(self) -> None:
        """Wait for a running compaction, at most until one trigger interval after it began."""
        if self._thread is not None:
            self._thread.join(max(0.0, self._wait_until - time.monotonic()))

    def end(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a running compaction; after that it begins no further task."""
        if self._thread is not None:
            self._thread.join(seconds)
        self._given_up.set()
        if self.running:
            log.warning("A compaction is still running. query_id=%s", self._query_id)

    def _run(self, port: LanceDatasetPort, owner: Owner | None) -> None:
        began = time.monotonic()
        seconds = min(max(self._interval, _SHORTEST), _LONGEST)
        try:
            port = port.latest()
            held = decode_query(port.config, self._query_id, port.version).owner
            if owner is None or held != owner:
                log.info("Not compacted: the query has another owner. query_id=%s", self._query_id)
                return
            fragments = [each.metadata for each in port.dataset.get_fragments()]
            excluded = left_alone(fragments, self._every, int(seconds * _BYTES_PER_SECOND))
            done = compact(
                port,
                {"excluded_fragment_ids": excluded} if excluded else {},
                is_over=lambda: self._given_up.is_set() or time.monotonic() >= began + seconds,
            )
        except LanceStreamError as error:
            log.warning("Not compacted. query_id=%s error=%s", self._query_id, error)
        except BaseException:  # a panic of Lance's is not an Exception
            log.exception("Not compacted. query_id=%s", self._query_id)
        else:
            log.info(
                "Compacted. query_id=%s removed=%d added=%d conflicts=%d left=%d ms=%.0f",
                self._query_id,
                done.fragments_removed,
                done.fragments_added,
                done.conflicts,
                done.left,
                (time.monotonic() - began) * 1000,
            )
        finally:
            _release_unused_memory()


def _release_unused_memory() -> None:
    """Return freed memory to the system, as far as the C library can.

    A compaction holds its fragments in memory. glibc keeps what they took, in one arena for each of
    Lance's threads. pyarrow's ``release_unused`` does not reach them (seen on pyarrow 26.0.1).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def left_alone(fragments: Sequence[Any], every: int, most_bytes: int) -> list[int]:
    """Return the ids of the fragments that a run does not touch: all but some of the newest.

    The newest ``every`` are new since the last run. Going back from them, a fragment with more rows
    than all newer ones together ends the selection. So a row is rewritten only as often as the
    dataset doubles, not in every run. Lance's own bounds cannot do this: they count whole tasks,
    and a first task above the bound makes an empty plan (seen on pylance 14.0.2).

    :param fragments: `FragmentMetadata` in the dataset's order; at most four times ``every`` of
        them are taken.
    :param most_bytes: how many bytes of data files are taken.
    """
    rows = size = taken = 0
    for fragment in reversed(fragments):
        size += sum(file.file_size_bytes or 0 for file in fragment.files)
        heavy = taken >= every and fragment.physical_rows > rows
        if heavy or taken == 4 * every or size > most_bytes:
            break
        rows += fragment.physical_rows
        taken += 1
    return [fragment.id for fragment in fragments[: len(fragments) - taken]]
