"""The wait condition by table, the follower and the trigger on real datasets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from airflow.sdk.configuration import clear_secrets_backends_cache
from airflow.sdk.module_loading import import_string

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.model import NO_EPOCH, Watermark
from airflow_provider_lance.triggers.condition import EpochCondition
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.watermark_follower import Follower, OnMissing

from .conftest import ROWS, SECRET, AddConnection, Shown, Stream

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("condition", "epoch", "committed", "met"),
    [
        ({"epoch": 5}, 4, NOON, False),
        ({"epoch": 5}, 5, NOON, True),
        ({"epoch": 5}, 6, None, True),
        ({"epoch": 0}, NO_EPOCH, None, False),
        ({"since": NOON}, 3, NOON, False),
        ({"since": NOON}, 3, NOON + MINUTE, True),
        ({"since": NOON}, 3, NOON - MINUTE, False),
        ({"since": NOON}, 3, None, False),
        ({"max_age": MINUTE}, 3, NOON - MINUTE, True),
        ({"max_age": MINUTE}, 3, NOON - 2 * MINUTE, False),
        ({"max_age": MINUTE}, 3, None, False),
        ({"max_age": MINUTE}, NO_EPOCH, NOON, False),
    ],
)
def test_epoch_condition_is_met_by_epoch_and_age(
    condition: dict[str, Any], epoch: int, committed: datetime | None, met: bool
) -> None:
    watermark = Watermark(epoch, 7, committed.isoformat() if committed else None)
    wanted = EpochCondition(**condition)
    assert wanted.is_met(watermark, NOON) is met
    plain = json.loads(json.dumps(wanted.to_json()))
    assert EpochCondition.from_json(plain) == wanted


@pytest.mark.parametrize(
    "condition",
    [{}, {"epoch": 1, "since": NOON}, {"epoch": -1}, {"max_age": timedelta(0)}],
)
def test_a_condition_without_meaning_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        EpochCondition(**condition)


def follower(uri: str, on_missing: OnMissing = OnMissing.WAIT) -> Follower:
    return Follower(LanceHook(lance_conn_id=None), uri, "flights", on_missing)


def test_the_follower_sees_epochs_as_they_land(dataset: str) -> None:
    follow = follower(dataset)
    assert follow.look() is None, "no trace of the query yet"
    stream = Stream(dataset)
    stream.commit(0)
    first = follow.look()
    stream.commit(1)
    second = follow.look()
    assert first
    assert second
    assert (first.epoch, second.epoch) == (0, 1)
    assert first.version < second.version
    assert first.committed_at


def test_the_follower_waits_for_a_dataset(tmp_path: Path) -> None:
    follow = follower(str(tmp_path / "flights.lance"))
    assert follow.look() is None
    lance.write_dataset(ROWS, tmp_path / "flights.lance")
    Stream(str(tmp_path / "flights.lance")).commit(0)
    seen = follow.look()
    assert seen
    assert seen.epoch == 0


@pytest.mark.parametrize("looked_between", [True, False])
def test_follower_continues_on_a_recreated_dataset(dataset: str, looked_between: bool) -> None:
    follow, stream = follower(dataset), Stream(dataset)
    for epoch in range(4):
        stream.commit(epoch)
    before = follow.look()
    assert before
    shutil.rmtree(dataset)
    if looked_between:
        with suppress(StorageUnavailableError):  # what Lance says of a handle without its files
            follow.look()
        assert follow.look() is None
    lance.write_dataset(ROWS, dataset)
    Stream(dataset).commit(0)
    after = follow.look()
    assert after
    assert (before.epoch, after.epoch) == (3, 0)


def test_the_follower_fails_by_choice(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(DatasetNotFoundError):
        follower(str(tmp_path / "absent.lance"), OnMissing.FAIL).look()
    Stream(dataset, "other").commit(0)
    with pytest.raises(SpecError, match=r"no trace .* queries there: \['other'\]"):
        follower(dataset, OnMissing.FAIL).look()


def trigger(uri: str, **changes: Any) -> LanceEpochTrigger:
    arguments = {
        "uri": uri,
        "query_id": "flights",
        "condition": EpochCondition(epoch=1).to_json(),
        "lance_conn_id": None,
        "poll_interval": 0.05,
    }
    return LanceEpochTrigger(**(arguments | changes))


def first_event(waiting: LanceEpochTrigger, *meanwhile: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        event = asyncio.ensure_future(anext(aiter(waiting.run())))
        for act in meanwhile:
            await asyncio.sleep(0.3)
            assert not event.done(), "fired too early"
            act()
        return (await asyncio.wait_for(event, 20)).payload  # type: ignore[no-any-return]

    return asyncio.run(run())


def test_trigger_fires_when_the_epoch_is_committed(dataset: str) -> None:
    stream = Stream(dataset)
    payload = first_event(trigger(dataset), lambda: stream.commit(0), lambda: stream.commit(1))
    assert payload["status"] == "met"
    assert payload["watermark"]["epoch"] == 1
    assert set(payload["watermark"]) == {"epoch", "version", "committedAt"}
    json.dumps(payload)


def test_waits_for_a_missing_dataset(tmp_path: Path) -> None:
    uri = str(tmp_path / "flights.lance")

    def create() -> None:
        lance.write_dataset(ROWS, uri)
        stream = Stream(uri)
        stream.commit(0)
        stream.commit(1)

    assert first_event(trigger(uri), create)["watermark"]["epoch"] == 1


def test_a_missing_dataset_fails_by_choice(tmp_path: Path) -> None:
    payload = first_event(trigger(str(tmp_path / "absent.lance"), on_missing="fail"))
    assert payload["status"] == "error"
    assert payload["error"] == "DatasetNotFoundError"
    assert "absent.lance" in payload["message"]


def test_a_newer_protocol_is_an_error_event(dataset: str) -> None:
    owner = json.dumps({"protocol": 99})
    lance.dataset(dataset).update_config({"spark.lance.streaming.owner.flights": owner})
    payload = first_event(trigger(dataset))
    assert payload["error"] == "ProtocolVersionError"


def test_a_store_that_does_not_answer_is_asked_again(dataset: str) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    stream.commit(1)
    versions = Path(dataset) / "_versions"
    manifests = {path.name: path.read_bytes() for path in versions.iterdir()}
    for path in versions.iterdir():
        path.write_bytes(b"not a manifest")

    def answer() -> None:
        for name, content in manifests.items():
            (versions / name).write_bytes(content)

    assert first_event(trigger(dataset), answer)["watermark"]["epoch"] == 1


def test_trigger_logs_each_change_once(dataset: str, shown: Shown) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    versions = Path(dataset) / "_versions"
    manifests = {path.name: path.read_bytes() for path in versions.iterdir()}
    for path in versions.iterdir():
        path.write_bytes(b"not a manifest")

    def answer() -> None:
        for name, content in manifests.items():
            (versions / name).write_bytes(content)

    looks = []
    latest = LanceDatasetPort.latest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceDatasetPort, "latest", lambda p: looks.append(1) or latest(p))
        first_event(trigger(dataset), answer, lambda: stream.commit(1))
    assert len(looks) > 2
    text = shown()
    assert text.count("did not answer") == 1
    assert text.count("Waiting for epoch 1. epoch=0 ") == 1
    assert text.count("Waiting for epoch 1. epoch=1 ") == 1


def test_slow_store_does_not_block_the_triggerer(
    tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch, add_connection: AddConnection
) -> None:
    stream = Stream(dataset)
    stream.commit(0)
    stream.commit(1)
    # The connection is read from a pipe, where every reader waits for the writer below.
    pipe, done = tmp_path / "slow.json", threading.Event()
    os.mkfifo(pipe)
    kwargs = json.dumps({"connections_file_path": str(pipe)})
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", kwargs)
    clear_secrets_backends_cache()

    def answer() -> None:
        while not done.wait(0.5):
            with suppress(OSError):  # nobody reads
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(writer, b'{"warehouse": {"conn_type": "lance"}}')
                os.close(writer)

    async def count_ticks() -> int:
        event = asyncio.ensure_future(
            anext(aiter(trigger(dataset, lance_conn_id="warehouse").run()))
        )
        ticks = 0
        while not event.done():
            ticks += 1
            await asyncio.sleep(0.02)
        assert (await event).payload["status"] == "met"
        return ticks

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        assert asyncio.run(count_ticks()) > 10
    finally:
        done.set()
        answering.join()


def test_serializes_all_it_needs_and_no_secret(add_connection: AddConnection) -> None:
    add_connection("warehouse", conn_type="lance", password=SECRET)
    made = trigger("flights.lance", lance_conn_id="warehouse", on_missing="fail")
    path, kwargs = made.serialize()
    again = import_string(path)(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == made.serialize()
    assert kwargs["lance_conn_id"] == "warehouse"
    assert SECRET not in str(kwargs)
