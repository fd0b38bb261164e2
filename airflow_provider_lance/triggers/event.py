"""Tell Airflow of new epochs: an event trigger for ``AssetWatcher``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_lance.compat import asset_stores
from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.decoding import finite, shown
from airflow_provider_lance.protocol.model import NO_EPOCH
from airflow_provider_lance.triggers.condition import Advance, AdvanceCondition, Mark
from airflow_provider_lance.triggers.poll import Teller, subscribe
from airflow_provider_lance.triggers.threads import Pool, in_thread
from airflow_provider_lance.triggers.watermark_follower import (
    WatermarkSnapshot,
    describe,
    is_another,
    ownership,
    tally,
)

__all__ = ["LanceEpochEventTrigger"]

_HANDED_OVER = 2.0
"""Seconds after which the triggerer, which does so every second, has passed a fired event on."""
_CHUNK = 64
"""Versions read in one thread call, so that a long way to catch up can be cancelled."""
_RECALLS = 3
"""Times that reading what was told may fail before the first look counts as told."""


class LanceEpochEventTrigger(BaseEventTrigger):
    """
    Fire whenever a query's epoch watermark has advanced so far since it last fired.

    The event is ``{"uri", "queryId", "epoch", "version", "rows", "epochs", "fromEpoch",
    "fromVersion", "committedAt", "rowsExact"}``: ``rows`` and ``epochs`` were committed after the
    epoch ``fromEpoch`` (-1: there was none) and the dataset version ``fromVersion``, up to
    ``epoch`` and ``version``. An epoch is one commit with data: an empty micro-batch is none. When
    a query starts a new numbering, its first epoch counts like any other, and ``epoch`` may be
    less than ``fromEpoch``.

    If versions were cleaned up before they were read, ``rows`` and ``epochs`` are lower bounds and
    ``rowsExact`` is false. Then the numbers of the epochs decide for ``every_epochs``, and
    ``every_rows`` fires as soon as they advance: too early is better than never.

    What is there at the very first look does not fire; dataset and query may come later. What was
    told last is kept in the state of the watched assets, once the event is on its way. So an event
    is never lost; one that was fired in the last two seconds of a triggerer may be fired again,
    with the same ``fromVersion``.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI.
    :param query_id: The streaming query.
    :param every_epochs: Fire after so many epochs; 1 if neither is given.
    :param every_rows: Fire after so many rows.
    :param lance_conn_id: The Lance connection; its secrets are looked up where the trigger runs.
    :param poll_interval: Seconds between two looks, at most; all triggers that watch one dataset
        share their looks.
    """

    # No shared_stream_key: the poll is shared with epoch triggers too, and has no queue to overflow

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
        every_epochs: int | None = None,
        every_rows: int | None = None,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.uri = uri
        self.query_id = require_query_id(query_id)
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
                "every_epochs": self.condition.epochs,
                "every_rows": self.condition.rows,
                "lance_conn_id": self.lance_conn_id,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        count = _Count(self.query_id)
        teller = Teller(self.log)
        # Without the URI: a dataset that moves keeps its numbers.
        key = f"lance/{self.query_id}/{self.condition}"
        told = _Told(asset_stores(self), key, teller)
        with subscribe(
            self.uri, self.query_id, lance_conn_id=self.lance_conn_id, interval=self.poll_interval
        ) as looks:
            while True:
                try:
                    snapshot = await looks.next()
                    if count.advance is None:
                        count.start(await told.recall(snapshot))
                    advance = await count.read(snapshot)
                except LanceStreamError as error:
                    # Terminal ones too: Airflow starts a watcher that fails anew, without a pause.
                    teller.say(
                        type(error), logging.WARNING, "No answer yet; asking again. error=%s", error
                    )
                    continue
                found = describe(snapshot.watermark)
                teller.say(found, logging.INFO, "Watching for %s. %s", self.condition, found)
                if advance and self.condition.is_met(advance):
                    yield TriggerEvent(self._payload(advance, snapshot))
                    count.start(advance.to)
                    await asyncio.sleep(_HANDED_OVER)
                    await told.keep(advance.to)

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


class _Count:
    """Counts what was committed since a mark, each version once."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self.advance: Advance | None = None
        self._read_to = 0

    def start(self, mark: Mark | None) -> None:
        """Count from a mark; ``None``: it is not known yet."""
        self.advance = Advance(mark, mark) if mark else None
        self._read_to = mark.version if mark else 0

    async def read(self, snapshot: WatermarkSnapshot) -> Advance | None:
        """Count up to what a look saw; ``None`` while there is nothing to count.

        :raises StorageUnavailableError: the store did not answer; what was counted stays counted.
        """
        if self.advance is None or snapshot.port is None or snapshot.watermark is None:
            return None
        now, before = _mark(snapshot), self.advance.to
        if now.version < self._read_to or is_another(
            (before.token, before.run_id), (now.token, now.run_id)
        ):
            self.start(Mark())  # all that a dataset made anew holds is new
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


def _mark(snapshot: WatermarkSnapshot) -> Mark:
    """Return up to where a look saw."""
    token, run_id = ownership(snapshot.state)
    return Mark(
        version=snapshot.version,
        epoch=snapshot.watermark.epoch if snapshot.watermark else NO_EPOCH,
        generation=snapshot.state.generation if snapshot.state else 0,
        token=token,
        run_id=run_id,
    )


class _Told:
    """What was told, kept with every watched asset; whatever goes wrong with it is survived."""

    def __init__(self, stores: list[Any], key: str, teller: Teller) -> None:
        self._stores, self._key, self._teller = stores, key, teller
        self._first: Mark | None = None
        self._failed = 0

    async def recall(self, snapshot: WatermarkSnapshot) -> Mark | None:
        """Return what was told last, or else the first look; ``None``: ask again later."""
        self._first = self._first or _mark(snapshot)
        marks = []
        for store in self._stores:
            try:
                if (kept := await store.aget(self._key)) is not None:
                    marks.append(Mark.read_whole(kept))
            except Exception as error:  # Airflow's, the API's or a state backend's own
                self._failed += 1
                self._complain("read", error)
                if self._failed < _RECALLS:
                    return None
        if marks:
            return max(marks, key=lambda mark: mark.version)
        if not self._failed:
            await self.keep(self._first)
        return self._first

    async def keep(self, mark: Mark) -> None:
        """Remember what was told."""
        for store in self._stores:
            try:
                await store.aset(self._key, mark.to_json())
            except Exception as error:  # as above
                self._complain("keep", error)

    def _complain(self, verb: str, error: Exception) -> None:
        self._teller.say(
            (verb, type(error)),
            logging.WARNING,
            "Could not %s what was told last. key=%s error=%s: %s",
            verb,
            self._key,
            type(error).__name__,
            error,
        )
