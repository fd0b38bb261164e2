"""LanceEpochEventTrigger on real datasets, with Airflow's own accessors of asset state."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    ErrorResponse,
    GetAssetStateStoreByName,
    SetAssetStateStoreByName,
)
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.triggers import event as module
from airflow_provider_lance.triggers.condition import Advance, AdvanceCondition, Position
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger
from airflow_provider_lance.triggers.watermark_follower import _RememberingPort

from .conftest import ROWS, Shown, Stream

KEY = "lance/flights/every_epochs=1"


class Supervisor:
    """Answers for the asset state store, as the triggerer's supervisor does."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Any] = {}
        self.failures = 0
        """How many requests to come fail."""
        self.asked = 0

    async def asend(self, message: Any) -> Any:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            return self._refuse(message)
        if isinstance(message, SetAssetStateStoreByName):
            self.kept[message.name, message.key] = json.loads(json.dumps(message.value))
            return None
        assert isinstance(message, GetAssetStateStoreByName)
        if (message.name, message.key) not in self.kept:
            return ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)
        return AssetStateStoreResult(value=self.kept[message.name, message.key])

    def _refuse(self, message: Any) -> Any:
        if isinstance(message, SetAssetStateStoreByName):
            raise RuntimeError("the API server is away")
        return ErrorResponse(error=ErrorType.API_SERVER_ERROR)


@pytest.fixture(autouse=True)
def handed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANDED_OVER", 0)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


def claim(uri: str, checkpoint: Checkpoint, policy: CommitPolicy | None = None) -> DriverSession:
    """Prepare another driver of the query, as a restart with this checkpoint does."""
    committer = DriverSession(open_dataset(uri), "flights", checkpoint, policy)
    committer.prepare()
    committer.identify(
        Driver(
            run_id="another", checkpoint_id=checkpoint.id or "", checkpoint_location="/checkpoint"
        )
    )
    return committer


def commit(committer: DriverSession, uri: str, epoch_id: int) -> None:
    fragments = lance.fragment.write_fragments(ROWS, uri)
    committer.begin(epoch_id).commit(
        Epoch(epoch_id, OutputMode.APPEND, fragments, len(ROWS), 0, utc_now())
    )


class Watcher:
    """A trigger as the triggerer runs it: it takes every event at once."""

    def __init__(self, trigger: LanceEpochEventTrigger) -> None:
        self.events: list[dict[str, Any]] = []
        self.looks = 0
        self.trigger = trigger

    async def run(self) -> None:
        async for event in self.trigger.run():
            self.events.append(json.loads(json.dumps(event.payload)))

    async def has(self, count: int) -> dict[str, Any]:
        """Wait for an event and return it; there must be no more than so many."""
        await until(f"event {count} of {self.events}", lambda: len(self.events) >= count)
        assert len(self.events) == count
        return self.events[-1]

    async def keeps_quiet(self) -> None:
        """Look some more times; nothing may fire."""
        count, looks = len(self.events), self.looks
        await until("more looks", lambda: self.looks >= looks + 4)
        assert len(self.events) == count, self.events[count:]


