"""Report new epochs, or a consumer's progress, to Airflow: a trigger for ``AssetWatcher``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_lance.compat import asset_stores
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.decoding import finite, shown
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.triggers.condition import Advance, AdvanceCondition, Position
from airflow_provider_lance.triggers.consumer_state import ConsumerReader
from airflow_provider_lance.triggers.poll import Subscription, Teller, subscribe
from airflow_provider_lance.triggers.threads import Pool, in_thread
from airflow_provider_lance.triggers.watermark_follower import (
    DATASET,
    OnMissing,
    WatermarkSnapshot,
    describe,
    is_another,
    ownership,
    tally,
)

__all__ = ["LanceEpochEventTrigger"]

_HANDED_OVER = 2.0
"""Seconds after which the triggerer, which does so every second, has passed on a fired event."""
_CHUNK = 64
"""Versions read in one thread call, so that a long catch-up can be cancelled."""
_RECALLS = 3
"""How often reading the reported position may fail before the first snapshot counts as reported."""


class LanceEpochEventTrigger(BaseEventTrigger):
    """
    Fire whenever a query's epoch watermark, or a consumer's position, has advanced.

    The event is ``{"uri", "queryId", "epoch", "version", "rows", "epochs", "fromEpoch",
    "fromVersion", "committedAt", "rowsExact"}``: ``rows`` and ``epochs`` were committed after the
    epoch ``fromEpoch`` (-1: there was none) and the dataset version ``fromVersion``, up to
    ``epoch`` and ``version``. An epoch is one commit with data; an empty micro-batch does not
    count. When a query starts a new numbering, its first epoch counts like any other, and ``epoch``
    may be less than ``fromEpoch``.

    If versions were cleaned up before they were read, ``rows`` and ``epochs`` are lower bounds and
    ``rowsExact`` is false. Then the numbers of the epochs decide for ``every_epochs``, and
    ``every_rows`` fires as soon as they advance: too early is better than never.

    What exists at the very first poll does not fire; dataset and query may be created later. The
    last reported position is stored in the state of the watched assets, once the event is on its
    way. So an event is never lost. An event that was fired in the last two seconds of a triggerer
    may be fired again, with the same ``fromVersion``.

    With ``consumer_id``, the event is ``{"uri", "consumerId", "version", "fromVersion",
    "writtenAt", "newestVersion"}``: that query has read everything up to ``version``, and had read
    up to ``fromVersion`` at the last event. A query that starts again at an older version fires
    once it reads on.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI.
    :param query_id: The streaming query that writes the dataset; not with ``consumer_id``.
    :param consumer_id: A streaming query that reads the dataset.
    :param every_epochs: Fire after this many epochs; 1 if neither is given.
    :param every_rows: Fire after this many rows.
    :param lance_conn_id: The Lance connection; its secrets are read where the trigger runs.
    :param poll_interval: The longest time between two polls, in seconds; all triggers that watch
        one dataset share their polls.
    """

    # No shared_stream_key: the poll is shared with epoch triggers too, and has no queue to overflow

    def __init__(
        self,
        *,
        uri: str,
        query_id: str | None = None,
        consumer_id: str | None = None,
        every_epochs: int | None = None,
        every_rows: int | None = None,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.uri = uri
        if (query_id is None) == (consumer_id is None):
            raise SpecError(
                "give exactly one of query_id, a query that writes the dataset, and consumer_id, "
                f"one that reads it; got query_id={query_id!r}, consumer_id={consumer_id!r}"
            )
        if consumer_id is not None and (every_epochs is not None or every_rows is not None):
            raise SpecError(
                "a consumer's event comes whenever its position moves on: leave out every_epochs "
                f"and every_rows; got {shown(every_epochs)} and {shown(every_rows)}"
            )
        require_query_id(query_id if consumer_id is None else consumer_id)
        self.query_id = query_id
        self.consumer_id = consumer_id
        self.condition = AdvanceCondition(every_epochs, every_rows)
        self.lance_conn_id = lance_conn_id
        self.poll_interval = poll_interval
        try:
            positive = finite(poll_interval) > 0
        except ValueError:
            positive = False
        if not positive:
            raise SpecError(
                f"poll_interval must be more than 0 seconds, got {shown(poll_interval)}"
            )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "uri": self.uri,
                "query_id": self.query_id,
                "consumer_id": self.consumer_id,
                "every_epochs": self.condition.epochs,
                "every_rows": self.condition.rows,
                "lance_conn_id": self.lance_conn_id,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        query, consumer = self.query_id, self.consumer_id
        found = self._epochs(query) if query is not None else self._positions(consumer or "")
        async with aclosing(found) as events:
            async for event in events:
                yield event

    async def _positions(self, consumer_id: str) -> AsyncGenerator[TriggerEvent]:
        reader, teller = ConsumerReader(consumer_id, OnMissing.WAIT), Teller(self.log)
        reported = _ReportedPosition(asset_stores(self), f"lance/consumer/{consumer_id}", teller)
        known: int | None = None
        with self._subscription(DATASET) as looks:
            while True:
                try:
                    state = await in_thread(Pool.LOOKS, reader.read, await looks.next())
                except LanceStreamError as error:
                    _say_unanswered(teller, error)
                    continue
                read_to = state.consumer.read_to if state.consumer else 0
                if known is None:
                    first = await reported.recall(Position(version=read_to))
                    known = first.version if first else None
                teller.say(str(state), logging.INFO, "Watching consumer %s. %s", consumer_id, state)
                if known is None or read_to == known or state.consumer is None:
                    continue
                if read_to > known:
                    yield TriggerEvent(
                        {
                            "uri": self.uri,
                            "consumerId": consumer_id,
                            "version": read_to,
                            "fromVersion": known,
                            "writtenAt": state.consumer.at.isoformat(),
                            "newestVersion": state.newest,
                        }
                    )
                    await asyncio.sleep(_HANDED_OVER)
                known = read_to
                await reported.keep(Position(version=known))

    def _subscription(self, query_id: str) -> AbstractContextManager[Subscription]:
        interval = self.poll_interval
        return subscribe(self.uri, query_id, lance_conn_id=self.lance_conn_id, interval=interval)

    async def _epochs(self, query_id: str) -> AsyncGenerator[TriggerEvent]:
        count = _Count(query_id)
        teller = Teller(self.log)
        # Without the URI: a dataset that moves keeps its numbers.
        key = f"lance/{query_id}/{self.condition}"
        reported = _ReportedPosition(asset_stores(self), key, teller)
        with self._subscription(query_id) as looks:
            while True:
                try:
                    snapshot = await looks.next()
                    if count.advance is None:
                        count.start(await reported.recall(_position(snapshot)))
                    advance = await count.read(snapshot)
                except LanceStreamError as error:
                    _say_unanswered(teller, error)
                    continue
                found = describe(snapshot.watermark)
                said = "Watching for %s. %s uri=%s"
                teller.say(found, logging.INFO, said, self.condition, found, self.uri)
                if advance and self.condition.is_met(advance):
                    yield TriggerEvent(self._payload(advance, snapshot))
                    count.start(advance.to)
                    await asyncio.sleep(_HANDED_OVER)
                    await reported.keep(advance.to)

    def _payload(self, advance: Advance, snapshot: WatermarkSnapshot) -> dict[str, Any]:
        return {
            "uri": self.uri,
            "queryId": self.query_id,
            "epoch": advance.to.epoch,
            "version": advance.to.version,
            "rows": advance.rows,
            "epochs": max(advance.epochs, 1),
            "fromEpoch": advance.since.epoch,
            "fromVersion": advance.since.version,
            "committedAt": snapshot.watermark.committed_at if snapshot.watermark else None,
            "rowsExact": advance.exact,
        }


def _say_unanswered(teller: Teller, error: LanceStreamError) -> None:
    # Terminal errors too: Airflow restarts a failed watcher at once, without a pause.
    teller.say(type(error), logging.WARNING, "No answer yet; asking again. error=%s", error)


class _Count:
    """Counts what was committed since a position, each version once."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self.advance: Advance | None = None
        self._read_to = 0

    def start(self, position: Position | None) -> None:
        """Count from a position; ``None`` means that it is not known yet."""
        self.advance = Advance(position, position) if position else None
        self._read_to = position.version if position else 0

    async def read(self, snapshot: WatermarkSnapshot) -> Advance | None:
        """Count up to a snapshot; ``None`` while there is nothing to count.

        :raises StorageUnavailableError: the store did not answer; what was counted stays counted.
        """
        if self.advance is None or snapshot.port is None or snapshot.watermark is None:
            return None
        now, before = _position(snapshot), self.advance.to
        if now.version < self._read_to or is_another(
            (before.token, before.run_id), (now.token, now.run_id)
        ):
            self.start(Position())  # everything in a recreated dataset is new
        while self._read_to < now.version:
            upto = min(self._read_to + _CHUNK, now.version)
            epochs, rows, missing = await in_thread(
                Pool.LOOKS, tally, snapshot.port, self._query_id, self._read_to, upto
            )
            self._read_to, known = upto, self.advance
            self.advance = replace(
                known,
                epochs=known.epochs + epochs,
                rows=known.rows + rows,
                missing=known.missing + missing,
            )
        self.advance = replace(self.advance, to=now)
        return self.advance


