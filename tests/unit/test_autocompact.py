"""The sink's own compaction on real datasets: when it runs, what it takes on, who waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest

from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.spark import autocompact
from airflow_provider_lance.spark.autocompact import AutoCompaction, left_alone
from airflow_provider_lance.spec.sink_options import SinkOptions
from tests.support.drivers import QUERY, SparkLike, World, epoch_rows, lance_world

LOGGER = "airflow_provider_lance.spark.autocompact"
SOON = 30.0
"""Longer than anything here may take."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def world(uri: str) -> World:
    return lance_world(uri)


class Gate:
    """Holds compactions up until it is opened; counts how many came, and how many at a time."""

    def __init__(self) -> None:
        self.came: list[threading.Thread] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._compact = autocompact.compact

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            self.came.append(threading.current_thread())
            self._now += 1
            self.most = max(self.most, self._now)
        self._open.wait(SOON)
        try:
            return self._compact(*arguments, **named)
        finally:
            with self._lock:
                self._now -= 1

    def open(self) -> None:
        self._open.set()

    def expect(self, count: int) -> None:
        until(lambda: len(self.came) == count)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(autocompact, "compact", gate)
    yield gate
    gate.open()
    for thread in gate.came:
        thread.join(SOON)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def step(driver: SparkLike, compaction: AutoCompaction) -> None:
    """Do what the sink does with one epoch."""
    epoch_id = driver.next
    assert epoch_id is not None
    if driver.mode is not OutputMode.APPEND:
        compaction.give_way()
    assert driver.step().decision is Decision.FULL_COMMIT
    committer: Any = driver.committer
    compaction.epoch_done(epoch_id, committer.port, committer.owner)


