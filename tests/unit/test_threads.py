"""Threads of this package's own: beside asyncio's, and those of users beside those that look."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from airflow_provider_lance.triggers.threads import Pool, in_thread

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.fixture
def store() -> Iterator[threading.Event]:
    """Return a store that hangs until it is set."""
    made = threading.Event()
    yield made
    made.set()


def test_work_runs_in_another_thread_and_returns_its_result() -> None:
    def work(base: int, *, more: int) -> tuple[int, bool]:
        return base + more, threading.current_thread() is threading.main_thread()

    for pool in Pool:
        assert asyncio.run(in_thread(pool, work, 1, more=2)) == (3, False)


def test_error_of_the_work_is_raised_to_the_caller() -> None:
    def work() -> None:
        raise KeyError("nothing there")

    with pytest.raises(KeyError, match="nothing there"):
        asyncio.run(in_thread(Pool.LOOKS, work))


def test_work_keeps_the_context_variables_of_its_caller() -> None:
    """Airflow finds a trigger's log by a context variable."""

    async def run(name: str) -> str:
        WHO.set(name)
        return await in_thread(Pool.LOOKS, WHO.get)

    async def both() -> list[str]:
        return await asyncio.gather(run("one"), run("other"))

    assert asyncio.run(both()) == ["one", "other"]


@pytest.mark.parametrize("hanging", [Pool.LOOKS.value, 3 * Pool.LOOKS.value])
def test_looks_that_hang_hold_up_nothing_else(store: threading.Event, hanging: int) -> None:
    async def run() -> float:
        looks = [asyncio.ensure_future(in_thread(Pool.LOOKS, store.wait)) for _ in range(hanging)]
        await asyncio.sleep(0)
        began = time.monotonic()
        try:
            async with asyncio.timeout(20):
                await asyncio.to_thread(int)
                await in_thread(Pool.STOPS, int)
            took = time.monotonic() - began
            assert not any(look.done() for look in looks)
        finally:
            store.set()
            await asyncio.gather(*looks)
        return took

    assert asyncio.run(run()) < 5


def test_stops_that_hang_hold_up_no_look(store: threading.Event) -> None:
    async def run() -> None:
        stops = [asyncio.ensure_future(in_thread(Pool.STOPS, store.wait)) for _ in range(8)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(20):
                await in_thread(Pool.LOOKS, int)
        finally:
            store.set()
            await asyncio.gather(*stops)

    asyncio.run(run())


def test_threads_are_kept_for_the_next_look() -> None:
    async def run() -> set[int]:
        return {await in_thread(Pool.STOPS, threading.get_ident) for _ in range(3 * 8)}

    assert len(asyncio.run(run())) <= Pool.STOPS.value
