"""Observations that many viewers share: in own threads, with a time limit, kept for seconds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from airflow_provider_lance.exceptions import LanceStreamError

__all__ = ["CachedResult", "ResultCache"]

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_STALE = 60.0
"""Seconds after which a result is too old to show: a stream may have failed since."""
_FORGET = 600.0


@dataclass(frozen=True, slots=True)
class CachedResult(Generic[V]):
    """The result of an observation: a value, or why there is none. ``age`` is in seconds."""

    value: V | None = None
    error: str = ""
    age: float = 0.0


@dataclass(slots=True)
class _Entry(Generic[V]):
    flight: Future[None] | None = None
    newest: CachedResult[V] | None = None
    ended: float = 0.0


class ResultCache(Generic[K, V]):
    """One observation at a time for each key; other callers wait for the same one.

    :param look: blocking; what it raises becomes the result's ``error``.
    :param keep: seconds for which a result is recent enough for every caller.
    :param patience: seconds that a caller waits; the observation continues, and the next call gets
        it.
    """

    def __init__(
        self,
        look: Callable[[K], V],
        *,
        threads: int = 8,
        keep: float = 5.0,
        patience: float = 8.0,
    ) -> None:
        self._look, self._keep, self._patience = look, keep, patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lance-page")
        self._entries: dict[K, _Entry[V]] = {}
        self._lock = threading.Lock()

    async def at(self, keys: Iterable[K]) -> list[CachedResult[V]]:
        """Return a result for each key, in order, within one time limit for all of them."""
        with self._lock:
            entries = [self._entry(key) for key in keys]
            flights = {entry.flight for entry in entries if entry.flight}
        if flights:
            await asyncio.wait({asyncio.wrap_future(f) for f in flights}, timeout=self._patience)
        return [self._result(entry) for entry in entries]

    def _entry(self, key: K) -> _Entry[V]:
        """Return a key's entry, with an observation running unless the newest is recent enough."""
        now = time.monotonic()
        if key not in self._entries:
            self._forget(now)
        entry = self._entries.setdefault(key, _Entry())
        if entry.flight is None and (entry.newest is None or now - entry.ended >= self._keep):
            entry.flight = self._pool.submit(self._run, key, entry)
        return entry

    def _run(self, key: K, entry: _Entry[V]) -> None:
        found = self._try(key)
        with self._lock:
            entry.newest, entry.ended, entry.flight = found, time.monotonic(), None

    def _try(self, key: K) -> CachedResult[V]:
        try:
            return CachedResult(self._look(key))
        except LanceStreamError as error:
            return CachedResult(error=f"{type(error).__name__}: {error}")
        except BaseException as error:  # a panic of pylance's is not an Exception
            log.exception("A Lance stream could not be observed. key=%r", key)
            seen = f"{type(error).__name__}: {error}"
            return CachedResult(
                error=f"{seen} (unexpected; the API server's log has the traceback)"
            )

    def _result(self, entry: _Entry[V]) -> CachedResult[V]:
        age = time.monotonic() - entry.ended
        if entry.newest is not None and age < _STALE:
            return replace(entry.newest, age=age)
        waited = f"no answer within {self._patience:g} s"
        return CachedResult(error=f"{waited}; the page shows the result as soon as it arrives")

    def _forget(self, now: float) -> None:
        old = [
            key
            for key, entry in self._entries.items()
            if entry.flight is None and now - entry.ended > _FORGET
        ]
        for key in old:
            del self._entries[key]
