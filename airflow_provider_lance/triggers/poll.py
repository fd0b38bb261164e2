"""One poll for all triggers of a triggerer that watch one dataset.

Each poll is one listing, made in a thread, and its result goes to every subscriber; the shortest
interval among them sets the pace. So 200 sensors on one dataset cost as much as one. The triggerer
has its own shared streams (``shared_stream_key``), but only for event triggers, and they queue
their items. A poll's result is a state, of which only the newest matters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_provider_lance.exceptions import TerminalError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.triggers.threads import Pool, in_thread
from airflow_provider_lance.triggers.watermark_follower import (
    DATASET,
    DatasetFollower,
    Look,
    WatermarkSnapshot,
)

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["Subscription", "Teller", "subscribe"]

_SHORTEST = 0.01
"""The shortest interval between polls, in seconds: a sensor may have the poke interval 0."""

_Key = tuple[str, str | None]

_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Poll]] = WeakKeyDictionary()


@contextmanager
def subscribe(
    uri: str, query_id: str, *, lance_conn_id: str | None, interval: float
) -> Iterator[Subscription]:
    """Watch a dataset from the running event loop, sharing the poll with others.

    :param uri: the dataset, absolute or relative to the Lance connection's base URI; subscribers
        that spell it the same way share the poll.
    :param query_id: the query, or :data:`.watermark_follower.DATASET` for the newest version only.
    :param interval: seconds; no snapshot that it returns is older.
    :raises SpecError: the query id is invalid.
    """
    if query_id != DATASET:
        require_query_id(query_id)
    polls = _polls.setdefault(asyncio.get_running_loop(), {})
    key = (uri.strip().rstrip("/"), lance_conn_id)
    poll = polls.get(key) or polls.setdefault(key, _Poll(uri, lance_conn_id))
    poll.queries[query_id] += 1
    try:
        yield Subscription(poll, query_id, interval)
    finally:
        poll.queries[query_id] -= 1
        poll.queries += Counter()  # drops queries without a subscriber
        if not poll.queries and polls.get(key) is poll:
            del polls[key]


class Subscription:
    """One subscriber's part of the shared poll."""

    def __init__(self, poll: _Poll, query_id: str, interval: float) -> None:
        self._poll, self._query_id = poll, query_id
        self._interval = max(interval, _SHORTEST)
        self._had: _Result | None = None

    async def next(self) -> WatermarkSnapshot:
        """Wait for the next poll and return its snapshot of the query.

        The first result returns at once if another subscriber's is recent enough. Cancelling the
        wait does not cancel the poll for the others.

        :raises TransientError: this poll failed; the next one may succeed.
        :raises TerminalError: further polls fail too until the cause is fixed.
        """
        newest = self._poll.newest
        if newest is None or newest is self._had or self._rest(newest) <= 0:
            newest = await self._wait()
        self._had = newest
        return newest.of(self._query_id)

    async def _wait(self) -> _Result:
        """Return the first result: of another subscriber's poll, or of its own when due."""
        while True:
            before = self._poll.newest
            rest = self._rest(before) if before else 0
            await (self._poll.wait(rest) if rest > 0 else self._poll.look())
            newest = self._poll.newest
            if newest and newest is not before and newest.answers(self._query_id):
                return newest

    def _rest(self, result: _Result) -> float:
        """Return for how many more seconds a result is recent enough."""
        if not result.answers(self._query_id):
            return 0
        return result.time + self._interval - asyncio.get_running_loop().time()


@dataclass(frozen=True, eq=False, slots=True)
class _Result:
    """How a poll ended, and when by the event loop's clock."""

    time: float
    found: Look | BaseException

    def answers(self, query_id: str) -> bool:
        return isinstance(self.found, BaseException) or query_id in self.found

    def of(self, query_id: str) -> WatermarkSnapshot:
        if isinstance(self.found, BaseException):
            raise self.found
        snapshot = self.found[query_id]
        if isinstance(snapshot, TerminalError):
            raise snapshot
        return snapshot


class _Poll:
    """The polls of one dataset. The first subscriber that is due starts one; two never overlap."""

    def __init__(self, uri: str, lance_conn_id: str | None) -> None:
        self._follower = DatasetFollower(lambda: LanceHook(lance_conn_id).open(uri))
        self.queries: Counter[str] = Counter()
        self.newest: _Result | None = None
        self._flight: asyncio.Task[Look] | None = None
        self._landed = asyncio.get_running_loop().create_future()

    async def look(self) -> None:
        """Start a poll, or join the running one; return when it has ended, successfully or not."""
        if self._flight is None:
            work = in_thread(Pool.LOOKS, self._follower.look, tuple(self.queries))
            self._flight = asyncio.create_task(work)
            self._flight.add_done_callback(self._land)
        await asyncio.wait({self._flight})

    async def wait(self, seconds: float) -> None:
        """Wait for any subscriber's poll to end, but at most ``seconds``."""
        await asyncio.wait({self._landed}, timeout=seconds)

    def _land(self, flight: asyncio.Task[Look]) -> None:
        self._flight = None
        if flight.cancelled():
            return  # the event loop is about to end
        loop = flight.get_loop()
        self.newest = _Result(loop.time(), flight.exception() or flight.result())
        landed, self._landed = self._landed, loop.create_future()
        landed.set_result(None)


class Teller:
    """Logs what a trigger observes when it differs from the last message, not at every poll."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._said: object = None

    def say(self, topic: object, level: int, message: str, *values: Any) -> None:
        """Log a message, unless the last one had the same topic."""
        if topic != self._said:
            self._said = topic
            self._log.log(level, message, *values)
