"""Lost answers and lost evidence on a real dataset: the right answer, or a named error."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    DatasetNotFoundError,
    FencedError,
    HistoryGapError,
    SchemaMismatchError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.drivers import QUERY, QUICK, SparkLike, World, epoch_rows, lance_world

ALL_MODES = pytest.mark.parametrize("mode", list(OutputMode))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return lance_world(str(tmp_path / "t.lance"))


def expect_rows(world: World, epochs: int, mode: OutputMode = OutputMode.APPEND) -> None:
    first = epochs - 1 if mode is OutputMode.COMPLETE else 0
    assert Counter(row["id"] for row in world.rows()) == Counter(
        row["id"] for n in range(first, epochs) for row in epoch_rows(n)
    )


class Store:
    """Stands between the port and pylance's commit, and breaks the connection when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = lance.LanceDataset.commit
        self.before = self.after = 0
        monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(self.commit))

    def commit(self, *args: Any, **kwargs: Any) -> lance.LanceDataset:
        if self.before:
            self.before -= 1
            raise OSError("connection reset before the request was sent")
        landed = self.real(*args, **kwargs)
        if self.after:
            self.after -= 1
            raise OSError("connection reset while waiting for the answer")
        return landed


@ALL_MODES
@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 0), (0, 2)])
def test_an_epoch_whose_answer_was_lost_lands_once(
    world: World, monkeypatch: pytest.MonkeyPatch, mode: OutputMode, before: int, after: int
) -> None:
    driver = SparkLike(world, {}, mode=mode)
    driver.step()
    store = Store(monkeypatch)
    store.before, store.after = before, after
    assert driver.step().decision is Decision.FULL_COMMIT
    driver.step()
    assert driver.committer.release()
    expect_rows(world, 3, mode)
    assert exact_watermark(world.open(), QUERY).epoch == 2


def test_a_claim_whose_answer_was_lost_is_one_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(monkeypatch)
    store.after = 1
    driver = SparkLike(world, {})
    driver.step()
    assert driver.committer.owner is not None
    assert driver.committer.owner.token == 1
    expect_rows(world, 1)


@ALL_MODES
def test_a_driver_that_dies_in_doubt_leaves_an_exact_dataset(
    world: World, monkeypatch: pytest.MonkeyPatch, mode: OutputMode
) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(world, log, mode=mode)
    driver.step()
    with monkeypatch.context() as broken:
        store = Store(broken)
        store.after = 1
        reach = LanceDatasetPort.latest

        def unreachable(self: LanceDatasetPort) -> LanceDatasetPort:
            if not store.after:  # gone since the epoch landed
                raise StorageUnavailableError("the store is gone")
            return reach(self)

        broken.setattr(LanceDatasetPort, "latest", unreachable)
        with pytest.raises((CommitStateUnknownError, StorageUnavailableError)):
            driver.step()
        assert not driver.committer.release(), "an owner in doubt does not release"
    successor = SparkLike(world, log, mode=mode)
    assert successor.step().decision is not Decision.FULL_COMMIT, "the epoch had landed"
    successor.step()
    expect_rows(world, 3, mode)


def crashed(world: World, *, logged: bool) -> dict[str, int]:
    """Leave a query after a crash: epoch 2 committed here, and in Spark's log or not."""
    log: dict[str, int] = {}
    driver = SparkLike(world, log)
    for _ in range(3):
        driver.step()
    if not logged:
        log["committed"] = 1
    return log


def test_cleanup_between_crash_and_restart_with_sparks_log_complete_is_exact(
    world: World,
) -> None:
    log = crashed(world, logged=True)
    world.clean_up()
    SparkLike(world, log).step()
    expect_rows(world, 4)


@pytest.mark.parametrize("logged", [True, False])
def test_cleanup_that_leaves_the_epochs_own_version(world: World, logged: bool) -> None:
    log = crashed(world, logged=logged)
    world.clean_up()  # the newest version always stays, and it carries epoch 2
    if not logged:
        # Its driver might have found that an epoch before it is not there, and ended.
        with pytest.raises(HistoryGapError, match="committed:2"):
            SparkLike(world, log)
        log["committed"] = 2
    SparkLike(world, log).step()
    expect_rows(world, 4)


def test_cleanup_that_takes_the_epochs_own_version_stops_the_query(world: World) -> None:
    log = crashed(world, logged=False)
    world.open().commit(Configure({"user.key": "1"}))
    world.clean_up()
    with pytest.raises(HistoryGapError, match="committed:2.*missing:2"):
        SparkLike(world, log)
    expect_rows(world, 3)
    driver = SparkLike(world, log, policy=answering("committed", world, log))
    driver.step()
    driver.step()
    expect_rows(world, 4)


def answering(answer: str, world: World, log: dict[str, int]) -> CommitPolicy:
    """Return what a user sets who types the answer as the error prints it."""
    with pytest.raises(HistoryGapError) as caught:
        SparkLike(world, log)
    printed = re.search(rf"onHistoryGap=({answer}:\d+@\d+)", str(caught.value))
    assert printed
    return CommitPolicy(on_history_gap=OnHistoryGap.parse(printed[1]), backoff=QUICK)