def settle(compaction: AutoCompaction) -> None:
    until(lambda: not compaction.running)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the compaction logged, without its milliseconds."""
    mine = [record for record in caplog.records if record.name == LOGGER]
    return [record.getMessage().split(" ms=")[0] for record in mine]


def fragments(uri: str) -> int:
    return len(lance.dataset(uri).get_fragments())


def rewrites(uri: str) -> int:
    dataset = lance.dataset(uri)
    kinds = (dataset.read_transaction(v["version"]) for v in dataset.versions())
    return sum(type(t.operation).__name__ == "Rewrite" for t in kinds if t)


def expect_rows(world: World, epochs: int) -> None:
    found = Counter(row["id"] for row in world.rows())
    assert found == Counter(row["id"] for n in range(epochs) for row in epoch_rows(n))


# --------------------------------------------------------------------------------------- its turns


def test_compaction_runs_at_every_nth_epoch_and_keeps_the_rows(uri: str, world: World) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(4, QUERY)
    seen = []
    for _ in range(9):
        step(driver, compaction)
        settle(compaction)
        seen.append(fragments(uri))
    assert seen == [1, 2, 3, 1, 2, 3, 4, 1, 2]
    expect_rows(world, 9)


def test_fragments_grow_as_the_logarithm_of_the_epochs_and_rows_are_seldom_rewritten(
    uri: str, world: World
) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(4, QUERY)
    most, epochs = 0, 128
    for _ in range(epochs):
        step(driver, compaction)
        settle(compaction)
        most = max(most, fragments(uri))
    expect_rows(world, epochs)
    assert most <= 4 + 6, "the new ones, and one for each doubling"
    sizes = [each.metadata.physical_rows for each in lance.dataset(uri).get_fragments()]
    assert sum(sizes) == 3 * epochs
    assert rewrites(uri) == epochs // 4
    # What it would cost to rewrite everything every time is 32 * 33 / 2 * 12 rows.
    files = [file for file in Path(uri, "data").iterdir() if file.suffix == ".lance"]
    written = sum(lance.file.LanceFileReader(str(file)).metadata().num_rows for file in files)
    assert written < 3 * epochs * 8


def test_a_compaction_returns_the_memory_that_it_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[int] = []
    library = SimpleNamespace(malloc_trim=trims.append)
    monkeypatch.setattr(autocompact.ctypes, "CDLL", lambda name: library)
    compaction, driver = AutoCompaction(2, QUERY), SparkLike(world, {})
    for _ in range(4):
        step(driver, compaction)
        settle(compaction)
    assert trims == [0, 0]


def test_short_runs_compact_at_every_nth_epoch_too(uri: str, world: World) -> None:
    log: dict[str, int] = {}
    seen = []
    for _ in range(4):
        driver, compaction = SparkLike(world, log), AutoCompaction(5, QUERY)
        for _ in range(3):
            step(driver, compaction)
            settle(compaction)
        assert driver.committer.release()
        seen.append(rewrites(uri))
    assert seen == [0, 1, 1, 2], "after epochs 4 and 9"
    expect_rows(world, 12)


def test_compaction_every_zero_epochs_never_runs(uri: str, world: World) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(0, QUERY)
    for _ in range(4):
        step(driver, compaction)
    assert not compaction.running
    assert fragments(uri) == 4


@pytest.mark.parametrize(
    ("given", "read"),
    [({}, None), ({"autoCompactEvery": "50"}, 50), ({"autoCompactEvery": 0}, 0)],
)
def test_a_driver_looks_after_its_table_by_default(given: dict[str, Any], read: int | None) -> None:
    needed = {"uri": "/t.lance", "queryId": "q", "checkpointLocation": "/c"}
    options = SinkOptions.parse(needed | given)
    assert options.auto_compact_every == read
    assert SinkOptions.parse(options.to_json()) == options
    for wrong in (-1, 1.5, True, "often"):
        with pytest.raises(SpecError, match="autoCompactEvery must be"):
            SinkOptions.parse(needed | {"autoCompactEvery": wrong})


# ------------------------------------------------------------------------------- what it takes on


@dataclass(frozen=True)
class DataFile:
    file_size_bytes: int | None


@dataclass(frozen=True)
class Fragment:
    id: int
    physical_rows: int
    files: tuple[DataFile, ...]


def of_rows(*rows: int, size: int | None = 1) -> list[Fragment]:
    return [Fragment(n, count, (DataFile(size),)) for n, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("given", "every", "most_bytes", "left"),
    [
        ([], 3, 100, []),
        (of_rows(1, 1, 1), 3, 100, []),
        (of_rows(3, 1, 1, 1), 3, 100, []),
        (of_rows(4, 1, 1, 1), 3, 100, [0]),
        (of_rows(9, 3, 1, 1, 1), 3, 100, [0]),
        (of_rows(6, 3, 1, 1, 1), 3, 100, []),
        (of_rows(1, 90, 7, 1, 20), 3, 100, [0, 1]),
        (of_rows(*[1] * 10), 2, 100, [0, 1]),
        (of_rows(1, 1, 1, 1, size=10), 9, 29, [0, 1]),
        (of_rows(1, 1, 1, size=None), 9, 29, []),
        (of_rows(1, 1, size=30), 9, 29, [0, 1]),
    ],
    ids=[
        "nothing",
        "all new",
        "as large as all newer ones",
        "larger",
        "a larger one ends it",
        "each as large as the newer ones",
        "new ones may differ",
        "at most four times as many",
        "bytes",
        "bytes unknown",
        "too large at once",
    ],
)
def test_one_compaction_takes_a_bounded_set_of_fragments(
    given: list[Fragment], every: int, most_bytes: int, left: list[int]
) -> None:
    assert left_alone(given, every, most_bytes) == left


def test_a_large_fragment_is_not_rewritten(uri: str, world: World) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(4, QUERY)
    driver.step(epoch_rows(0, 90))
    large = lance.dataset(uri).get_fragments()[0].metadata
    for _ in range(3):
        driver.step()
    for _ in range(4):
        step(driver, compaction)
    settle(compaction)
    assert rewrites(uri) == 1
    assert fragments(uri) == 2
    assert lance.dataset(uri).get_fragments()[0].metadata == large


# ----------------------------------------------------------------------------------- who waits how


def test_appends_do_not_wait_and_one_compaction_runs_at_a_time(
    uri: str, world: World, gate: Gate
) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(2, QUERY)
    for _ in range(9):
        step(driver, compaction)
    gate.expect(1)
    assert compaction.running
    assert fragments(uri) == 9
    gate.open()
    settle(compaction)
    step(driver, compaction)
    settle(compaction)
    step(driver, compaction)
    assert (len(gate.came), gate.most) == (2, 1), "the turns it missed are one turn, taken later"
    expect_rows(world, 11)


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_upserts_wait_for_a_compaction_for_one_interval_at_most(
    world: World, gate: Gate, mode: OutputMode
) -> None:
    interval = 0.4
    driver, compaction = SparkLike(world, {}, mode=mode), AutoCompaction(2, QUERY)
    compaction.use_interval(interval)
    for _ in range(2):
        step(driver, compaction)
    gate.expect(1)
    waits = []
    for _ in range(3):
        began = time.monotonic()
        compaction.give_way()
        waits.append(time.monotonic() - began)
        step(driver, compaction)
    assert waits[0] > interval / 2
    assert sum(waits) < interval + 0.2, "one interval for one compaction, whoever waits"
    assert compaction.running
    gate.open()
    settle(compaction)
    step(driver, compaction)  # on top of what the compaction made of the older versions
    if mode is OutputMode.UPDATE:
        expect_rows(world, 6)
    else:
        assert world.rows() == epoch_rows(5)


def test_waiting_upsert_continues_as_soon_as_the_compaction_is_done(
    world: World, gate: Gate
) -> None:
    driver, compaction = SparkLike(world, {}, mode=OutputMode.UPDATE), AutoCompaction(2, QUERY)
    compaction.use_interval(SOON)
    for _ in range(2):
        step(driver, compaction)
    gate.expect(1)
    opener = threading.Timer(0.1, gate.open)
    opener.start()
    began = time.monotonic()
    compaction.give_way()
    assert time.monotonic() - began < SOON / 2
    settle(compaction)
    opener.join()


# -------------------------------------------------------------------------------- how it may end


def test_failed_compaction_is_logged_and_the_next_one_runs(
    uri: str, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compact = autocompact.compact
    errors = [StorageUnavailableError("the store is away"), ZeroDivisionError("a bug")]

    def fail_twice(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return compact(*arguments, **named)

    monkeypatch.setattr(autocompact, "compact", fail_twice)
    driver, compaction = SparkLike(world, {}), AutoCompaction(2, QUERY)
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(6):
            step(driver, compaction)
            settle(compaction)
    assert told(caplog) == [
        f"Not compacted. query_id={QUERY} error=the store is away",
        f"Not compacted. query_id={QUERY}",
        f"Compacted. query_id={QUERY} removed=6 added=1 conflicts=0 left=0",
    ]
    [trace] = [record.exc_info for record in caplog.records if record.exc_info]
    assert trace[0] is ZeroDivisionError, "what nobody foresaw is logged with its trace"
    assert fragments(uri) == 1
    expect_rows(world, 6)


def test_fenced_driver_does_not_compact(
    uri: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log: dict[str, int] = {}
    driver, compaction = SparkLike(world, log), AutoCompaction(2, QUERY)
    step(driver, compaction)
    stale: Any = driver.committer
    owner, port = stale.owner, stale.port
    SparkLike(world, log, run_id="newer").step()
    with caplog.at_level(logging.INFO, LOGGER):
        compaction.epoch_done(1, port, owner)
        settle(compaction)
    [said] = told(caplog)
    assert said.startswith("Not compacted: ")
    assert "owner" in said
    assert said.endswith(f"query_id={QUERY}")
    assert rewrites(uri) == 0


def test_end_waits_for_the_compaction_and_no_further_one_starts(
    uri: str, world: World, gate: Gate
) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(2, QUERY)
    for _ in range(2):
        step(driver, compaction)
    gate.expect(1)
    gate.open()
    compaction.end(SOON)
    assert not compaction.running
    assert fragments(uri) == 1
    for _ in range(4):
        step(driver, compaction)
    assert len(gate.came) == 1
    expect_rows(world, 6)


def test_the_end_does_not_wait_for_one_that_hangs_and_it_begins_no_task_after(
    uri: str, world: World, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    driver, compaction = SparkLike(world, {}), AutoCompaction(2, QUERY)
    for _ in range(2):
        step(driver, compaction)
    gate.expect(1)
    began = time.monotonic()
    compaction.end(0.2)
    assert 0.2 <= time.monotonic() - began < SOON / 2
    [said] = told(caplog)
    assert "still running" in said
    assert said.endswith(f"query_id={QUERY}")
    gate.open()
    settle(compaction)
    assert rewrites(uri) == 0
    assert driver.committer.release()


def test_end_without_a_compaction_does_nothing() -> None:
    compaction = AutoCompaction(2, QUERY)
    compaction.give_way()
    compaction.end(SOON)
    assert not compaction.running
