"""What is measured inside an Airflow process: imports, parsing, looks, watchers.

Belongs to :mod:`benchmarks.airflow_side`, which calls each function in an interpreter of its own.
Nothing is imported before it is asked for, since imports are among what is measured.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

FAR = 10**9
"""An epoch that never comes, and as many epochs."""
QUERY = "bench"


def imports(module: str, base: str | None) -> dict[str, float]:
    """Import the base, and the module after it; each in milliseconds."""
    told = {"base": _imported(base)} if base else {}
    return told | {"module": _imported(module)}


def _imported(module: str) -> float:
    began = time.perf_counter()
    importlib.import_module(module)
    return (time.perf_counter() - began) * 1000


def parse(files: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Parse DAG files by turns, each in a fork of a process that has imported Airflow.

    So does Airflow's DAG processor: what a file imports beyond Airflow, it pays for each time.
    """
    from airflow.dag_processing.dagbag import DagBag

    def fill(path: str) -> float:
        began = time.perf_counter()
        bag = DagBag(path)
        taken = (time.perf_counter() - began) * 1000
        if bag.import_errors or not bag.dags:
            raise AssertionError(f"{path}: {bag.import_errors or 'no DAG'}")
        return taken

    found: dict[str, list[float]] = {path: [] for path in files}
    for _ in range(rounds):
        for path in files:
            found[path].append(_forked(partial(fill, path)))
    return found


def _forked(measure: Callable[[], float]) -> float:
    """Call a function in a child process and return what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, repr(measure()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError("the child process failed; its log says why")
    return float(text)


def looks(uri: str, rounds: int) -> dict[str, list[float]]:
    """Look at one dataset by turns: the library's own opening, a hook's watermark, a sensor's poke.

    ``poke`` is the first of a sensor, which opens the dataset; ``poke again`` its second.
    """
    import lance

    from airflow_provider_lance.hooks.lance import LanceHook
    from airflow_provider_lance.protocol.watermark import exact_watermark
    from airflow_provider_lance.sensors.epoch import LanceEpochSensor

    names = ("lance.dataset", "LanceHook and watermark", "poke", "poke again")
    found: dict[str, list[float]] = {name: [] for name in names}

    def timed(name: str, action: Callable[[], object]) -> None:
        began = time.perf_counter()
        action()
        found[name].append((time.perf_counter() - began) * 1000)

    for number in range(rounds + 1):
        sensor = LanceEpochSensor(
            task_id=f"look-{number}", uri=uri, query_id=QUERY, epoch=FAR, lance_conn_id=None
        )
        poke = partial(sensor.poke, {})
        timed(names[0], lambda: lance.dataset(uri))
        timed(names[1], lambda: exact_watermark(LanceHook(None).open(uri), QUERY))
        timed(names[2], poke)
        timed(names[3], poke)
    return {name: values[1:] for name, values in found.items()}  # the first ones warm up


# ---------------------------------------------------------------------------------------- watchers


def watchers(uris: Sequence[str], count: int, interval: float, seconds: float) -> dict[str, Any]:
    """Run so many watchers on one event loop, half epoch triggers and half event triggers.

    Tells the lag of the loop without and with them in milliseconds, how often the store was asked
    in ``seconds``, the bytes that they take all together, and how many ended: none should.
    """
    import asyncio

    with _counted() as asked:
        return asyncio.run(_watch(uris, count, interval, seconds, asked))


async def _watch(
    uris: Sequence[str], count: int, interval: float, seconds: float, asked: Counter[str]
) -> dict[str, Any]:
    import asyncio

    from airflow_provider_lance.hooks.lance import LanceHook

    LanceHook(None).open(uris[0])  # imports Lance, once for all
    asked.clear()
    idle = await _lags(min(seconds, 3.0))
    before = _resident()
    triggers = [_trigger(number, uris[number % len(uris)], interval) for number in range(count)]
    tasks = [asyncio.create_task(_run(each)) for each in triggers]
    await asyncio.sleep(3 * interval)
    if asked["open"] < len(uris):
        raise AssertionError(f"only {asked['open']} of {len(uris)} datasets were looked at in time")
    asked.clear()
    began = time.perf_counter()
    busy = await _lags(seconds)
    taken = time.perf_counter() - began
    told = dict(asked)
    lost = [task for task in tasks if task.done()]
    taken_by_all = _resident() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "idle": idle,
        "busy": busy,
        "asked": told,
        "seconds": taken,
        "bytes": taken_by_all,
        "lost": len(lost),
    }


def _trigger(number: int, uri: str, interval: float) -> Any:
    from airflow_provider_lance.triggers.condition import EpochCondition
    from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
    from airflow_provider_lance.triggers.event import LanceEpochEventTrigger

    where: dict[str, Any] = {
        "uri": uri,
        "query_id": QUERY,
        "lance_conn_id": None,
        "poll_interval": interval,
    }
    if number % 2:
        return LanceEpochEventTrigger(every_epochs=FAR, **where)
    return LanceEpochTrigger(condition=EpochCondition(epoch=FAR).to_json(), **where)


async def _run(trigger: Any) -> None:
    events: AsyncIterator[Any] = trigger.run()
    async for event in events:
        raise AssertionError(f"a watcher of something that never comes fired: {event}")


async def _lags(seconds: float) -> list[float]:
    """Return by how many milliseconds the event loop was late, every 10 ms."""
    import asyncio

    lags, pause = [], 0.01
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await asyncio.sleep(pause)
        lags.append((time.perf_counter() - began - pause) * 1000)
    return lags


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count what is asked of the store: openings, listings, transactions read."""
    from unittest.mock import patch

    from airflow_provider_lance.protocol import dataset

    asked: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            asked[name] += 1
            return function(*given, **named)

        return call

    port = dataset.LanceDatasetPort
    with ExitStack() as stack:
        for name in ("latest", "properties"):
            stack.enter_context(patch.object(port, name, counting(name, getattr(port, name))))
        hook = importlib.import_module("airflow_provider_lance.hooks.lance").LanceHook
        stack.enter_context(patch.object(hook, "open", counting("open", hook.open)))
        yield asked


def _resident() -> int:
    """Return how many bytes of memory the process holds."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(function: str, arguments: str, answer: str) -> None:
    """Call one of these functions with arguments as JSON; writes what it returns into a file."""
    told = globals()[function](**json.loads(arguments))
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(told, file)
