"""Cleanup beside consumers, on real datasets: what a live one needs stays, and is named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.maintenance.cleanup import (
    Cleaned,
    Retention,
    clean_up,
    explain_cleanup,
)
from airflow_provider_lance.maintenance.run import summary_lines
from airflow_provider_lance.protocol.consumers import CONSUMER_RETENTION
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.consumers import READER, leave, spoil
from tests.support.maintenance import append, make, numbers, run, stream

NOW = Retention(older_than=0, keep_active=0)


def cleaned(uri: str, retention: Retention = NOW) -> Cleaned:
    """Clean up, and check that the explanation said the same."""
    told = explain_cleanup(open_dataset(uri), retention)
    done = clean_up(open_dataset(uri), retention)
    assert (told.versions, told.held) == (done.versions, done.held)
    assert len(told.warnings) == len(done.warnings)
    return done


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        ({}, [4, 5, 6, 7]),
        ({"index": 0}, [3, 4, 5, 6, 7]),
        ({"index": 4, "snapshot": True}, [4, 5, 6, 7]),
    ],
)
def test_what_a_consumer_needs_stays(
    tmp_path: Path, offset: dict[str, Any], left: list[int]
) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 4, **offset)
    done = cleaned(uri)
    assert numbers(uri) == left
    assert done.held == {READER: len(left) - 1}, "the newest version stays in any case"
    assert (done.versions, done.warnings) == (7 - len(left), ())


def test_the_consumer_that_is_furthest_behind_decides(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 5, consumer_id="near")
    leave(uri, 3, consumer_id="far")
    assert cleaned(uri).held == {"far": 5, "near": 3}
    assert numbers(uri) == [3, 4, 5, 6, 7, 8]


def test_a_consumer_at_the_newest_version_holds_nothing_back(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 6)
    leave(uri, 7)
    assert cleaned(uri).held == {READER: 1}
    assert numbers(uri) == [7, 8]
    clean = cleaned(make(tmp_path, 3, name="other.lance"))
    assert (clean.held, clean.warnings) == ({}, ())


@pytest.mark.parametrize("ago", [0, CONSUMER_RETENTION - 60, CONSUMER_RETENTION + 60])
def test_a_position_keeps_versions_for_the_retention(tmp_path: Path, ago: float) -> None:
    uri = make(tmp_path, 6)
    left = leave(uri, 2, ago=ago)
    done = cleaned(uri)
    if ago <= CONSUMER_RETENTION:
        assert (numbers(uri), done.warnings) == ([2, 3, 4, 5, 6, 7], ())
        return
    assert numbers(uri) == [7]
    assert done.held == {}
    [warning] = done.warnings
    assert READER in warning
    assert "version 2" in warning
    assert left.at.isoformat(timespec="seconds") in warning
    assert f"lance-stream forget-consumer {uri} --consumer {READER}" in warning


def test_the_retention_is_an_option(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 2, ago=3600)
    report = run(uri, steps=["cleanup"], olderThan=0, consumerRetention=7200)
    assert report.done["cleanup"]["held"] == {READER: 5}
    assert numbers(uri)[0] == 2
    report = run(uri, steps=["cleanup"], olderThan=0, consumerRetention=1800)
    assert numbers(uri) == [7]
    assert "warnings" not in report.done["cleanup"]
    lines = list(summary_lines(report.to_json()))
    assert [line for line in lines if line.startswith("Warning: Versions are no longer kept")]


def test_a_run_that_is_skipped_names_who_holds_versions_back(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 1)
    report = run(uri, steps=["cleanup"], olderThan=0)
    assert "'hourly' holds back 6" in report.skipped["cleanup"]
    spoil(uri, "{")
    report = run(uri, steps=["cleanup"], olderThan=0)
    assert "'hourly' holds back 7" in report.skipped["cleanup"]
    assert report.warnings


def test_a_record_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 5, consumer_id="other")
    spoil(uri, '{"protocol": 2}')
    done = cleaned(uri)
    assert (done.versions, numbers(uri)) == (0, [*range(1, 9)])
    assert done.held == {READER: 7, "other": 3}
    [warning] = done.warnings
    assert "'hourly'" in warning
    assert "protocol 2" in warning


def test_consumers_and_streams_both_keep_what_they_need(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    driver = stream(uri)
    for _ in range(3):
        driver.step()
    before = open_dataset(uri).version
    leave(uri, 2)
    done = cleaned(uri)
    assert done.folded == ("orders",)
    assert numbers(uri) == [*range(2, before + 3)]


def test_what_a_consumer_needs_can_still_be_read(tmp_path: Path) -> None:
    uri = make(tmp_path, 6)
    leave(uri, 3)
    lance.dataset(uri).optimize.compact_files()
    cleaned(uri)
    kept = lance.dataset(uri, version=3).to_table().num_rows
    assert (kept, min(numbers(uri))) == (30, 3)
    for version in (4, 5, 6):
        assert lance.dataset(uri).read_transaction(version) is not None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happened_exactly_what_live_consumers_need_stays(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    uri = make(tmp_path, 3)
    needed: dict[str, int] = {}
    for number in range(dice.randrange(5, 25)):
        match dice.randrange(5):
            case 0:
                append(uri, 1000 + number * 10)
            case 1:
                lance.dataset(uri).delete(f"id = {dice.randrange(30)}")
            case 2:
                lance.dataset(uri).optimize.compact_files()
            case _:
                name, version = dice.choice("abcd"), dice.choice(numbers(uri))
                index = dice.choice([None, 0, 3])
                ago = dice.choice([0, CONSUMER_RETENTION - 60, CONSUMER_RETENTION + 60])
                left = leave(uri, version, consumer_id=name, ago=ago, index=index)
                needed.pop(name, None)
                if ago < CONSUMER_RETENTION:
                    needed[name] = left.offset.oldest_needed
        if dice.random() < 0.2:
            before = numbers(uri)
            cleaned(uri)
            oldest = min(needed.values(), default=before[-1])
            assert numbers(uri) == [each for each in before if each >= min(oldest, before[-1])]