async def until(what: str, condition: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


def trigger(uri: str, **changes: Any) -> LanceEpochEventTrigger:
    arguments = {"uri": uri, "query_id": "flights", "lance_conn_id": None, "poll_interval": 0.02}
    return LanceEpochEventTrigger(**(arguments | changes))


@asynccontextmanager
async def watching(uri: str, *, assets: tuple[str, ...] = (), **changes: Any) -> Any:
    """Run a trigger until the block ends; yields once it has taken its first look."""
    made = trigger(uri, **changes)
    if assets:
        inlets = [Asset(name=name, uri=f"x-test://{name}") for name in assets]
        made.asset_state_store = AssetStateStoreAccessors(inlets=inlets)
    watcher = Watcher(made)
    with pytest.MonkeyPatch.context() as patch:
        real = module._Count.read

        async def read(count: Any, snapshot: Any) -> Any:
            found = await real(count, snapshot)
            watcher.looks += 1
            return found

        patch.setattr(module._Count, "read", read)
        task = asyncio.ensure_future(watcher.run())
        try:
            await until("the first look", lambda: watcher.looks or task.done())
            yield watcher
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_watcher_reports_new_epochs_only(dataset: str) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    stream.commit(1)

    async def run() -> None:
        before = lance.dataset(dataset).version
        async with watching(dataset) as watcher:
            await watcher.keeps_quiet()
            stream.commit(2)
            told = await watcher.has(1)
            committed = told.pop("committedAt")
            assert datetime.fromisoformat(committed).tzinfo
            assert told == {
                "uri": dataset,
                "queryId": "flights",
                "epoch": 2,
                "version": before + 1,
                "rows": 3,
                "epochs": 1,
                "fromEpoch": 1,
                "fromVersion": before,
                "rowsExact": True,
            }
            await watcher.keeps_quiet()
            stream.commit(7)  # those between were empty
            told = await watcher.has(2)
            assert (told["fromEpoch"], told["epoch"], told["epochs"]) == (2, 7, 1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("condition", "commits", "rows"),
    [({"every_epochs": 3}, 3, 9), ({"every_rows": 7}, 3, 9), ({"every_rows": 3}, 1, 3)],
)
def test_event_comes_when_its_condition_is_met(
    dataset: str, condition: dict[str, int], commits: int, rows: int
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, **condition) as watcher:
            for time_ in (1, 2):
                for number in range(commits):
                    await watcher.keeps_quiet()
                    stream.commit(1 + (time_ - 1) * commits + number)
                told = await watcher.has(time_)
                assert (told["rows"], told["epochs"]) == (rows, commits)
                assert told["epoch"] - told["fromEpoch"] == commits

    asyncio.run(run())


def test_folds_and_a_release_change_nothing(dataset: str) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, every_rows=60) as watcher:
            for number in range(1, 20):
                stream.commit(number)
            stream.release()
            await watcher.keeps_quiet()
            checkpoint = Checkpoint("/checkpoint", "checkpoint-id", planned=19, committed=19)
            commit(claim(dataset, checkpoint), dataset, 20)
            told = await watcher.has(1)
            assert (told["rows"], told["epochs"], told["rowsExact"]) == (60, 20, True)

    asyncio.run(run())


def test_watcher_waits_for_the_dataset_and_the_query(tmp_path: Path) -> None:
    uri = str(tmp_path / "flights.lance")

    async def run() -> None:
        async with watching(uri) as watcher:
            await watcher.keeps_quiet()
            lance.write_dataset(ROWS, uri)
            await watcher.keeps_quiet()
            Stream(uri).commit(0)
            told = await watcher.has(1)
            assert (told["fromVersion"], told["fromEpoch"], told["epoch"]) == (0, -1, 0)
            assert (told["rows"], told["rowsExact"]) == (3, True)

    asyncio.run(run())


def test_a_restart_goes_on_where_the_last_event_ended(dataset: str, supervisor: Supervisor) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)) as watcher:
            stream.commit(1)
            first = await watcher.has(1)
            await until("it is kept", lambda: supervisor.kept["flights", KEY]["epoch"] == 1)
        async with watching(dataset, assets=("flights",)) as watcher:
            await watcher.keeps_quiet()
        stream.commit(2)
        stream.commit(3)
        async with watching(dataset, assets=("flights",)) as watcher:
            told = await watcher.has(1)
            assert (told["fromEpoch"], told["epoch"], told["rows"]) == (1, 3, 6)
            assert told["fromVersion"] == first["version"]
            await watcher.keeps_quiet()

    asyncio.run(run())


def test_epochs_between_the_first_start_and_a_restart_give_an_event(
    dataset: str, supervisor: Supervisor
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)):
            pass
        stream.commit(1)
        async with watching(dataset, assets=("flights",)) as watcher:
            assert (await watcher.has(1))["fromEpoch"] == 0
        async with watching(dataset, assets=("flights",), every_rows=5) as watcher:
            await watcher.keeps_quiet()
            assert len(supervisor.kept) == 2, "each condition has its own"

    asyncio.run(run())


def test_event_that_may_not_have_been_delivered_is_sent_again(
    dataset: str, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    monkeypatch.setattr(module, "_HANDED_OVER", 3600)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)) as watcher:
            stream.commit(1)
            first = await watcher.has(1)
        async with watching(dataset, assets=("flights",)) as watcher:
            assert await watcher.has(1) == first

    asyncio.run(run())


def test_assets_of_one_watcher_share_the_last_reported_mark(
    dataset: str, supervisor: Supervisor
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, assets=("a", "b")) as watcher:
            stream.commit(1)
            await watcher.has(1)
            await until(
                "both are kept",
                lambda: [supervisor.kept[name, KEY]["epoch"] for name in "ab"] == [1, 1],
            )
        stream.commit(2)
        async with watching(dataset, assets=("c", "b")) as watcher:
            assert (await watcher.has(1))["fromEpoch"] == 1

    asyncio.run(run())