def test_gap_answer_that_is_left_in_place_does_not_cover_a_later_gap(world: World) -> None:
    """A retry has the same options: the epoch that was missing may have landed meanwhile."""
    log: dict[str, int] = {}
    driver = SparkLike(world, log)
    driver.step()
    driver.step()
    log["planned"] = 2
    world.open().commit(Configure({"user.key": "1"}))
    world.clean_up()
    policy = answering("missing", world, log)
    SparkLike(world, log, policy=policy).step()
    expect_rows(world, 3)
    log["committed"] = 1  # killed before Spark logged epoch 2
    world.open().commit(Configure({"user.key": "2"}))
    world.clean_up()
    with pytest.raises(HistoryGapError, match="epoch 2 .* was planned"):
        SparkLike(world, log, policy=policy)
    expect_rows(world, 3)
    SparkLike(world, log, policy=answering("committed", world, log)).step()
    expect_rows(world, 3)


def test_cleanup_after_an_orderly_end_is_exact(world: World) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(world, log)
    for _ in range(3):
        driver.step()
    assert driver.committer.release()
    log["committed"] = 1  # stop() came before Spark logged the last epoch
    world.open().commit(Configure({"user.key": "1"}))
    world.clean_up()
    assert SparkLike(world, log).step().decision is Decision.SKIP_REPLAY
    expect_rows(world, 3)


def paused_while_a_successor_works(
    world: World, mode: OutputMode, policy: CommitPolicy
) -> tuple[SparkLike, dict[str, int]]:
    """Return a driver that hangs before its second commit while another goes on to epoch 3.

    The successor's versions, its barrier among them, are cleaned up before the driver wakes.
    """
    log: dict[str, int] = {}
    woken = []

    def hang(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED and log["planned"] == 1 and not woken:
            woken.append(True)
            successor = SparkLike(world, log, run_id="successor", mode=mode)
            for _ in range(3):
                successor.step()
            world.clean_up()

    driver = SparkLike(world, log, mode=mode, policy=policy, on_step=hang)
    driver.step()
    return driver, log


@ALL_MODES
def test_cleanup_does_not_lift_the_barrier_from_a_driver_that_hung(
    world: World, mode: OutputMode
) -> None:
    long_ago = CommitPolicy(fresh_seconds=0, backoff=QUICK)
    driver, _ = paused_while_a_successor_works(world, mode, long_ago)
    with pytest.raises(FencedError):
        driver.step()
    expect_rows(world, 4, mode)


def test_driver_notices_a_cleanup_faster_than_its_handle_ages(world: World) -> None:
    """No version is kept for even a minute: prevention ends here, and the error says so."""
    driver, _ = paused_while_a_successor_works(
        world, OutputMode.APPEND, CommitPolicy(backoff=QUICK)
    )
    with pytest.raises(FencedError, match=r"landed as version \d+"):
        driver.step()
    assert not driver.committer.release()


def test_driver_stops_when_auto_cleanup_removed_the_evidence_of_a_lost_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    port: Any = world.open()
    port.dataset.update_config(
        {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"}
    )
    driver = SparkLike(world, {})
    driver.step()
    Store(monkeypatch).after = 2  # the epoch's answer, and that of the barrier after it
    with pytest.raises(CommitStateUnknownError, match="cleaned up"):
        driver.step()
    expect_rows(world, 2)


def test_a_column_altered_while_the_stream_runs_stops_it(world: World) -> None:
    """Lance would take fragments with the old field id, and read the column as null."""
    driver = SparkLike(world, {})
    driver.step()
    port: Any = world.open()
    port.dataset.alter_columns({"path": "epoch", "data_type": pa.int32()})
    with pytest.raises(SchemaMismatchError, match="landed, as version"):
        driver.step()
    assert not driver.committer.release()


def test_a_column_altered_while_the_stream_waited_stops_it(world: World) -> None:
    policy = CommitPolicy(fresh_seconds=0, backoff=QUICK)
    driver = SparkLike(world, {}, policy=policy)
    driver.step()
    port: Any = world.open()
    port.dataset.alter_columns({"path": "epoch", "data_type": pa.int32()})
    with pytest.raises(SchemaMismatchError, match="was changed while"):
        driver.step()
    expect_rows(world, 1)


def test_driver_stops_when_its_dataset_is_recreated(tmp_path: Path) -> None:
    import shutil

    uri = str(tmp_path / "t.lance")
    driver = SparkLike(lance_world(uri), {}, policy=CommitPolicy(fresh_seconds=0, backoff=QUICK))
    driver.step()
    shutil.rmtree(uri)
    lance_world(uri)
    with pytest.raises(DatasetNotFoundError, match="recreated"):
        driver.step()


def test_the_commit_costs_the_same_however_many_versions_there_are(world: World) -> None:
    """Counted in requests, not in seconds: the commit on a live handle reads no history."""
    log: dict[str, int] = {}
    driver = SparkLike(world, log)
    counts = []
    for _ in range(60):
        port: Any = driver.committer.port
        port.dataset.io_stats_incremental()
        driver.step()
        counts.append(port.dataset.io_stats_incremental().read_iops)
    assert max(counts[-20:]) <= max(counts[5:25])
