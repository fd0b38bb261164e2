"""Compaction and cleanup of all datasets of a chain, in a process beside the drivers."""

from __future__ import annotations

import multiprocessing
import queue
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_lance.maintenance.cleanup import Retention
from tests.chaos.store import Place
from tests.chaos.upkeep import Upkeep

FRESH_SECONDS = 5.0
"""After so long a driver looks for itself, in place of a minute."""

RETENTION = Retention(older_than=0, keep_active=25)
"""Several times that."""

LONGEST_SECONDS = 60.0


class UpkeepProcess:
    """The process, from the entry of its block to the exit; then ``outcomes`` and ``unexpected``.

    Nothing but the positions in the datasets tells it what the next stream still needs.
    """

    def __init__(self, uris: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._over, self._results = context.Event(), context.Queue()
        self._process = context.Process(target=_run, args=(uris, self._over, self._results))
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


def _run(uris: Sequence[str], over: Any, results: Any) -> None:
    kept = [Upkeep(Place(uri, Path(uri).parent), True, False, RETENTION) for uri in uris]
    while not over.wait(2.0):
        for upkeep in kept:
            upkeep.once()
    outcomes = sum((upkeep.outcomes for upkeep in kept), Counter[str]())
    results.put((outcomes, next((each.unexpected for each in kept if each.unexpected), "")))