def _position(snapshot: WatermarkSnapshot) -> Position:
    """Return the point up to which a snapshot has read."""
    token, run_id = ownership(snapshot.state)
    return Position(
        version=snapshot.version,
        epoch=snapshot.watermark.epoch if snapshot.watermark else NO_EPOCH,
        generation=snapshot.state.generation if snapshot.state else 0,
        token=token,
        run_id=run_id,
    )


class _ReportedPosition:
    """The last reported position, stored with every watched asset; errors are only logged."""

    def __init__(self, stores: list[Any], key: str, teller: Teller) -> None:
        self._stores, self._key, self._teller = stores, key, teller
        self._first: Position | None = None
        self._failed = 0

    async def recall(self, seen: Position) -> Position | None:
        """Return the last reported position or the first one seen; ``None``: call again later."""
        self._first = self._first or seen
        positions = []
        for store in self._stores:
            try:
                if (kept := await store.aget(self._key)) is not None:
                    positions.append(Position.read_whole(kept))
            except Exception as error:  # raised by Airflow, the API or a state backend
                self._failed += 1
                self._complain("read", error)
                if self._failed < _RECALLS:
                    return None
        if positions:
            return max(positions, key=lambda position: position.version)
        if not self._failed:
            await self.keep(self._first)
        return self._first

    async def keep(self, position: Position) -> None:
        """Store the position as reported."""
        for store in self._stores:
            try:
                await store.aset(self._key, position.to_json())
            except Exception as error:  # as above
                self._complain("keep", error)

    def _complain(self, verb: str, error: Exception) -> None:
        self._teller.say(
            (verb, type(error)),
            logging.WARNING,
            "Could not %s the last reported position. key=%s error=%s: %s",
            verb,
            self._key,
            type(error).__name__,
            error,
        )
