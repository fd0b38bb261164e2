"""Observations that many viewers share: taken in the background, shown with their age."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from airflow_provider_lance.exceptions import LanceStreamError

__all__ = ["CachedResult", "ResultCache"]

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_STALE = 30.0
"""Seconds after which a value no longer counts: a stream may have failed since."""
_DEADLINE = 10.0
"""Seconds without an answer that are no news yet."""
_FORGET = 600.0
_SLOW = 0.5
"""Seconds after which an observation no longer counts as one of those ``at_once``."""
_STEP = 0.02


@dataclass(frozen=True, slots=True)
class CachedResult(Generic[V]):
    """The result of an observation: a value, or why there is none; ages are in seconds.

    With neither, the first answer is still awaited. ``last`` is the newest value there was.
    """

    value: V | None = None
    error: str = ""
    age: float = 0.0
    last: V | None = None
    last_age: float = 0.0


@dataclass(slots=True, eq=False)
class _Entry(Generic[V]):
    asked: float | None = None
    started: float = 0.0
    newest: CachedResult[V] | None = None
    ended: float = 0.0
    last: V | None = None
    seen: float = 0.0


class ResultCache(Generic[K, V]):
    """One observation at a time for each key, in a thread of its own; callers share its result.

    An observation that never ends costs one thread, however often its key is asked for. Those that
    take long leave their places to others.

    :param look: blocking; what it raises becomes the result's ``error``.
    :param keep: seconds for which a result is recent enough for every caller.
    :param patience: seconds that a caller waits for results that are slower than others. The
        observation continues, and a later call gets its result.
    :param first: seconds that a caller waits while no result is known at all.
    :param at_once: how many quick observations run at the same time; ``most`` how many in all.
    """

    def __init__(
        self,
        look: Callable[[K], V],
        *,
        keep: float = 5.0,
        patience: float = 0.5,
        first: float = 8.0,
        at_once: int = 8,
        most: int = 64,
    ) -> None:
        self._look, self._keep = look, keep
        self._patience, self._first = patience, first
        self._at_once, self._most = at_once, most
        self._entries: dict[K, _Entry[V]] = {}
        self._waiting: deque[tuple[K, _Entry[V]]] = deque()
        self._running: set[_Entry[V]] = set()
        self._lock = threading.Lock()

    async def at(self, keys: Iterable[K]) -> list[CachedResult[V]]:
        """Return a result for each key, in order, within one time limit for all of them."""
        with self._lock:
            entries = [self._entry(key) for key in keys]
            self._start()
        since, known = time.monotonic(), any(each.newest for each in entries)
        while any(each.asked is not None for each in entries):
            now = time.monotonic()
            if not known and any(each.newest for each in entries):
                known, since = True, now
            if now - since >= (self._patience if known else self._first):
                break
            await asyncio.sleep(_STEP)
            with self._lock:
                self._start()
        with self._lock:
            return [self._result(entry) for entry in entries]

    def forget(self, key: K) -> None:
        """Let the next caller wait for a new observation."""
        with self._lock:
            self._entries.pop(key, None)

    def _entry(self, key: K) -> _Entry[V]:
        """Return a key's entry, with an observation asked for unless the newest is recent."""
        now = time.monotonic()
        if key not in self._entries:
            self._clean(now)
        entry = self._entries.setdefault(key, _Entry())
        if entry.asked is None and (entry.newest is None or now - entry.ended >= self._keep):
            entry.asked = now
            self._waiting.append((key, entry))
        return entry

    def _start(self) -> None:
        now = time.monotonic()
        quick = sum(now - each.started < _SLOW for each in self._running)
        while self._waiting and quick < self._at_once and len(self._running) < self._most:
            key, entry = self._waiting.popleft()
            entry.started = now
            self._running.add(entry)
            quick += 1
            # As daemons, they do not keep the API server from ending.
            thread = threading.Thread(
                target=self._run, args=(key, entry), name="lance-page", daemon=True
            )
            thread.start()

    def _run(self, key: K, entry: _Entry[V]) -> None:
        found = self._try(key)
        with self._lock:
            entry.newest, entry.ended, entry.asked = found, time.monotonic(), None
            if found.value is not None:
                entry.last, entry.seen = found.value, entry.ended
            self._running.discard(entry)
            self._start()

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
        now = time.monotonic()
        age, last_age = now - entry.ended, now - entry.seen
        if entry.newest is not None and age < _STALE:
            return replace(entry.newest, age=age, last=entry.last, last_age=last_age)
        waited = 0.0 if entry.asked is None else now - entry.asked
        if waited < _DEADLINE and entry.newest is None:
            return CachedResult(age=waited)
        missing = f"no answer for {waited:.0f} s"
        return CachedResult(error=missing, age=waited, last=entry.last, last_age=last_age)

    def _clean(self, now: float) -> None:
        old = [
            key
            for key, entry in self._entries.items()
            if entry.asked is None and now - entry.ended > _FORGET
        ]
        for key in old:
            del self._entries[key]
