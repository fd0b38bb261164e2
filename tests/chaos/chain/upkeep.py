"""Compaction and cleanup of all datasets of a chain, in a process beside the drivers."""

from __future__ import annotations

import multiprocessing
import queue
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_lance.exceptions import TransientError
from airflow_provider_lance.maintenance.cleanup import Retention
from airflow_provider_lance.protocol.consumers import Consumer, leave_position, read_consumer
from tests.chaos.chain.table import Table
from tests.chaos.store import Place
from tests.chaos.upkeep import Upkeep

FRESH_SECONDS = 5.0
"""After so long a driver looks for itself, in place of a minute."""

RETENTION = Retention(older_than=0, keep_active=25)
"""Several times that."""

LONGEST_SECONDS = 60.0


class UpkeepProcess:
    """The process, from the entry of its block to the exit; then ``outcomes`` and ``unexpected``.

    A dataset whose consumer has not committed an epoch is left alone: what it needs is not known.
    """

    def __init__(self, tables: list[tuple[Table, Table | None]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._over, self._results = context.Event(), context.Queue()
        self._process = context.Process(target=_run, args=(tables, self._over, self._results))
        self.outcomes: Counter[str] = Counter()
        self.unexpected = ""

    def __enter__(self) -> UpkeepProcess:
        self._process.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        try:
            self.outcomes, self.unexpected = self._results.get(timeout=LONGEST_SECONDS)
        except queue.Empty:
            self.unexpected = f"maintenance did not end within {LONGEST_SECONDS:g} s"
            self._process.kill()
        self._process.join()


def _run(tables: list[tuple[Table, Table | None]], over: Any, results: Any) -> None:
    kept = [
        (Upkeep(Place(table.uri, Path(table.uri).parent), True, False, RETENTION), consumer)
        for table, consumer in tables
    ]
    while not over.wait(2.0):
        for upkeep, consumer in kept:
            if consumer is None or _leave(upkeep, consumer):
                upkeep.once()
    outcomes = sum((upkeep.outcomes for upkeep, _ in kept), Counter[str]())
    results.put((outcomes, next((each.unexpected for each, _ in kept if each.unexpected), "")))


def _leave(upkeep: Upkeep, consumer: Table) -> bool:
    """Leave the position that the consumer has committed; return whether it has one."""
    position = consumer.position
    if position is None:
        return False
    try:
        port = upkeep.place.open()
        known = read_consumer(port.config, consumer.name, port.version)
        if known is None or known.offset != position:
            leave_position(port, Consumer(consumer.name, position, datetime.now(UTC)))
    except TransientError as error:
        upkeep.outcomes[type(error).__name__] += 1
        return False
    return True
