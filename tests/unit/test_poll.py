"""One poll for all triggers of one dataset: counted on real datasets."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    ProtocolVersionError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import Driver
from airflow_provider_lance.triggers import poll
from airflow_provider_lance.triggers import watermark_follower as follow
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.poll import Subscription
from airflow_provider_lance.triggers.watermark_follower import (
    DatasetFollower,
    OnMissing,
    WatermarkSnapshot,
)

from .conftest import ROWS, AddConnection, Stream

LONG = 3600.0


def subscribe(uri: str, query_id: str = "flights", interval: float = 0.05) -> Any:
    return poll.subscribe(uri, query_id, lance_conn_id=None, interval=interval)


async def until(what: str, condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for something true, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.005)


async def epoch(looks: Subscription) -> int | None:
    watermark = (await looks.next()).watermark
    return watermark.epoch if watermark else None


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 20)


class Store:
    """Counts what a poll asks of the store, and can make it slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = self.listed = self.asked = 0
        self.read: Counter[int] = Counter()
        self.answers = threading.Event()
        self.answers.set()
        latest, properties = LanceDatasetPort.latest, LanceDatasetPort.properties
        opening = follow.LanceHook.open

        def is_the_polls(port: LanceDatasetPort) -> bool:
            return isinstance(port, follow._RememberingPort)  # not a committer's

        def counted_open(hook: Any, uri: str) -> LanceDatasetPort:
            self._ask()
            self.opened += 1
            return opening(hook, uri)

        def counted_latest(port: LanceDatasetPort) -> LanceDatasetPort:
            if is_the_polls(port):
                self._ask()
                self.listed += 1
            return latest(port)

        def counted_properties(port: LanceDatasetPort, version: int) -> Any:
            if is_the_polls(port):
                self.read[version] += 1
            return properties(port, version)

        monkeypatch.setattr(follow.LanceHook, "open", counted_open)
        monkeypatch.setattr(LanceDatasetPort, "latest", counted_latest)
        monkeypatch.setattr(LanceDatasetPort, "properties", counted_properties)

    def _ask(self) -> None:
        self.asked += 1
        assert self.answers.wait(20)

    @property
    def looks(self) -> int:
        return self.opened + self.listed


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(monkeypatch)
    yield made
    made.answers.set()


@pytest.mark.parametrize("queries", [1, 4])
def test_200_triggers_on_one_dataset_cost_one_poll(
    dataset: str, store: Store, queries: int
) -> None:
    streams = [Stream(dataset, f"query-{number}") for number in range(queries)]
    for stream in streams:
        stream.commit(0)
    interval = 0.5

    async def run() -> None:
        waiting = [
            LanceEpochTrigger(
                uri=dataset,
                query_id=f"query-{number % queries}",
                condition=EpochCondition(epoch=1).to_json(),
                lance_conn_id=None,
                poll_interval=interval,
            )
            for number in range(200)
        ]
        tasks = [asyncio.ensure_future(anext(aiter(each.run()))) for each in waiting]
        await until("first look", lambda: store.looks)
        started, before = time.monotonic(), store.looks
        await until("more looks", lambda: store.looks >= 4)
        # The second query's first look may follow on the heels of the first's.
        most = (time.monotonic() - started) / interval + before + 1
        assert store.looks <= most + (queries > 1)
        assert store.opened == 1
        assert not any(task.done() for task in tasks)
        for stream in streams:
            stream.commit(1)
        events = await soon(asyncio.gather(*tasks))
        assert {event.payload["watermark"]["epoch"] for event in events} == {1}
        assert set(store.read.values()) == {1}, "a version was read twice"

    asyncio.run(run())


def test_shortest_interval_sets_the_pace_of_all_subscribers(dataset: str, store: Store) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        with subscribe(dataset, interval=LONG) as slow:
            assert await epoch(slow) == 0
            assert store.looks == 1
            with subscribe(dataset, interval=LONG) as another:
                assert await epoch(another) == 0
            assert store.looks == 1, "a look that is young enough was made again"
            stream.commit(1)
            waiting = asyncio.ensure_future(epoch(slow))
            with subscribe(dataset, interval=0.05) as quick:
                while await epoch(quick) != 1:
                    assert store.looks < 20
            assert await soon(waiting) == 1

    asyncio.run(run())


