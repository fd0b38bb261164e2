"""A driver under which the dataset becomes another, or an older one; over the twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_lance.exceptions import (
    CommitStateUnknownError,
    DatasetNotFoundError,
    DatasetRestoredError,
    FencedError,
    HistoryGapError,
)
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, Moment, OnRestore
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.port import Append, Configure
from airflow_provider_lance.protocol.watermark import exact_watermark
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset, InMemoryDatasetPort
from tests.support.drivers import QUERY, QUICK, SparkLike, epoch_rows, twin_world

FOREIGN = {"id": -1, "epoch": -1}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.boot = self.wall = 0.0

    def __call__(self) -> Moment:
        return Moment(self.boot, self.wall)


class Scene:
    """One dataset, one checkpoint, and drivers that commit on handles they opened long ago."""

    def __init__(self) -> None:
        self.dataset, self.log, self.clock = InMemoryDataset(), dict[str, int](), Clock()

    def driver(self, every: int = 10, **options: object) -> SparkLike:
        policy = CommitPolicy(watermark_every=every, backoff=QUICK, clock=self.clock, **options)  # type: ignore[arg-type]
        return SparkLike(twin_world(self.dataset), self.log, policy=policy)

    def run(self, epochs: int, every: int = 10) -> SparkLike:
        driver = self.driver(every)
        for _ in range(epochs):
            driver.step()
        return driver

    def epochs(self) -> list[int]:
        return sorted({row["epoch"] for row in self.dataset.rows()})

    def foreign(self, commits: int = 1) -> None:
        for number in range(commits):
            self.dataset.open().commit(Configure({"somebody's": str(number)}))


def run_on(driver: SparkLike, epochs: int) -> None:
    for _ in range(epochs):
        driver.step()


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --------------------------------------------------------------------------------- restored


def test_a_start_on_a_restored_dataset_names_the_epochs_and_both_ways_out(scene: Scene) -> None:
    scene.run(6).committer.release()
    newest = scene.dataset.version
    scene.dataset.restore(5)
    with pytest.raises(DatasetRestoredError) as caught:
        scene.driver()
    said = str(caught.value)
    assert f"version {newest + 1} of memory://dataset restored version 5" in said
    assert "epochs 3 to 5 of query 'orders' (9 rows)" in said
    assert f"with version {newest}: " in said
    assert "lance-stream resolve restore memory://dataset orders --bring-back --yes" in said
    assert "onRestore=accept:3-5" in said
    assert scene.dataset.version == newest + 1, "nothing is committed"


def test_a_newer_version_that_is_brought_back_is_whole_again(scene: Scene) -> None:
    scene.run(6).committer.release()
    newest = scene.dataset.version
    scene.dataset.restore(5)
    scene.dataset.restore(newest)
    scene.run(2)
    assert scene.epochs() == list(range(8))


def test_accepted_loss_of_a_restore_is_not_refused_again(scene: Scene) -> None:
    scene.run(6).committer.release()
    scene.dataset.restore(5)
    with pytest.raises(DatasetRestoredError):
        scene.driver(on_restore=OnRestore(4, 5))
    scene.driver(on_restore=OnRestore(3, 5)).step()
    scene.driver().step()
    assert scene.epochs() == [0, 1, 2, 6, 7]


def test_a_released_state_that_is_restored_is_refused_too(scene: Scene) -> None:
    scene.run(2).committer.release()
    released = scene.dataset.version
    scene.run(3).committer.release()
    scene.dataset.restore(released)
    with pytest.raises(DatasetRestoredError, match="epochs 2 to 4"):
        scene.driver()


@pytest.mark.parametrize("gone", ["the epochs", "the restore, too"])
def test_a_cleanup_after_the_restore_does_not_make_it_healthy(scene: Scene, gone: str) -> None:
    scene.run(6)
    scene.dataset.restore(5)
    scene.foreign(2)
    scene.dataset.clean_up(scene.dataset.version - (2 if gone == "the epochs" else 0))
    with pytest.raises((DatasetRestoredError, HistoryGapError), match="epochs 3 to 5|epochs 0 to"):
        scene.driver()


def test_an_epoch_that_spark_plans_again_is_not_lost(scene: Scene) -> None:
    driver = scene.run(3)
    before = scene.dataset.version
    driver.step()
    scene.log["committed"] = 2  # it died before Spark's log had epoch 3
    scene.dataset.restore(before)
    assert scene.driver().step().decision is Decision.FULL_COMMIT
    assert scene.epochs() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE])
@pytest.mark.parametrize("every", [1, 3, 10])
@pytest.mark.parametrize("others", [0, 2])
def test_running_driver_ends_at_its_next_commit_after_a_restore(
    scene: Scene, mode: OutputMode, every: int, others: int
) -> None:
    driver = scene.run(4, every)
    driver.mode = mode
    scene.dataset.restore(scene.dataset.version - 3)
    scene.foreign(others)
    with pytest.raises(DatasetRestoredError):
        driver.step()
    assert not driver.committer.release()
    with pytest.raises(DatasetRestoredError):
        scene.driver()


def test_epoch_with_a_lost_commit_answer_is_missed_after_a_restore(scene: Scene) -> None:
    driver = scene.run(1)
    scene.foreign()
    before = scene.dataset.version
    scene.dataset.faults = [Fault.LOST_ANSWER]
    driver.step()
    scene.dataset.restore(before)
    with pytest.raises(DatasetRestoredError, match="epochs 1 to 1"):
        driver.step()


def test_fenced_driver_stays_fenced_after_a_restore(scene: Scene) -> None:
    stale = scene.run(2)
    before = scene.dataset.version
    scene.run(2)
    scene.dataset.restore(before)
    # It was paused in the middle of epoch 2, which its successor has committed meanwhile.
    with pytest.raises((DatasetRestoredError, FencedError), match="epoch"):
        stale.step()
    assert scene.epochs() == [0, 1]


def test_waiting_driver_sees_a_restore_when_it_polls(scene: Scene) -> None:
    driver = scene.run(4, every=1)
    scene.dataset.restore(scene.dataset.version - 4)
    with pytest.raises(DatasetRestoredError):
        driver.committer.stop_requested(poll=True)


@pytest.mark.parametrize("every", [1, 10])
def test_a_commit_of_its_own_beside_a_poll_is_no_restore(
    scene: Scene, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = scene.driver(every)
    driver.step()
    opened = InMemoryDatasetPort.latest

    def latest(port: InMemoryDatasetPort) -> InMemoryDatasetPort:
        monkeypatch.setattr(InMemoryDatasetPort, "latest", opened)
        seen = opened(port)
        driver.step()  # by the query's thread
        return seen

    monkeypatch.setattr(InMemoryDatasetPort, "latest", latest)
    assert driver.committer.stop_requested(poll=True) is None
    driver.step()
    assert driver.committer.release()


def test_what_is_shown_of_a_restored_dataset_is_what_is_in_it(scene: Scene) -> None:
    scene.run(4)
    scene.dataset.restore(scene.dataset.version - 2)
    mark = exact_watermark(scene.dataset.open(), QUERY)
    assert mark.epoch == 1
    assert [stamp.epoch_id for stamp in mark.undone] == [2, 3]


def test_a_release_that_lands_on_a_restored_version_is_taken_back(scene: Scene) -> None:
    driver = scene.run(4)
    back = scene.dataset.version - 2

    class Restoring(InMemoryDataset):
        def commit(self, *commit: object) -> int:
            self.__class__ = InMemoryDataset
            self.restore(back)
            return self.commit(*commit)  # type: ignore[arg-type]

    scene.dataset.__class__ = Restoring
    assert not driver.committer.release()
    with pytest.raises(DatasetRestoredError, match="epochs 2 to 3"):
        scene.driver()


# -------------------------------------------------------------------- dropped and recreated


def test_a_busy_driver_ends_at_its_next_fold_on_a_recreated_dataset(scene: Scene) -> None:
    driver = scene.run(5, every=3)
    scene.dataset.recreate()
    with pytest.raises(DatasetNotFoundError, match="dropped"):
        run_on(driver, 3)
    assert not driver.committer.release()


def test_a_dataset_that_was_written_over_is_said_to_be_readable_at_its_own_version(
    scene: Scene,
) -> None:
    driver = scene.run(2, every=3)
    scene.dataset.recreate()
    scene.dataset.open().commit(Append([(FOREIGN,)]))
    with pytest.raises(DatasetNotFoundError, match=r"version 2, .* --intact --yes"):
        run_on(driver, 3)
    scene.dataset.restore(2)
    assert scene.dataset.rows() == [FOREIGN]


def test_on_a_local_disk_it_ends_before_it_writes_over_the_other_dataset(scene: Scene) -> None:
    driver = scene.run(5)
    scene.dataset.recreate()
    scene.dataset.open().commit(Append([(FOREIGN,)]))
    scene.dataset.is_local = True
    with pytest.raises(DatasetNotFoundError, match="dropped"):
        driver.step()
    assert scene.dataset.rows() == [FOREIGN]


def test_the_age_of_a_handle_counts_from_the_last_look(scene: Scene) -> None:
    driver = scene.run(2)
    for _ in range(2):
        scene.clock.boot += 25.0
        driver.step()  # a commit is no look
    scene.clock.boot += 25.0
    scene.dataset.recreate()
    with pytest.raises(DatasetNotFoundError):
        driver.step()
    assert scene.dataset.version == 1, "it looked before it sent"


@pytest.mark.parametrize("versions", [0, 3, 30])
def test_driver_ends_at_any_version_of_a_recreated_dataset(scene: Scene, versions: int) -> None:
    driver = scene.run(5)
    scene.dataset.recreate()
    for _ in range(versions):
        scene.dataset.open().commit(Append([(FOREIGN,)]))
    scene.clock.boot += 100.0
    with pytest.raises((DatasetNotFoundError, FencedError)):
        driver.step()
    assert [row for row in scene.dataset.rows() if row != FOREIGN] == []


# ------------------------------------------------------------------------------ paused links


def pause(scene: Scene, meanwhile: Callable[[], None], seconds: float = 10.0) -> None:
    def others() -> None:
        scene.clock.boot += seconds
        meanwhile()

    scene.dataset.while_paused = others
    scene.dataset.faults = [Fault.PAUSED]


def take_and_free(scene: Scene) -> None:
    scene.foreign(5)
    scene.dataset.clean_up(scene.dataset.version)


def test_an_epoch_that_landed_below_the_newest_version_is_sent_again(scene: Scene) -> None:
    driver = scene.run(2)
    pause(scene, lambda: take_and_free(scene))
    driver.step()
    driver.step()
    assert scene.epochs() == [0, 1, 2, 3]
    assert len(scene.dataset.rows()) == 4 * len(epoch_rows(0))
    assert driver.committer.release()


def test_pause_that_one_clock_missed_is_found_by_the_other(scene: Scene) -> None:
    driver = scene.run(2)

    def resumed() -> None:
        scene.clock.wall += 3600.0  # the guest's boot clock saw nothing of the pause
        take_and_free(scene)

    pause(scene, resumed, seconds=0.0)
    driver.step()
    assert scene.epochs() == [0, 1, 2]


def test_a_short_pause_is_found_at_the_next_commit(scene: Scene) -> None:
    driver = scene.run(2)
    pause(scene, lambda: take_and_free(scene), seconds=0.1)
    driver.step()
    with pytest.raises(CommitStateUnknownError):
        driver.step()
    with pytest.raises(HistoryGapError):
        scene.driver()


def test_a_landing_right_below_what_took_its_number_is_sent_again(scene: Scene) -> None:
    driver = scene.run(2)

    def others() -> None:
        scene.foreign(2)
        scene.dataset.clean_up(scene.dataset.version)  # only the newest stays, right above

    pause(scene, others)
    driver.step()
    driver.step()
    assert scene.epochs() == [0, 1, 2, 3]


def test_claim_that_landed_below_the_newest_version_is_repeated(scene: Scene) -> None:
    scene.run(2).committer.release()
    pause(scene, lambda: take_and_free(scene))
    driver = scene.driver()
    driver.step()
    driver.step()
    assert scene.epochs() == [0, 1, 2, 3]
    assert driver.committer.release()


def test_a_slow_commit_that_others_compacted_is_not_sent_again(scene: Scene) -> None:
    driver = scene.run(2)
    sent = scene.dataset.commit

    def slow(*commit: object) -> int:
        scene.dataset.commit = sent  # type: ignore[method-assign]
        landed = sent(*commit)  # type: ignore[arg-type]
        scene.clock.boot += 10.0
        scene.foreign()  # Lance's own compaction reserves fragment ids in a version of its own
        scene.dataset.compact()
        return landed

    scene.dataset.commit = slow  # type: ignore[method-assign]
    driver.step()
    driver.step()
    assert len(scene.dataset.rows()) == 4 * len(epoch_rows(0))


def test_without_the_proof_the_rows_of_a_paused_epoch_are_lost(scene: Scene) -> None:
    driver = scene.driver(chain_proof=False)
    driver.step()
    pause(scene, lambda: take_and_free(scene))
    driver.step()
    driver.step()
    assert scene.epochs() == [0, 2], "the control: this is what the proof is for"
