"""The consumers of a dataset: their positions on disk, and the commits that write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    ProtocolVersionError,
)
from airflow_provider_lance.protocol.codec import consumer_ids, key, query_ids
from airflow_provider_lance.protocol.consumers import (
    forget_updates,
    leave_position,
    position_updates,
    read_consumer,
    read_consumers,
)
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset
from tests.support.consumers import READER, leave, position, spoil
from tests.support.drivers import QUICK
from tests.support.maintenance import make

KEY = key("consumer", READER)


def test_a_position_is_read_as_it_was_left(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    left = leave(uri, 2, uri="/data/hourly.lance", index=7, change_feed=True)
    port = open_dataset(uri)
    assert read_consumer(port.config, READER, port.version) == left
    assert read_consumers(port.config, port.version).readable == (left,)
    assert (consumer_ids(port.config), query_ids(port.config)) == ([READER], [])
    assert read_consumer(port.config, "other", port.version) is None


@pytest.mark.parametrize(
    ("offset", "needs", "read_to"),
    [
        ({}, 5, 5),
        ({"index": 0}, 4, 4),
        ({"index": 9}, 4, 4),
        ({"index": 9, "snapshot": True}, 5, 0),
    ],
)
def test_what_a_consumer_needs_and_has_read(
    offset: dict[str, Any], needs: int, read_to: int
) -> None:
    consumer = position(5, **offset)
    assert (consumer.offset.oldest_needed, consumer.read_to) == (needs, read_to)


def test_the_age_of_a_position_that_a_fast_clock_wrote_is_0() -> None:
    consumer = position(5, ago=60)
    assert consumer.age(consumer.at + timedelta(seconds=60)) == 60
    assert consumer.age(consumer.at - timedelta(seconds=60)) == 0


def test_a_time_of_another_zone_is_read_in_utc() -> None:
    config = dict(position_updates(position(1)))
    record = json.loads(str(config[KEY])) | {"at": "2026-11-20T15:00:00+01:00"}
    found = read_consumer({KEY: json.dumps(record)}, READER, 1)
    assert found is not None
    assert found.at == datetime(2026, 11, 20, 14, tzinfo=UTC)
    assert found.at.tzinfo is UTC


def changed(**changes: Any) -> str:
    record = json.loads(str(position_updates(position(3))[KEY]))
    return json.dumps(record | changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", r"holds '3'.*one JSON object"),
        (changed(offset={"version": 0, "timestamp": 1}), "'version'.*holds 0.*from 1 to 3"),
        (changed(offset={"version": 9, "timestamp": 1}), "'version'.*holds 9.*from 1 to 3"),
        (changed(offset=None), "offset is"),
        (changed(at="yesterday"), "at is an ISO 8601 time"),
        (changed(protocol=2), "written with protocol 2.*upgrade"),
        (changed(protocol="1"), "'protocol'.*holds '1'"),
        (changed(offset={"version": 1, "sourceVersion": 2}), "has form 2.*install the release"),
    ],
)
def test_a_record_of_another_form_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ProtocolVersionError, match=said) as refused:
        read_consumer({KEY: text}, READER, 3)
    found = read_consumers({KEY: text, **_config(position(2, consumer_id="b"))}, 3)
    assert [each.consumer_id for each in found.readable] == ["b"]
    assert str(found.unreadable[READER]) == str(refused.value)


def _config(consumer: Any) -> dict[str, str]:
    return {name: str(value) for name, value in position_updates(consumer).items()}


def test_what_a_later_version_adds_is_passed_over() -> None:
    record = json.loads(str(position_updates(position(3))[KEY])) | {"later": {"deep": [1]}}
    assert read_consumer({KEY: json.dumps(record)}, READER, 3) is not None


def test_an_older_position_is_written_too(tmp_path: Path) -> None:
    uri = make(tmp_path, 4)
    leave(uri, 4)
    left = leave(uri, 1)
    port = open_dataset(uri)
    assert read_consumer(port.config, READER, port.version) == left


def test_a_position_is_written_over_what_cannot_be_read(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    spoil(uri, "somebody's")
    left = leave(uri, 1)
    port = open_dataset(uri)
    assert read_consumers(port.config, port.version).readable == (left,)


def test_two_consumers_and_a_writer_are_in_nobodys_way(tmp_path: Path) -> None:
    """All of them commit from the same version."""
    uri = make(tmp_path, 2)
    stale = [open_dataset(uri) for _ in range(3)]
    for port, name in zip(stale, "ab", strict=False):
        port.commit(Configure(position_updates(position(1, consumer_id=name))))
    stale[2].commit(Configure({key("lastEpoch", "orders"): "3"}))
    assert consumer_ids(open_dataset(uri).config) == ["a", "b"]
    with pytest.raises(CommitPreemptedError):
        stale[2].commit(Configure(forget_updates("a")))


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_a_commit_of_unknown_outcome_is_repeated(fault: Fault) -> None:
    dataset = InMemoryDataset()
    dataset.faults.append(fault)
    port = leave_position(dataset.open(), position(1), QUICK)
    assert port.version == dataset.version
    assert read_consumer(port.config, READER, port.version) is not None


def test_a_position_is_repeated_when_another_driver_of_the_consumer_wrote_first() -> None:
    dataset = InMemoryDataset()
    dataset.while_paused = lambda: dataset.open().commit(Configure(_config(position(1))))
    dataset.faults.append(Fault.PAUSED)
    left = position(1, index=4)
    port = leave_position(dataset.open(), left, QUICK)
    assert read_consumer(port.config, READER, port.version) == left


def test_no_position_is_left_in_a_dataset_that_is_gone(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    port = open_dataset(uri)
    Path(uri).rename(tmp_path / "moved.lance")
    with pytest.raises(DatasetNotFoundError):
        leave_position(port, position(1), QUICK)


def test_a_forgotten_consumer_is_gone(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    leave(uri, 1)
    port = open_dataset(uri).commit(Configure(forget_updates(READER)))
    assert read_consumer(port.config, READER, port.version) is None