def test_poll_is_repeated_when_the_last_one_is_older_than_the_interval(
    dataset: str, store: Store
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        with subscribe(dataset, interval=LONG) as slow, subscribe(dataset, interval=0.05) as quick:
            assert await epoch(slow) == 0
            stream.commit(1)
            old = time.monotonic() + 0.06
            await until("the look is too old", lambda: time.monotonic() > old)
            assert await epoch(quick) == 1
            assert store.looks == 2

    asyncio.run(run())


def test_query_of_a_new_subscriber_is_polled_at_once(dataset: str) -> None:
    Stream(dataset).commit(0)
    Stream(dataset, "other").commit(0)

    async def run() -> None:
        with subscribe(dataset, interval=LONG) as first:
            assert await epoch(first) == 0
            with subscribe(dataset, "other", interval=LONG) as second:
                assert await soon(epoch(second)) == 0

    asyncio.run(run())


def test_cancelled_subscriber_leaves_the_poll_to_the_others(dataset: str, store: Store) -> None:
    Stream(dataset).commit(0)

    async def run() -> None:
        store.answers.clear()
        with subscribe(dataset, interval=LONG) as first, subscribe(dataset, interval=LONG) as other:
            doomed = asyncio.ensure_future(epoch(first))
            await until("the look", lambda: store.asked == 1)
            waiting = asyncio.ensure_future(epoch(other))
            await asyncio.sleep(0)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            store.answers.set()
            assert await soon(waiting) == 0
            assert store.looks == 1

    asyncio.run(run())


def test_a_slow_store_does_not_block_the_event_loop(dataset: str, store: Store) -> None:
    Stream(dataset).commit(0)

    async def run() -> None:
        store.answers.clear()
        with subscribe(dataset) as looks:
            waiting = asyncio.ensure_future(epoch(looks))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            assert store.asked == 1, "a second look was started beside the first"
            store.answers.set()
            assert await soon(waiting) == 0

    asyncio.run(run())


def test_error_of_a_poll_goes_to_all_subscribers_and_the_poll_continues(dataset: str) -> None:
    Stream(dataset).commit(0)
    versions = Path(dataset) / "_versions"
    manifests = {path: path.read_bytes() for path in versions.iterdir()}

    async def run() -> None:
        for path in manifests:
            path.write_bytes(b"not a manifest")
        with subscribe(dataset) as one, subscribe(dataset) as other:
            failed = await soon(asyncio.gather(epoch(one), epoch(other), return_exceptions=True))
            assert [type(each) for each in failed] == [StorageUnavailableError] * 2
            for path, content in manifests.items():
                path.write_bytes(content)
            while True:
                try:
                    assert await soon(asyncio.gather(epoch(one), epoch(other))) == [0, 0]
                    break
                except StorageUnavailableError:
                    continue

    asyncio.run(run())


def test_error_of_one_query_does_not_reach_the_subscribers_of_another(dataset: str) -> None:
    Stream(dataset).commit(0)
    owner = json.dumps({"protocol": 99})
    lance.dataset(dataset).update_config({"spark.lance.streaming.owner.newer": owner})

    async def run() -> None:
        with subscribe(dataset) as one, subscribe(dataset, "newer") as other:
            for _ in range(2):
                with pytest.raises(ProtocolVersionError):
                    await soon(other.next())
                assert await soon(epoch(one)) == 0

    asyncio.run(run())


def test_each_subscriber_decides_what_a_missing_dataset_means(tmp_path: Path) -> None:
    uri = str(tmp_path / "flights.lance")

    async def run() -> None:
        with subscribe(uri) as looks:
            snapshot: WatermarkSnapshot = await soon(looks.next())
            assert (snapshot.version, snapshot.state, snapshot.watermark) == (0, None, None)
            assert snapshot.judge(OnMissing.WAIT) is None
            with pytest.raises(DatasetNotFoundError):
                snapshot.judge(OnMissing.FAIL)
            lance.write_dataset(ROWS, uri)
            Stream(uri).commit(0)
            while (found := await soon(epoch(looks))) is None:
                pass
            assert found == 0

    asyncio.run(run())


@pytest.mark.parametrize("others", [0, 8], ids=["its version went back", "its version went on"])
def test_follower_reads_a_recreated_dataset_from_its_start(dataset: str, others: int) -> None:
    stream = Stream(dataset)
    for number in range(4):
        stream.commit(number)
    follower = DatasetFollower(lambda: follow.LanceHook(None).open(dataset))
    assert watermark(follower) == 3
    shutil.rmtree(dataset)
    lance.write_dataset(ROWS, dataset)
    again = Stream(dataset)
    rename_run(again)
    again.commit(0)
    for _ in range(others):
        lance.dataset(dataset).update_config({"some": "change"})
    assert watermark(follower) == 0


def rename_run(stream: Stream) -> None:
    """Give the stream a run of its own, as every driver has."""
    stream._committer.identify(
        Driver(run_id="another", checkpoint_id="checkpoint-id", checkpoint_location="/checkpoint")
    )


def watermark(follower: DatasetFollower) -> int:
    found = follower.look(["flights"])["flights"]
    assert isinstance(found, WatermarkSnapshot)
    assert found.watermark
    return found.watermark.epoch


def test_follower_forgets_folded_epochs_and_bounds_the_rest(
    dataset: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_REMEMBERED", 4)
    stream = Stream(dataset)
    follower = DatasetFollower(lambda: follow.LanceHook(None).open(dataset))
    most = 0
    for number in range(25):
        stream.commit(number)
        assert watermark(follower) == number
        assert follower._known
        most = max(most, len(follower._known._memory._read))
    assert most == 4
    assert set(store.read.values()) == {1}
    stream.release()
    assert watermark(follower) == 24
    lance.dataset(dataset).update_config({"some": "change"})
    assert watermark(follower) == 24
    assert not follower._known._memory._read


def test_last_subscriber_closes_the_poll(dataset: str, store: Store) -> None:
    Stream(dataset).commit(0)

    async def run() -> None:
        for opened in (1, 2):
            with subscribe(dataset) as one, subscribe(f"{dataset}/") as other:
                assert await epoch(one) == 0
                assert await epoch(other) == 0
                assert store.opened == opened
            assert not poll._polls[asyncio.get_running_loop()]

    asyncio.run(run())


def test_polls_are_not_shared_between_connections_and_event_loops(
    dataset: str, store: Store, add_connection: AddConnection
) -> None:
    Stream(dataset).commit(0)
    add_connection("warehouse", conn_type="lance")

    async def run() -> None:
        with (
            subscribe(dataset) as one,
            poll.subscribe(dataset, "flights", lance_conn_id="warehouse", interval=LONG) as other,
        ):
            assert await epoch(one) == await epoch(other) == 0

    asyncio.run(run())
    asyncio.run(run())
    assert store.opened == 4


def test_corrected_connection_is_read_again(dataset: str, add_connection: AddConnection) -> None:
    Stream(dataset).commit(0)

    async def run() -> None:
        with poll.subscribe(dataset, "flights", lance_conn_id="warehouse", interval=0.02) as looks:
            with pytest.raises(SpecError, match="no connection 'warehouse'"):
                await looks.next()
            add_connection("warehouse", conn_type="lance")
            while True:
                try:
                    assert await epoch(looks) == 0
                    break
                except SpecError:
                    continue

    asyncio.run(asyncio.wait_for(run(), 20))


def test_poll_with_interval_zero_still_pauses(dataset: str, store: Store) -> None:
    Stream(dataset).commit(0)

    async def run() -> None:
        with subscribe(dataset, interval=0) as looks:
            for _ in range(3):
                assert await soon(epoch(looks)) == 0

    asyncio.run(run())
    assert store.looks == 3


def test_invalid_query_id_is_refused_before_the_first_poll(dataset: str, store: Store) -> None:
    async def run() -> None:
        with pytest.raises(SpecError), subscribe(dataset, "not a query id"):
            pass

    asyncio.run(run())
    assert store.looks == 0
