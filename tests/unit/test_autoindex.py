"""The sink's own refresh of indices on real datasets: what it covers, how many parts it leaves."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import DatasetOptimizer

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.maintenance.dataset_metrics import (
    IndexPart,
    read_indices,
    uncovered_rows,
)
from airflow_provider_lance.maintenance.indexing import (
    MANY_PARTS,
    parts_to_merge,
    refresh_indices,
)
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.spark import autocompact, autoindex
from airflow_provider_lance.spark.autocompact import AutoCompaction
from airflow_provider_lance.spark.autoindex import IndexRefresh
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.support.drivers import QUERY, SparkLike, World, epoch_rows, lance_world

SOON = 30.0
"""Longer than anything here may take."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def world(uri: str) -> World:
    return lance_world(uri)


@pytest.fixture
def refresh() -> Iterator[IndexRefresh]:
    made = IndexRefresh(QUERY)
    yield made
    made.end(SOON)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def step(driver: SparkLike, refresh: IndexRefresh) -> None:
    """Do what the sink does with one epoch."""
    driver.step()
    committer: Any = driver.committer
    refresh.epoch_done(committer.port, committer.owner)


def uncovered(uri: str) -> dict[str, int]:
    return uncovered_rows(open_dataset(uri))


def expect_rows(world: World, epochs: int) -> None:
    found = Counter(row["id"] for row in world.rows())
    assert found == Counter(row["id"] for n in range(epochs) for row in epoch_rows(n))


# ----------------------------------------------------------------------------------- how it merges


def sizes(*rows: int) -> list[IndexPart]:
    return [IndexPart(each, each) for each in rows]


@pytest.mark.parametrize(
    ("parts", "rows", "most_bytes", "merged"),
    [
        ((), 5, None, 0),
        ((100,), 5, None, 0),
        ((100, 5), 5, None, 1),
        ((100, 10, 5), 5, None, 2),
        ((10, 5), 5, None, 2),
        ((100, 7, 3), 5, None, 2),
        ((100, 40, 40, 40, 9), 5, None, 5),
        ((100, 40, 40, 40, 9), 31, None, 5),
        ((100, 40, 40, 40, 9), 31, 89, 3),
        ((100, 40, 40, 40, 9), 31, 48, 1),
        ((100, 40, 40, 40, 9), 31, 8, 0),
        ((40,) * MANY_PARTS, 40, 40, 1),
        ((40,) * (MANY_PARTS + 1), 40, 40, 2),
        ((40,) * (MANY_PARTS + 2), 40, 40, 4),
    ],
)
def test_parts_are_merged_as_an_index_doubles(
    parts: tuple[int, ...], rows: int, most_bytes: int | None, merged: int
) -> None:
    assert parts_to_merge(sizes(*parts), rows, most_bytes) == merged


@pytest.mark.parametrize("most_bytes", [None, 64])
def test_the_number_of_parts_grows_as_the_logarithm_of_the_rows(most_bytes: int | None) -> None:
    parts, moved, most, turns = sizes(1000), 0, 0, 20_000
    for _ in range(turns):
        merged = parts_to_merge(parts, 1, most_bytes)
        kept, gone = parts[: len(parts) - merged], parts[len(parts) - merged :]
        moved += sum(each.rows for each in gone)
        parts = [*kept, *sizes(1 + sum(each.rows for each in gone))]
        most = max(most, len(parts))
    assert sum(each.rows for each in parts) == 1000 + turns
    assert most <= (16 if most_bytes is None else MANY_PARTS + 16)
    assert moved <= 20 * turns, "a row moves as often as the index doubles"


# --------------------------------------------------------------------------------------- the thread


def test_the_rows_of_new_epochs_come_into_every_index(
    uri: str, world: World, refresh: IndexRefresh
) -> None:
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    driver.step()
    lance.dataset(uri).create_scalar_index("epoch", "BITMAP")
    assert uncovered(uri) == {"epoch_idx": 0, "id_idx": 3}
    for _ in range(40):
        step(driver, refresh)
    until(lambda: uncovered(uri) == {"epoch_idx": 0, "id_idx": 0})
    refresh.end(SOON)
    found = read_indices(open_dataset(uri))
    assert {len(each.parts) <= 6 for each in found.values()} == {True}
    expect_rows(world, 42)
    assert lance.dataset(uri).count_rows("id = 2001") == 1


def test_the_last_epochs_are_covered_when_the_query_ends(
    uri: str, world: World, refresh: IndexRefresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoindex, "_REST", 1000.0)
    monkeypatch.setattr(autoindex, "_SAVED", 0.0)
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for _ in range(4):
        step(driver, refresh)
    refresh.end(SOON)
    assert uncovered(uri) == {"id_idx": 0}
    step(driver, refresh)
    assert uncovered(uri) == {"id_idx": 3}, "nothing begins after the end"


def test_saved_rest_pays_for_a_refresh(
    uri: str, world: World, refresh: IndexRefresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoindex, "_REST", 1e6)
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for _ in range(3):
        step(driver, refresh)
        until(lambda: uncovered(uri) == {"id_idx": 0})