def test_a_state_store_that_fails_is_survived(
    dataset: str, supervisor: Supervisor, shown: Shown
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        supervisor.failures = 1_000_000
        async with watching(dataset, assets=("flights",)) as watcher:
            stream.commit(1)
            # Nothing since the first look is lost while the store is asked in vain.
            assert (await watcher.has(1))["fromEpoch"] == 0
            asked = supervisor.asked
            stream.commit(2)
            assert (await watcher.has(2))["fromEpoch"] == 1
            await until("it is kept", lambda: supervisor.asked > asked)
            supervisor.failures = 0
            stream.commit(3)
            await watcher.has(3)
            await until("it is kept", lambda: supervisor.kept)

    asyncio.run(run())
    text = shown()
    assert "Could not read" in text
    assert "Could not keep" in text
    assert "the API server is away" in text


def test_a_state_store_that_fails_for_a_moment_is_asked_again(
    dataset: str, supervisor: Supervisor
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)):
            pass
        stream.commit(1)
        supervisor.failures = 2
        async with watching(dataset, assets=("flights",)) as watcher:
            assert (await watcher.has(1))["fromEpoch"] == 0

    asyncio.run(run())


def test_foreign_state_in_the_store_is_ignored(dataset: str, supervisor: Supervisor) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    supervisor.kept["flights", KEY] = {"something": "else"}

    async def run() -> None:
        async with watching(dataset, assets=("flights",)) as watcher:
            await until("it gives up", lambda: supervisor.asked >= 3)
            await watcher.keeps_quiet()
            stream.commit(1)
            assert (await watcher.has(1))["epoch"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("condition", [{"every_rows": 1_000_000}, {"every_epochs": 2}])
def test_versions_that_are_gone_make_it_a_lower_bound(
    dataset: str, supervisor: Supervisor, condition: dict[str, int]
) -> None:
    stream = Stream(dataset)
    stream.commit(0)

    async def run() -> None:
        async with watching(dataset, assets=("flights",), **condition):
            pass
        stream.commit(1)
        stream.commit(2)
        stream.release()
        lance.dataset(dataset).cleanup_old_versions(timedelta(0))
        async with watching(dataset, assets=("flights",), **condition) as watcher:
            told = await watcher.has(1)
            assert (told["fromEpoch"], told["epoch"]) == (0, 2)
            assert (told["rows"], told["epochs"], told["rowsExact"]) == (0, 1, False)
            await watcher.keeps_quiet()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("condition", "advance", "met", "exact"),
    [
        ({}, Advance(Position(5, 1), Position(5, 1)), False, True),
        ({}, Advance(Position(5, 1), Position(6, 2), 1, 3), True, True),
        ({"epochs": 2}, Advance(Position(5, 1), Position(6, 9), 1, 3), False, True),
        # Gone, but every number was seen: nothing can be missing.
        ({"rows": 10}, Advance(Position(5, 1), Position(9, 3), 2, 6, missing=1), False, True),
        ({"rows": 10}, Advance(Position(5, 1), Position(9, 1), 0, 0, missing=3), False, True),
        ({"rows": 10}, Advance(Position(5, 1), Position(9, 3), 1, 3, missing=1), True, False),
        ({"epochs": 3}, Advance(Position(5, 1), Position(9, 3), 1, 3, missing=1), False, False),
        ({"epochs": 2}, Advance(Position(5, 1), Position(9, 3), 1, 3, missing=1), True, False),
        # A new numbering.
        ({"epochs": 1}, Advance(Position(5, 7), Position(9, -1, 1)), False, True),
        ({"epochs": 1}, Advance(Position(5, 7), Position(9, 0, 1), 1, 3), True, True),
        ({"epochs": 1}, Advance(Position(5, 7), Position(9, -1, 1), missing=2), False, False),
        ({"rows": 10}, Advance(Position(5, 7), Position(9, -1, 1), missing=2), False, False),
        ({"rows": 10}, Advance(Position(5, 7), Position(9, 0, 1), missing=2), True, False),
        ({"epochs": 2}, Advance(Position(5, 7), Position(9, 1, 1), missing=2), True, False),
    ],
)
def test_advance_condition_is_met_by_its_numbers(
    condition: dict[str, int], advance: Advance, met: bool, exact: bool
) -> None:
    assert AdvanceCondition(**condition).is_met(advance) is met
    assert advance.exact is exact


