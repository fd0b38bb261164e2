"""Sensor, trigger and watcher wait until a consumer has read, on real datasets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.sensors.epoch import LanceEpochSensor
from airflow_provider_lance.triggers import event as event_module
from airflow_provider_lance.triggers.consumer_state import ConsumerCondition
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger
from tests.support.consumers import READER, leave, spoil
from tests.support.maintenance import append, make


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a dataset of five versions."""
    return make(tmp_path, 5)


def sensor(uri: str, **changes: Any) -> LanceEpochSensor:
    arguments = {
        "task_id": "wait",
        "uri": uri,
        "consumer_id": READER,
        "lance_conn_id": None,
        "poke_interval": 0.05,
        "timeout": 0.2,
        "deferrable": False,
    }
    return LanceEpochSensor(**(arguments | changes))


def run(task: LanceEpochSensor) -> Any:
    dag_run = SimpleNamespace(start_date=None, run_after=datetime.now(UTC))
    return task.execute({"dag_run": dag_run})  # type: ignore[typeddict-item]


# ---------------------------------------------------------------------------------------- sensor


@pytest.mark.parametrize(
    ("offset", "version", "met"),
    [
        ({}, 3, True),
        ({}, " 2 ", True),
        ({}, 4, False),
        ({"index": 0}, 2, True),
        ({"index": 5}, 3, False),
        ({"index": 5, "snapshot": True}, 1, True),
        ({"index": 5, "snapshot": True}, 3, False),
    ],
)
def test_a_version_that_is_read_or_not(
    uri: str, offset: dict[str, Any], version: int | str, met: bool
) -> None:
    left = leave(uri, 3, **offset)
    task = sensor(uri, version=version)
    if not met:
        with pytest.raises(AirflowSensorTimeout):
            run(task)
        return
    assert run(task) == {
        "version": 3,
        "index": offset.get("index"),
        "snapshot": bool(offset.get("snapshot")),
        "writtenAt": left.at.isoformat(),
        "newestVersion": 6,
    }


def test_versions_without_rows_are_not_waited_for(uri: str) -> None:
    """A position, a compaction and an index make versions that no consumer reads."""
    leave(uri, 5)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).optimize.compact_files()
    newest = lance.dataset(uri).version
    assert run(sensor(uri))["newestVersion"] == newest
    assert run(sensor(uri, version=newest))["version"] == 5


def test_a_version_of_the_future_is_waited_for(uri: str) -> None:
    leave(uri, 5)
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(uri, version=7))
    append(uri, 900)
    leave(uri, 7)
    assert run(sensor(uri, version=7))["version"] == 7


def test_without_a_version_it_is_the_newest_at_the_first_poke(uri: str) -> None:
    leave(uri, 4)
    task = sensor(uri)
    context: Any = {"dag_run": SimpleNamespace()}
    assert not task.poke(context).is_done
    append(uri, 900)  # version 7, which is not waited for
    assert not task.poke(context).is_done
    leave(uri, 5)
    done = task.poke(context)
    assert done.is_done
    assert done.xcom_value["version"] == 5  # type: ignore[index]