def test_a_dataset_without_an_index_costs_no_thread(world: World, refresh: IndexRefresh) -> None:
    driver = SparkLike(world, {})
    step(driver, refresh)
    assert refresh._thread is None


def test_a_fenced_driver_leaves_the_indices_alone(
    uri: str, world: World, refresh: IndexRefresh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log: dict[str, int] = {}
    old = SparkLike(world, log)
    old.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    old.step()
    SparkLike(world, log, run_id="other").step()
    version = lance.dataset(uri).version
    committer: Any = old.committer
    refresh.epoch_done(committer.port, committer.owner)
    refresh.end(SOON)
    assert lance.dataset(uri).version == version
    assert "Indices not refreshed: the query has another owner. query_id=orders" in caplog.text


def test_what_goes_wrong_is_logged_and_the_next_epoch_asks_again(
    uri: str,
    world: World,
    refresh: IndexRefresh,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def preempted(*arguments: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 1:
            raise SpecError("no such thing")
        if len(calls) == 2:
            raise BaseException("a panic")
        return refresh_indices(*arguments, **named)

    monkeypatch.setattr(autoindex, "refresh_indices", preempted)
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for turn in range(1, 4):
        step(driver, refresh)
        until(lambda turn=turn: len(calls) == turn)  # type: ignore[misc]
    until(lambda: uncovered(uri) == {"id_idx": 0})
    assert "Indices not refreshed. query_id=orders error=no such thing" in caplog.text
    assert "a panic" in caplog.text
    expect_rows(world, 4)


def test_a_compaction_of_another_program_that_commits_first_is_followed_by_a_repeat(
    uri: str, world: World, refresh: IndexRefresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    driver.step()  # a second fragment that the index does not cover, so that both are compacted
    optimize, calls = DatasetOptimizer.optimize_indices, list[int]()

    def overtaken(self: DatasetOptimizer, **named: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 1:  # after the refresh has read the dataset
            compact(open_dataset(uri), {})
        optimize(self, **named)

    monkeypatch.setattr(DatasetOptimizer, "optimize_indices", overtaken)
    step(driver, refresh)
    until(lambda: uncovered(uri) == {"id_idx": 0})
    assert len(calls) == 2, "no further epoch was needed"
    expect_rows(world, 3)


def test_a_refresh_and_a_compaction_of_one_driver_take_turns(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = AutoCompaction(4, QUERY)
    keeper.use_interval(SOON)
    refresh = IndexRefresh(QUERY, keeper.kept_out)
    running, most, lock = [0], [0], threading.Lock()

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            try:
                time.sleep(0.02)  # so that the other one could begin
                return do(*arguments, **named)
            finally:
                with lock:
                    running[0] -= 1

        return counting

    monkeypatch.setattr(autoindex, "refresh_indices", counted(refresh_indices))
    monkeypatch.setattr(autocompact, "compact", counted(compact))
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for epoch in range(1, 40):
        step(driver, refresh)
        committer: Any = driver.committer
        keeper.epoch_done(epoch, committer.port, committer.owner)
    until(lambda: not keeper.running)
    keeper.end(SOON)
    refresh.end(SOON)
    assert keeper.done.fragments_removed > 0
    assert most[0] == 1
    assert uncovered(uri) == {"id_idx": 0}
    expect_rows(world, 40)


def test_upserts_and_compactions_beside_it_lose_nothing(
    uri: str, world: World, refresh: IndexRefresh
) -> None:
    driver = SparkLike(world, {}, mode=OutputMode.UPDATE)
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for turn in range(30):
        step(driver, refresh)
        if turn % 7 == 6:
            compact(open_dataset(uri), {})
    step(driver, refresh)
    refresh.end(SOON)
    refresh_indices(open_dataset(uri))
    assert uncovered(uri) == {"id_idx": 0}
    expect_rows(world, 32)
    for wanted in (1, 1502, 3100):
        assert lance.dataset(uri).count_rows(f"id = {wanted}") == 1


# -------------------------------------------------------------------------------------- the option


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, True),
        ({"refreshIndices": False}, False),
        ({"outputMode": "complete"}, False),
        ({"routeBy": "t"}, False),
    ],
)
def test_indices_are_kept_unless_told_not_to(given: dict[str, Any], kept: bool) -> None:
    required = {"uri": "/lake/t.lance", "queryId": "q", "checkpointLocation": "/lake/c"}
    assert SinkOptions.parse({**required, **given}).keeps_indices is kept


def test_parts_are_read_from_the_manifest(uri: str, world: World) -> None:
    driver = SparkLike(world, {})
    driver.step()
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    driver.step()
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    driver.step()
    dataset = lance.dataset(uri)
    dataset.delete("id in (0, 1)")
    index = read_indices(open_dataset(uri))["id_idx"]
    assert [each.rows for each in index.parts] == [1, 3]
    assert all(each.bytes > 0 for each in index.parts)
    assert index.uncovered == 3
    lance.write_dataset(pa.table({"id": [1], "epoch": [1]}), uri, mode="overwrite")
    assert read_indices(open_dataset(uri)) == {}
