"""The committer against the twin: every fault, every crash point, every takeover."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetNotFoundError,
    FencedError,
    HistoryGapError,
    ProtocolVersionError,
    SchemaMismatchError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.codec import decode_query, key
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnHistoryGap
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import Driver, OutputMode
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset, InMemoryDatasetPort
from tests.support.drivers import QUERY, QUICK, SparkLike, epoch_rows, twin_world


class Crash(BaseException):
    """The process is gone: nothing below may catch it."""


@pytest.fixture
def dataset() -> InMemoryDataset:
    return InMemoryDataset()


def expect_rows(dataset: InMemoryDataset, epochs: int) -> None:
    ids = Counter(row["id"] for row in dataset.rows())
    assert ids == Counter(row["id"] for n in range(epochs) for row in epoch_rows(n))


def test_epoch_costs_1_1_manifest_updates_on_average(dataset: InMemoryDataset) -> None:
    driver = SparkLike(twin_world(dataset), {})
    driver.step()
    before = driver.committer.manifest_updates
    for _ in range(100):
        driver.step()
    assert driver.committer.manifest_updates - before == 110
    assert dataset.version - 1 == driver.committer.manifest_updates
    expect_rows(dataset, 101)


def test_watermark_every_one_is_the_two_transaction_form(dataset: InMemoryDataset) -> None:
    driver = SparkLike(
        twin_world(dataset), {}, policy=CommitPolicy(watermark_every=1, backoff=QUICK)
    )
    for n in range(5):
        driver.step()
        assert decode_query(dataset.open().config, QUERY, dataset.version).watermark == n
    assert dataset.version == 1 + 1 + 10


def test_the_exact_watermark_needs_no_fold(dataset: InMemoryDataset) -> None:
    driver = SparkLike(twin_world(dataset), {})
    for n in range(7):
        driver.step()
        assert exact_watermark(dataset.open(), QUERY).epoch == n
    assert decode_query(dataset.open().config, QUERY, dataset.version).watermark == -1


def test_release_folds_and_spares_the_next_claim_its_barrier(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    assert driver.committer.release()
    state = decode_query(dataset.open().config, QUERY, dataset.version)
    assert state.watermark == 0
    second = SparkLike(twin_world(dataset), log)
    second.step()
    assert second.committer.manifest_updates == 2  # claim and epoch
    third = SparkLike(twin_world(dataset), log)
    third.step()
    assert third.committer.manifest_updates == 3  # claim, barrier and epoch
    expect_rows(dataset, 3)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("mode", list(OutputMode))
@pytest.mark.parametrize("position", range(4))
def test_no_fault_of_the_store_loses_or_doubles_an_epoch(
    dataset: InMemoryDataset, fault: Fault, mode: OutputMode, position: int
) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log, mode=mode)
    dataset.faults = [None] * position + [fault]  # claim, first epoch, second, third
    for _ in range(3):
        driver.step()
    assert driver.committer.release()
    if mode is OutputMode.COMPLETE:
        assert dataset.rows() == epoch_rows(2)
    else:
        expect_rows(dataset, 3)


def test_a_late_write_is_shut_out_before_the_epoch_is_sent_again(dataset: InMemoryDataset) -> None:
    driver = SparkLike(twin_world(dataset), {})
    driver.step()
    dataset.faults = [Fault.LATE]
    assert driver.step().decision is Decision.FULL_COMMIT
    expect_rows(dataset, 2)


@pytest.mark.parametrize("step", list(Failpoint))
@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
@pytest.mark.parametrize("occurrence", [1, 2])
def test_a_crash_at_any_step_is_repaired_by_the_next_driver(
    dataset: InMemoryDataset, step: Failpoint, mode: OutputMode, occurrence: int
) -> None:
    log: dict[str, int] = {}
    crashes = 0
    reached: Counter[Failpoint] = Counter()

    def crash_there(at: Failpoint) -> None:
        nonlocal crashes
        reached[at] += 1
        if at is step and reached[at] == occurrence:
            crashes += 1
            raise Crash

    while log.get("committed", -1) < 11:
        driver = SparkLike(
            twin_world(dataset),
            log,
            mode=mode,
            policy=CommitPolicy(watermark_every=3, backoff=QUICK),
            on_step=crash_there,
        )
        try:
            for _ in range(6):
                if log.get("committed", -1) < 11:
                    driver.step()
            driver.committer.release()
        except Crash:
            continue
    assert crashes == 1
    expect_rows(dataset, 12)


def test_a_stale_driver_is_fenced_and_its_epoch_does_not_land(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    stale = SparkLike(twin_world(dataset), log)
    stale.step()
    fresh = SparkLike(twin_world(dataset), log, run_id="fresh")
    fresh.step()
    with pytest.raises(FencedError, match="token 2 .* of run fresh"):
        stale.step()
    fresh.step()
    assert not stale.committer.release()
    assert fresh.committer.release()
    expect_rows(dataset, 3)


def test_a_stale_append_that_lands_before_the_barrier_is_seen(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    stale = SparkLike(twin_world(dataset), log)
    stale.step()

    def meanwhile(step: Failpoint) -> None:
        if step is Failpoint.CLAIM_OWNED:
            stale.step()  # rebased over the claim, so it lands

    fresh = SparkLike(twin_world(dataset), log, on_step=meanwhile)
    assert fresh.step().decision is not Decision.FULL_COMMIT
    fresh.step()
    expect_rows(dataset, 3)


def test_without_the_barrier_the_same_race_doubles(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    no_barrier = CommitPolicy(barrier=False, backoff=QUICK)
    stale = SparkLike(twin_world(dataset), log, policy=no_barrier)
    stale.step()

    def meanwhile(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_CHECKED:
            stale.step()

    fresh = SparkLike(twin_world(dataset), log, policy=no_barrier, on_step=meanwhile)
    fresh.step()
    assert len(dataset.rows()) == 9, "epoch 1 twice"


def test_two_drivers_that_claim_at_once_do_not_both_win(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    first = SparkLike(twin_world(dataset), log)
    second = SparkLike(twin_world(dataset), dict(log), run_id="second")
    entered = False

    def claim_too(step: Failpoint) -> None:
        nonlocal entered
        if step is Failpoint.CLAIM_OPENED and not entered:
            entered = True
            second.step()

    third = SparkLike(twin_world(dataset), log, on_step=claim_too)
    assert third.step().decision is not Decision.FULL_COMMIT, "the second had committed epoch 0"
    assert first.step().decision is Decision.SKIP_REPLAY
    tokens = [each.committer.owner.token for each in (second, third, first)]
    assert tokens == [1, 2, 3]
    expect_rows(dataset, 1)


def test_compaction_between_epochs_disturbs_nothing(dataset: InMemoryDataset) -> None:
    for mode in (OutputMode.APPEND, OutputMode.UPDATE):
        world = twin_world(InMemoryDataset())
        driver = SparkLike(world, {}, mode=mode)
        for _ in range(10):
            driver.step()
            world.compact()
        assert len(world.rows()) == 30


def test_a_deleted_checkpoint_is_refused_with_both_places(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    SparkLike(twin_world(dataset), log).step()
    with pytest.raises(
        CheckpointMismatchError, match="belongs to checkpoint .*newGeneration"
    ) as caught:
        SparkLike(twin_world(dataset), {}, checkpoint_id="other")
    assert "id other" not in str(caught.value), "Spark has not created it yet"
    with pytest.raises(CheckpointMismatchError, match="id other"):
        SparkLike(twin_world(dataset), dict(log), checkpoint_id="other")
    expect_rows(dataset, 1)


def test_an_older_copy_of_the_checkpoint_is_refused(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    backup = dict(log)
    driver.step()
    driver.step()
    with pytest.raises(CheckpointMismatchError, match="older copy"):
        SparkLike(twin_world(dataset), backup)


def test_a_recreated_dataset_is_refused(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    SparkLike(twin_world(dataset), log).step()
    with pytest.raises(CheckpointMismatchError, match="no trace"):
        SparkLike(twin_world(InMemoryDataset()), log)


def test_new_generation_starts_its_numbering_again_under_the_same_query_id(
    dataset: InMemoryDataset,
) -> None:
    SparkLike(twin_world(dataset), log := {}).step()
    assert log == {"planned": 0, "committed": 0}
    policy = CommitPolicy(new_generation=True, backoff=QUICK)
    anew: dict[str, int] = {}
    for _ in range(3):  # the option may stay: with the checkpoint kept it changes nothing
        driver = SparkLike(twin_world(dataset), anew, checkpoint_id="other", policy=policy)
        assert driver.step().decision is Decision.FULL_COMMIT
    state = decode_query(dataset.open().config, QUERY, dataset.version)
    assert state.generation == 1
    assert exact_watermark(dataset.open(), QUERY).epoch == 2
    assert Counter(row["epoch"] for row in dataset.rows()) == {0: 6, 1: 3, 2: 3}


def gap(dataset: InMemoryDataset) -> dict[str, int]:
    """Leave a query whose epoch 2 was planned, and whose newest versions were cleaned up."""
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    driver.step()
    log["planned"] = 2
    dataset.open().commit(Configure({"user.key": "1"}))
    dataset.clean_up(dataset.version)
    return log


def test_a_gap_with_an_epoch_in_doubt_stops_and_says_what_to_type(dataset: InMemoryDataset) -> None:
    log = gap(dataset)
    with pytest.raises(HistoryGapError, match="onHistoryGap=committed:2"):
        SparkLike(twin_world(dataset), log)


@pytest.mark.parametrize(
    ("landed", "decision"),
    [
        (True, Decision.SKIP_REPLAY),
        (False, Decision.FULL_COMMIT),
    ],
)
def test_a_gap_is_resolved_by_naming_the_epoch(
    dataset: InMemoryDataset, landed: bool, decision: Decision
) -> None:
    log = gap(dataset)
    answer = CommitPolicy(on_history_gap=OnHistoryGap(2, landed), backoff=QUICK)
    driver = SparkLike(twin_world(dataset), log, policy=answer)
    assert driver.step().decision in (decision, Decision.RECOVERY_TXN2_ONLY)
    expect_rows(dataset, 2 if landed else 3)
    # And the gap is closed for good: the next driver needs no answer.
    SparkLike(twin_world(dataset), log).step()


def test_an_answer_for_another_epoch_is_no_answer(dataset: InMemoryDataset) -> None:
    log = gap(dataset)
    with pytest.raises(HistoryGapError):
        SparkLike(
            twin_world(dataset),
            log,
            policy=CommitPolicy(on_history_gap=OnHistoryGap(1, True), backoff=QUICK),
        )


def test_a_gap_over_epochs_that_spark_has_as_done_stops_too(dataset: InMemoryDataset) -> None:
    log = gap(dataset)
    log["planned"] = 1
    # They landed, but a version that was cleaned up may have restored an older one.
    with pytest.raises(HistoryGapError, match="epochs 0 to 1.*onHistoryGap=committed:1"):
        SparkLike(twin_world(dataset), log)
    answer = CommitPolicy(on_history_gap=OnHistoryGap(1, True), backoff=QUICK)
    driver = SparkLike(twin_world(dataset), log, policy=answer)
    assert driver.committer.watermark == 1
    driver.step()
    expect_rows(dataset, 3)


def test_a_gap_over_epochs_that_the_config_has_as_done_is_no_gap(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    driver.committer.begin(1).finish()
    log["planned"] = log["committed"] = 1  # an epoch without rows
    assert driver.committer.release()
    dataset.open().commit(Configure({"user.key": "1"}))
    dataset.clean_up(dataset.version)
    assert SparkLike(twin_world(dataset), log).committer.watermark == 0


def test_an_old_copy_of_the_checkpoint_is_found_by_the_reports_if_versions_are_missing(
    dataset: InMemoryDataset,
) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log, launch_id="killed")
    for _ in range(11):  # the last fold is of epoch 9, and epoch 10 came after it
        driver.step()
    dataset.open().commit(Configure({"user.key": "1"}))
    dataset.clean_up(dataset.version)
    log["planned"] = log["committed"] = 9
    asked: list[str] = []

    def heard(driver: Driver) -> int:
        asked.append(driver.launch_id)
        return 10

    with pytest.raises(CheckpointMismatchError, match="reported that epoch 10 is in .*after 9"):
        SparkLike(twin_world(dataset), log, heard=heard)
    assert set(asked) == {"killed"}
    log["planned"] = log["committed"] = 10  # the newest copy
    answer = CommitPolicy(on_history_gap=OnHistoryGap(10, True), backoff=QUICK)
    SparkLike(twin_world(dataset), log, heard=heard, policy=answer).step()
    expect_rows(dataset, 12)


def test_reports_are_asked_only_where_versions_are_missing(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    SparkLike(twin_world(dataset), log).step()

    def heard(driver: Driver) -> int:
        raise AssertionError

    SparkLike(twin_world(dataset), log, heard=heard).step()
    expect_rows(dataset, 2)


def test_cleanup_below_the_fold_is_harmless(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    for _ in range(12):
        driver.step()
    folded = decode_query(dataset.open().config, QUERY, dataset.version).folded_version
    dataset.clean_up(folded + 1)
    log["committed"] = 10  # crashed before Spark logged epoch 11
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 12)


def test_foreign_auto_cleanup_folds_every_epoch(caplog: pytest.LogCaptureFixture) -> None:
    dataset = InMemoryDataset(config={"lance.auto_cleanup.interval": "1"})
    with caplog.at_level(logging.WARNING):
        driver = SparkLike(twin_world(dataset), {})
    assert "lance.auto_cleanup.interval" in caplog.text
    driver.step()
    assert decode_query(dataset.open().config, QUERY, dataset.version).watermark == 0


def test_two_queries_share_a_dataset(dataset: InMemoryDataset) -> None:
    logs: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for _ in range(4):  # each driver is new and finds the other's commits in its history
        for name, log in zip(("a", "b"), logs, strict=True):
            SparkLike(twin_world(dataset), log, query_id=name).step()
    assert exact_watermark(dataset.open(), "a").epoch == 3
    assert exact_watermark(dataset.open(), "b").epoch == 3
    assert Counter(row["epoch"] for row in dataset.rows()) == dict.fromkeys(range(4), 6)


def test_a_store_that_stays_silent_ends_the_driver_without_release(
    dataset: InMemoryDataset,
) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    dataset.faults = [Fault.LOST_REQUEST] * 40
    with pytest.raises(CommitStateUnknownError):
        driver.step()
    assert not driver.committer.release()
    dataset.faults = []
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 2)


def test_a_claim_that_broke_off_before_its_barrier_is_not_released(
    dataset: InMemoryDataset,
) -> None:
    log: dict[str, int] = {}
    stale = SparkLike(twin_world(dataset), log)
    stale.step()
    fresh = SparkLike(twin_world(dataset), log)
    dataset.faults = [None, *[Fault.LOST_REQUEST] * QUICK.attempts]  # owner written, no barrier
    with pytest.raises(CommitStateUnknownError):
        fresh.step()
    stale.step()  # lands: nothing has fenced it yet
    assert not fresh.committer.release(), "its watermark is older than what has landed"
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 3)


def test_an_epoch_that_could_not_be_looked_for_is_not_released(
    dataset: InMemoryDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    with monkeypatch.context() as broken:
        # The store repeated a write on its own: it landed, and the repetition was "preempted".
        commit = InMemoryDataset.commit

        def repeat(self: InMemoryDataset, *args: Any) -> int:
            commit(self, *args)
            raise CommitPreemptedError

        broken.setattr(InMemoryDataset, "commit", repeat)
        broken.setattr(InMemoryDatasetPort, "latest", _unavailable)
        with pytest.raises(StorageUnavailableError):
            driver.step()
    assert not driver.committer.release()
    assert SparkLike(twin_world(dataset), log).step().decision is not Decision.FULL_COMMIT
    expect_rows(dataset, 2)


def _unavailable(port: InMemoryDatasetPort) -> InMemoryDatasetPort:
    raise StorageUnavailableError


class Overtaken(InMemoryDataset):
    """Somebody acts between the landing of epoch 1 and the loss of its answer."""

    meanwhile: Callable[[], None] | None = None

    def commit(self, *commit: Any) -> int:
        landed = super().commit(*commit)
        if self.meanwhile and commit[2].get("streaming.epochId") == "1":
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise CommitStateUnknownError
        return landed


def test_a_fenced_driver_does_not_fold_over_the_new_owners_epochs() -> None:
    dataset, log = Overtaken(), {}
    policy = CommitPolicy(watermark_every=2, backoff=QUICK)
    slow = SparkLike(twin_world(dataset), log, policy=policy)
    slow.step()

    def take_over() -> None:
        log["planned"] = 1
        fresh = SparkLike(twin_world(dataset), log, run_id="fresh")
        for _ in range(3):
            fresh.step()

    dataset.meanwhile = take_over
    with suppress(FencedError):
        slow.step()
    assert exact_watermark(dataset.open(), QUERY).epoch == 3
    log.update(planned=3, committed=2)  # the new owner dies before Spark logs epoch 3
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 4)


def test_an_epoch_whose_evidence_was_cleaned_up_is_not_sent_again() -> None:
    dataset, log = Overtaken(), {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()

    def clean_up() -> None:
        dataset.compact()
        dataset.clean_up(dataset.version)

    dataset.meanwhile = clean_up
    with pytest.raises(CommitStateUnknownError, match="cleaned up"):
        driver.step()
    assert not driver.committer.release()
    expect_rows(dataset, 2)
    with pytest.raises(HistoryGapError, match="committed:1"):
        SparkLike(twin_world(dataset), log | {"planned": 1})


def test_cleanup_after_an_orderly_stop_leaves_no_gap(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    log["planned"] = 1  # Spark planned it, the closed sink refused to begin it
    assert driver.committer.release()
    dataset.compact()
    dataset.compact()
    dataset.clean_up(dataset.version)
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 2)


def test_an_answered_gap_is_closed_for_later_epochs(dataset: InMemoryDataset) -> None:
    log = gap(dataset)
    answer = CommitPolicy(on_history_gap=OnHistoryGap(2, False), backoff=QUICK)
    SparkLike(twin_world(dataset), log, policy=answer).step()
    log["planned"] = 3  # dies before it commits epoch 3
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 4)


def test_a_schema_changed_under_the_driver_stops_it(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    policy = CommitPolicy(fresh_seconds=0, backoff=QUICK)
    driver = SparkLike(twin_world(dataset), log, policy=policy)
    driver.step()
    dataset.alter()
    with pytest.raises(SchemaMismatchError, match="was changed while"):
        driver.step()
    SparkLike(twin_world(dataset), log).step()
    expect_rows(dataset, 2)


def test_a_dataset_recreated_under_the_driver_stops_it(dataset: InMemoryDataset) -> None:
    world = twin_world(dataset)
    driver = SparkLike(world, {}, policy=CommitPolicy(fresh_seconds=0, backoff=QUICK))
    driver.step()
    driver.step()
    dataset.__init__()  # type: ignore[misc]
    with pytest.raises(DatasetNotFoundError, match="dropped and recreated"):
        driver.step()


def test_another_tools_watermark_is_not_taken_over() -> None:
    dataset = InMemoryDataset(config={key("lastEpoch", QUERY): "7"})
    with pytest.raises(ProtocolVersionError, match="another tool"):
        SparkLike(twin_world(dataset), {})


def test_a_stop_request_reaches_the_driver_that_is_there_and_no_later_one(
    dataset: InMemoryDataset,
) -> None:
    log: dict[str, int] = {}
    assert request_stop(dataset.open(), QUERY) is None
    driver = SparkLike(twin_world(dataset), log)
    driver.step()
    assert request_stop(dataset.open(), QUERY) == 1
    assert not driver.committer.stop_requested()
    assert driver.committer.stop_requested(poll=True)
    driver.step()
    assert driver.committer.stop_requested(), "seen in the handle of its own commit, for free"
    second = SparkLike(twin_world(dataset), log)
    assert not second.committer.stop_requested(poll=True)
    second.step()
    assert not second.committer.stop_requested(poll=True)
    assert second.committer.release()
    assert key("stop", QUERY) not in dataset.open().config


@pytest.mark.parametrize("released", [True, False])
def test_a_driver_that_waits_for_its_first_rows_can_be_stopped(
    dataset: InMemoryDataset, released: bool
) -> None:
    log: dict[str, int] = {}
    before = SparkLike(twin_world(dataset), log)
    before.step()
    if released:
        before.committer.release()
    idle = SparkLike(twin_world(dataset), log)
    assert not idle.committer.stop_requested(poll=True)
    request_stop(dataset.open(), QUERY)
    assert idle.committer.stop_requested(poll=True)
    later = SparkLike(twin_world(dataset), log)
    assert not later.committer.stop_requested(poll=True)


def test_an_empty_first_epoch_leaves_a_trace_and_later_ones_nothing(
    dataset: InMemoryDataset,
) -> None:
    driver = SparkLike(twin_world(dataset), {})
    driver.committer.begin(0).finish()
    assert dataset.version == 2
    driver.committer.begin(1).finish()
    assert dataset.version == 2