@pytest.mark.parametrize("given", [None, [], {}, {"version": 1}, "text", {"version": "x"}])
def test_a_position_is_read_or_refused(given: Any) -> None:
    made = Position(4, 3, 2, 1, "run")
    assert Position.read_whole(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(ValueError, match=f"^{re.escape(repr(given))} "):
        Position.read_whole(given)


def test_a_new_numbering_counts_as_an_advance(dataset: str) -> None:
    stream = Stream(dataset)
    for number in range(4):
        stream.commit(number)
    stream.release()

    async def run() -> None:
        async with watching(dataset) as watcher:
            checkpoint = Checkpoint("/another", "another-id")
            commit(claim(dataset, checkpoint, CommitPolicy(new_generation=True)), dataset, 0)
            told = await watcher.has(1)
            assert (told["fromEpoch"], told["epoch"], told["epochs"]) == (3, 0, 1)
            await watcher.keeps_quiet()

    asyncio.run(run())


def test_recreated_dataset_gives_an_event_from_its_first_epoch(
    dataset: str, supervisor: Supervisor
) -> None:
    stream = Stream(dataset)
    for number in range(4):
        stream.commit(number)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)) as watcher:
            shutil.rmtree(dataset)
            await watcher.keeps_quiet()
            lance.write_dataset(ROWS, dataset)
            Stream(dataset).commit(0)
            told = await watcher.has(1)
            assert (told["fromEpoch"], told["epoch"], told["rows"]) == (-1, 0, 3)
            await watcher.keeps_quiet()
            await until("it is kept", lambda: supervisor.kept["flights", KEY]["epoch"] == 0)
        shutil.rmtree(dataset)
        lance.write_dataset(ROWS, dataset)
        for _ in range(9):
            lance.dataset(dataset).update_config({"some": "change"})
        commit(claim(dataset, Checkpoint("/checkpoint", "checkpoint-id")), dataset, 0)
        async with watching(dataset, assets=("flights",)) as watcher:
            told = await watcher.has(1)
            assert (told["fromVersion"], told["epochs"], told["rows"]) == (0, 1, 3)

    asyncio.run(run())


def test_long_history_is_read_in_parts_and_each_version_once(
    dataset: str, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 4)
    stream = Stream(dataset)
    stream.commit(0)
    failing, read = {"times": 2}, []
    properties = LanceDatasetPort.properties

    def unsteady(port: LanceDatasetPort, version: int) -> Any:
        if isinstance(port, _RememberingPort):
            if version == 20 and failing["times"]:
                failing["times"] -= 1
                raise module.LanceStreamError("the store is away")
            read.append(version)
        return properties(port, version)

    async def run() -> None:
        async with watching(dataset, assets=("flights",)):
            pass
        for number in range(1, 30):
            stream.commit(number)
        stream.release()
        monkeypatch.setattr(LanceDatasetPort, "properties", unsteady)
        async with watching(dataset, assets=("flights",)) as watcher:
            told = await watcher.has(1)
            assert (told["rows"], told["epochs"]) == (87, 29)
            await watcher.keeps_quiet()
        assert failing["times"] == 0
        assert len(read) == len(set(read))

    asyncio.run(run())


def test_terminal_error_is_logged_once_and_the_watcher_keeps_polling(
    dataset: str, shown: Shown
) -> None:
    key = "spark.lance.streaming.owner.flights"
    lance.dataset(dataset).update_config({key: json.dumps({"protocol": 99})})
    asked = []
    latest = LanceDatasetPort.latest

    async def run() -> None:
        task = asyncio.ensure_future(Watcher(trigger(dataset)).run())
        await until("looks", lambda: len(asked) > 4 or task.done())
        assert not task.done(), "Airflow would start it anew at once, without a pause"
        task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceDatasetPort, "latest", lambda p: asked.append(1) or latest(p))
        asyncio.run(run())
    assert shown().count("protocol 99") == 1


def test_serializes_all_it_needs_and_is_recognised_by_it(dataset: str) -> None:
    for condition in ({}, {"every_epochs": 3}, {"every_rows": 10}):
        made = trigger(dataset, **condition)
        path, kwargs = made.serialize()
        again = import_string(path)(**json.loads(json.dumps(kwargs)))
        assert again.serialize() == made.serialize()
        assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*again.serialize())
    assert AssetWatcher(name="flights", trigger=trigger(dataset)).trigger
    assert trigger(dataset).shared_stream_key() is None


@pytest.mark.parametrize(
    "given",
    [
        {"every_epochs": 1, "every_rows": 1},
        {"every_epochs": 0},
        {"every_rows": -1},
        {"every_rows": True},
        {"every_epochs": 1.5},
        {"query_id": "no query id"},
        {"poll_interval": 0},
    ],
)
def test_contradictory_arguments_are_refused_when_the_dag_is_parsed(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        trigger("/absent.lance", **given)
