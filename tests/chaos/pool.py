"""Stations on several processes; Lance does not survive a fork, so each is started anew."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.chaos.plan import StationPlan
from tests.chaos.station import Bench, RoundResult, run

_shared: dict[str, Any] = {}
"""A worker's ends of what all processes have together."""


def run_all(
    plans: Sequence[StationPlan],
    bench: Bench,
    workers: int,
    tell: Callable[[RoundResult], bool],
) -> None:
    """Run stations, so many at a time.

    :param tell: called with each round's result as it comes; ``False`` ends all stations.
    """
    context = multiprocessing.get_context("spawn")
    results, over = context.Queue(), context.Event()
    with ProcessPoolExecutor(workers, context, _share, (results, over)) as pool:
        futures = [pool.submit(_station, plan, bench) for plan in plans]
        try:
            while not (all(future.done() for future in futures) and results.empty()):
                try:
                    result = results.get(timeout=0.2)
                except queue.Empty:
                    continue
                if not tell(result):
                    over.set()
        except BaseException:
            over.set()
            raise
        for future in futures:
            future.result()


def _share(results: Any, over: Any) -> None:
    _shared.update(results=results, over=over)


def _station(plan: StationPlan, bench: Bench) -> bool:
    return run(plan, bench, _shared["results"].put, _shared["over"].is_set)
