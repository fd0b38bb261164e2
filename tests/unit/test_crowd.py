"""A driver among many other writers of its dataset: from which version it sends its commits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_lance.exceptions import CommitPreemptedError
from airflow_provider_lance.protocol import backoff
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import Append
from tests.support.drivers import SparkLike, World, lance_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return lance_world(str(tmp_path / "t.lance"))


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each append that is sent: how many versions its handle was behind the newest."""
    found: list[int] = []
    commit = LanceDatasetPort.commit

    def counted(port: LanceDatasetPort, change: Any, properties: Any = None) -> LanceDatasetPort:
        if isinstance(change, Append):
            found.append(port.latest().version - port.version)
        return commit(port, change, properties)

    monkeypatch.setattr(LanceDatasetPort, "commit", counted)
    return found


def others(world: World, commits: int) -> None:
    """Let others commit what changes no row."""
    port: Any = world.open()
    for number in range(commits):
        port.dataset.update_config({"other": str(number)})


def test_an_append_that_was_preempted_is_sent_again_from_the_newest_version(
    world: World, behind: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SparkLike(world, {}, policy=CommitPolicy(backoff=Backoff(attempts=3, first=0.01)))
    driver.step()
    counted, sent = LanceDatasetPort.commit, []

    def preempted(port: LanceDatasetPort, change: Any, properties: Any = None) -> LanceDatasetPort:
        sent.append(change)
        if len(sent) == 1:
            raise CommitPreemptedError("another commit landed first")
        return counted(port, change, properties)

    monkeypatch.setattr(LanceDatasetPort, "commit", preempted)
    waits = SimpleNamespace(sleep=lambda seconds: others(world, 30))
    monkeypatch.setattr(backoff, "time", waits)  # not time.sleep: other tests' threads sleep too
    driver.step()
    assert behind[1:] == [0], "however much others committed while it waited"
    assert len(world.rows()) == 6


def test_a_driver_among_many_looks_before_it_sends(world: World, behind: list[int]) -> None:
    driver = SparkLike(world, {})
    driver.step()
    del behind[:]
    for _ in range(3):
        others(world, 20)
        driver.step()
    others(world, 2)
    driver.step()
    others(world, 2)
    driver.step()
    assert behind == [20, 0, 0, 0, 2], "alone, it spares the look"
    assert len(world.rows()) == 18


def test_a_commit_that_is_preempted_again_and_again_reads_no_version_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SparkLike(world, {})
    driver.step()
    commit, sent, read = LanceDatasetPort.commit, [], []

    def preempted(port: LanceDatasetPort, change: Any, properties: Any = None) -> LanceDatasetPort:
        sent.append(change)
        if len(sent) <= 5:
            others(world, 1)
            raise CommitPreemptedError("another commit landed first")
        return commit(port, change, properties)

    transaction = LanceDatasetPort.transaction

    def counted(port: LanceDatasetPort, version: int) -> Any:
        read.append(version)
        return transaction(port, version)

    monkeypatch.setattr(LanceDatasetPort, "commit", preempted)
    monkeypatch.setattr(LanceDatasetPort, "transaction", counted)
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=lambda seconds: others(world, 20)))
    driver.step()
    assert len(read) == 5, "the version that landed first, of each attempt"
    assert len(set(read)) == 5
    assert len(world.rows()) == 6