def test_a_missing_consumer_or_dataset_waits_or_fails(uri: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.lance")
    for place in (uri, absent):
        with pytest.raises(AirflowSensorTimeout):
            run(sensor(place))
    with pytest.raises(AirflowFailException, match="DatasetNotFoundError"):
        run(sensor(absent, on_missing="fail"))
    leave(uri, 1, consumer_id="other")
    with pytest.raises(AirflowFailException, match=r"'hourly' has left no position.*\['other'\]"):
        run(sensor(uri, on_missing="fail"))


def test_a_position_that_cannot_be_read_fails(uri: str) -> None:
    spoil(uri, "{")
    with pytest.raises(AirflowFailException, match="ProtocolVersionError"):
        run(sensor(uri))


def test_it_defers_with_the_version_of_its_first_poke(uri: str) -> None:
    leave(uri, 4)
    with pytest.raises(TaskDeferred) as deferred:
        run(sensor(uri, deferrable=True, timeout=90, poke_interval=3))
    assert deferred.value.timeout == timedelta(seconds=90)
    waiting = deferred.value.trigger
    assert isinstance(waiting, LanceEpochTrigger)
    assert waiting.serialize()[1] == {
        "uri": uri,
        "query_id": None,
        "condition": {"version": 6},
        "consumer_id": READER,
        "lance_conn_id": None,
        "on_missing": "wait",
        "poll_interval": 3,
    }
    seen = {"version": 6, "index": None}
    event = {"status": "met", "position": seen}
    assert sensor(uri).execute_complete({}, event) == seen  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"query_id": "orders"}, "exactly one of query_id"),
        ({"consumer_id": None}, "exactly one of query_id"),
        ({"epoch": 1}, "has no epochs here"),
        ({"advanced": True}, "has no epochs here"),
        ({"max_age": timedelta(1)}, "has no epochs here"),
        ({"version": 0}, "version must be a whole number, got 0"),
        ({"version": "soon"}, "version must be a whole number, got 'soon'"),
        ({"consumer_id": "a b"}, "'a b'"),
        ({"mode": "reschedule"}, "each poke is a new start"),
        ({"consumer_id": None, "query_id": "orders", "epoch": 1, "version": 2}, "version=2"),
    ],
)
def test_contradictions_are_refused_when_the_dag_is_parsed(
    wanted: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        sensor("/absent.lance", **wanted)


def test_what_can_be_rescheduled_is_not_refused() -> None:
    sensor("/absent.lance", mode="reschedule", version=3)
    sensor("/absent.lance", mode="reschedule", deferrable=True)
    sensor("/absent.lance", version="{{ params.version }}")


# --------------------------------------------------------------------------------------- trigger


async def until(what: str, condition: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


async def looked(monkeypatch: pytest.MonkeyPatch, count: int = 3) -> None:
    """Wait for some more polls."""
    seen = []
    real = event_module.ConsumerReader.read

    def read(reader: Any, snapshot: Any) -> Any:
        seen.append(snapshot.version)
        return real(reader, snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(event_module.ConsumerReader, "read", read)
        await until("polls", lambda: len(seen) >= count)


def waiting(uri: str, version: int | None = None, **changes: Any) -> LanceEpochTrigger:
    arguments = {
        "uri": uri,
        "consumer_id": READER,
        "condition": ConsumerCondition(version).to_json(),
        "lance_conn_id": None,
        "poll_interval": 0.02,
    }
    return LanceEpochTrigger(**(arguments | changes))


async def first_event(trigger: LanceEpochTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("no event")


def test_the_trigger_fires_once_the_version_is_read(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> None:
        flight = asyncio.ensure_future(first_event(waiting(uri, 5)))
        leave(uri, 4)
        await looked(monkeypatch)
        assert not flight.done()
        leave(uri, 5)
        event = await asyncio.wait_for(flight, 20)
        assert (event["status"], event["position"]["version"]) == ("met", 5)

    asyncio.run(wait())


def test_the_trigger_takes_the_newest_version_of_a_dataset_that_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t.lance")

    async def wait() -> None:
        flight = asyncio.ensure_future(first_event(waiting(uri)))
        await looked(monkeypatch)
        make(tmp_path, 3)
        leave(uri, 3)
        event = await asyncio.wait_for(flight, 20)
        assert event["position"]["version"] == 3

    asyncio.run(wait())


def test_the_trigger_ends_with_an_error_that_waiting_cannot_solve(uri: str) -> None:
    event = asyncio.run(first_event(waiting(uri, 5, on_missing="fail")))
    assert (event["status"], event["error"]) == ("error", "SpecError")
    spoil(uri, "{")
    event = asyncio.run(first_event(waiting(uri, 5)))
    assert event["error"] == "ProtocolVersionError"
    event = asyncio.run(first_event(waiting(uri, consumer_id=None)))
    assert event["error"] == "SpecError"


def test_sensors_of_consumers_and_queries_share_one_poll(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    real = LanceDatasetPort.latest

    def latest(port: LanceDatasetPort) -> LanceDatasetPort:
        listed.append(port.version)
        return real(port)

    async def wait() -> None:
        triggers = [waiting(uri, 5, consumer_id=f"c{n}", poll_interval=0.2) for n in range(20)]
        condition = {"epoch": 1, "since": None, "maxAge": None}
        triggers += [
            LanceEpochTrigger(
                uri=uri,
                query_id=f"q{n}",
                condition=condition,
                lance_conn_id=None,
                poll_interval=0.2,
            )
            for n in range(20)
        ]
        flights = [asyncio.ensure_future(first_event(each)) for each in triggers]
        began = time.monotonic()
        await until("some polls", lambda: len(listed) >= 4)
        assert len(listed) <= (time.monotonic() - began) / 0.2 + 2
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    monkeypatch.setattr(LanceDatasetPort, "latest", latest)
    asyncio.run(wait())


# --------------------------------------------------------------------------------------- watcher


@asynccontextmanager
async def watching(uri: str) -> Any:
    """Run a watcher until the block ends; yields its events."""
    trigger = LanceEpochEventTrigger(
        uri=uri, consumer_id=READER, lance_conn_id=None, poll_interval=0.02
    )
    events: list[dict[str, Any]] = []

    async def take() -> None:
        async for event in trigger.run():
            events.extend([dict(event.payload)])

    task = asyncio.ensure_future(take())
    try:
        yield events
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_watcher_reports_each_advance_once(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_module, "_HANDED_OVER", 0)
    leave(uri, 2)

    async def watch() -> None:
        async with watching(uri) as events:
            await looked(monkeypatch)
            assert events == [], "what exists at the first poll does not fire"
            left = leave(uri, 4)
            await until("an event", lambda: events)
            assert events == [
                {
                    "uri": uri,
                    "consumerId": READER,
                    "version": 4,
                    "fromVersion": 2,
                    "writtenAt": left.at.isoformat(),
                    "newestVersion": 7,
                }
            ]
            leave(uri, 4)  # refreshed
            leave(uri, 5, index=3)  # in the middle of a version
            leave(uri, 1)  # begun anew
            await looked(monkeypatch)
            assert len(events) == 1
            leave(uri, 5)
            await until("the second event", lambda: len(events) == 2)
            assert (events[1]["fromVersion"], events[1]["version"]) == (1, 5)

    asyncio.run(watch())


def test_the_watcher_waits_for_dataset_and_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_module, "_HANDED_OVER", 0)
    uri = str(tmp_path / "t.lance")

    async def watch() -> None:
        async with watching(uri) as events:
            await looked(monkeypatch)
            make(tmp_path, 3)
            await looked(monkeypatch)
            spoil(uri, "{")
            leave(uri, 3)
            await until("an event", lambda: events)
            assert (events[0]["fromVersion"], events[0]["version"]) == (0, 3)

    asyncio.run(watch())


@pytest.mark.parametrize(
    "wanted",
    [
        {"query_id": "orders"},
        {"consumer_id": None},
        {"every_epochs": 2},
        {"every_rows": 2},
        {"consumer_id": "a b"},
    ],
)
def test_a_watcher_of_both_or_neither_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        LanceEpochEventTrigger(**({"uri": "/a.lance", "consumer_id": READER} | wanted))
