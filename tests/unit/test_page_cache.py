"""Looks that viewers share: one at a time for each key, time-boxed, never the event loop's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.plugins.page import cache as looks_module
from airflow_provider_lance.plugins.page.cache import CachedResult, ResultCache


class Store:
    """Something to look at, that answers when it is let."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.open = threading.Event()
        self.open.set()
        self.error: BaseException | None = None

    def look(self, key: str) -> str:
        self.asked[key] += 1
        number = self.asked[key]
        assert threading.current_thread() is not threading.main_thread()
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        return f"{key}{number}"


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.open.set()


def ask(looks: ResultCache[str, str], *keys: str) -> list[CachedResult[str]]:
    return asyncio.run(looks.at(keys))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_fifty_viewers_cost_one_query(store: Store) -> None:
    looks = ResultCache(store.look)
    store.open.clear()

    async def everybody() -> list[list[CachedResult[str]]]:
        viewers = [asyncio.create_task(looks.at(["a"])) for _ in range(50)]
        await asyncio.sleep(0)
        store.open.set()
        return await asyncio.gather(*viewers)

    found = asyncio.run(everybody())
    assert [look.value for [look] in found] == ["a1"] * 50
    assert [look.value for look in ask(looks, "a", "b")] == ["a1", "b1"]
    assert store.asked == {"a": 1, "b": 1}


def test_expired_result_is_queried_again(store: Store) -> None:
    looks = ResultCache(store.look, keep=0.0)
    assert [ask(looks, "a")[0].value for _ in range(3)] == ["a1", "a2", "a3"]


def test_slow_query_does_not_delay_the_others(store: Store) -> None:
    looks = ResultCache(lambda key: "b" if key == "b" else store.look(key), patience=0.3)
    store.open.clear()
    slow, quick = ask(looks, "a", "b")
    assert quick.value == "b"
    assert (slow.value, slow.error) == (None, ""), "its first answer is awaited"
    # Who asks meanwhile joins the look under way.
    ask(looks, "a")
    assert store.asked["a"] == 1
    store.open.set()
    until(lambda: ask(looks, "a")[0].value == "a1")


def test_the_event_loop_goes_on_while_threads_look(store: Store) -> None:
    looks = ResultCache(store.look, first=20)
    store.open.clear()

    async def beat() -> int:
        viewer = asyncio.create_task(looks.at(["a"]))
        await asyncio.sleep(0)
        beats = 0
        while beats < 20 and not viewer.done():
            await asyncio.sleep(0.001)
            beats += 1
        store.open.set()
        await viewer
        return beats

    assert asyncio.run(beat()) == 20


def test_older_result_is_shown_for_a_slow_query_for_a_limited_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = ResultCache(store.look, keep=0.0, patience=0.05)
    until(lambda: ask(looks, "a")[0].value == "a1")
    store.open.clear()
    [old] = ask(looks, "a")
    assert old.value is not None
    assert old.age > 0
    # A stream that broke since then must not look healthy.
    monkeypatch.setattr(looks_module, "_STALE", 0.0)
    [stale] = ask(looks, "a")
    assert stale.value is None
    assert stale.error.startswith("no answer for")
    assert stale.last == old.value
    assert stale.last_age > 0


def test_no_first_answer_becomes_an_error_at_its_deadline(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = ResultCache(store.look, first=0.05)
    store.open.clear()
    assert ask(looks, "a")[0].error == ""
    monkeypatch.setattr(looks_module, "_DEADLINE", 0.0)
    assert ask(looks, "a")[0].error.startswith("no answer for")


def test_queries_that_hang_leave_their_places_to_others(store: Store) -> None:
    looks = ResultCache(
        lambda key: key if key.startswith("z") else store.look(key),
        patience=0.1,
        at_once=2,
    )
    store.open.clear()
    hanging, quick = [f"a{at}" for at in range(10)], [f"z{at}" for at in range(5)]
    until(lambda: all(look.value for look in ask(looks, *hanging, *quick)[10:]))
    # However often a page is loaded, a query that hangs costs one thread.
    running = threading.active_count()
    for _ in range(5):
        asyncio.run(ResultCache.at(looks, quick))
    assert threading.active_count() <= running
    assert set(store.asked.values()) == {1}


def test_no_more_threads_than_allowed_run(store: Store) -> None:
    looks = ResultCache(store.look, first=0.05, most=3)
    store.open.clear()
    ask(looks, *"abcdefgh")
    assert sum(store.asked.values()) == 3
    store.open.set()
    until(lambda: all(look.value for look in ask(looks, *"abcdefgh")))


def test_forgotten_key_is_queried_again(store: Store) -> None:
    looks = ResultCache(store.look)
    ask(looks, "a")
    looks.forget("a")
    assert ask(looks, "a")[0].value == "a2"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StorageUnavailableError("refused"), "StorageUnavailableError: refused"),
        (TypeError("a bug"), "TypeError: a bug (unexpected"),
        (BaseException("a panic"), "BaseException: a panic (unexpected"),
    ],
)
def test_an_error_is_told_and_kept_as_long_as_a_value(
    store: Store, error: BaseException, said: str
) -> None:
    looks = ResultCache(store.look)
    store.error = error
    assert ask(looks, "a")[0].error.startswith(said)
    assert ask(looks, "a")[0].value is None
    assert store.asked["a"] == 1


def test_unused_keys_are_removed_from_the_cache(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "_FORGET", 0.0)
    looks = ResultCache(store.look)
    for number in range(10):
        ask(looks, str(number))
    assert len(looks._entries) <= 2
