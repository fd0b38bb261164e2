"""Restored datasets, real ones, under drivers that a successor had fenced."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from airflow_provider_lance.exceptions import DatasetRestoredError, FencedError
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, Moment
from airflow_provider_lance.protocol.model import OutputMode
from tests.support.drivers import QUICK, SparkLike, World, epoch_rows, lance_world

MODES = pytest.mark.parametrize("mode", [OutputMode.APPEND, OutputMode.UPDATE, OutputMode.COMPLETE])


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, self.seconds)


class Scene:
    """An owner with one epoch, and a successor that goes on with two; the dataset as it was."""

    def __init__(self, folder: Path, mode: OutputMode = OutputMode.APPEND) -> None:
        self.uri, self.mode, self.log = str(folder / "table.lance"), mode, dict[str, int]()
        self.world: World = lance_world(self.uri)
        self.clock = Clock()
        self.first = self.driver("first")
        self.first.step()
        before = lance.dataset(self.uri).version
        self.second = self.driver("second")
        self.second.step()
        self.second.step()
        self.restored = before
        lance.dataset(self.uri, version=before).restore()
        self.version = lance.dataset(self.uri).version

    def driver(self, run_id: str) -> SparkLike:
        policy = CommitPolicy(backoff=QUICK, clock=self.clock)
        return SparkLike(self.world, self.log, run_id=run_id, mode=self.mode, policy=policy)

    def unchanged(self) -> bool:
        return lance.dataset(self.uri).version == self.version


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@MODES
@pytest.mark.parametrize("slept", [0.0, 120.0])
def test_a_fenced_driver_whose_owner_record_a_restore_brought_back_commits_nothing(
    tmp_path: Path, mode: OutputMode, slept: float
) -> None:
    scene = Scene(tmp_path, mode)
    scene.clock.seconds += slept
    with pytest.raises(DatasetRestoredError, match=r"epochs 1 to 2 .*\(6 rows\)"):
        scene.first.step()
    assert scene.unchanged()
    assert not scene.first.committer.release()
    assert scene.unchanged()
    with pytest.raises(DatasetRestoredError, match=r"epochs 1 to 2 .*\(6 rows\)"):
        scene.driver("third")


def test_a_fenced_driver_does_not_fold_over_what_a_restore_took(scene: Scene) -> None:
    """It ends in order, without an epoch; a fold above the restored version would hide it."""
    assert not scene.first.committer.release()
    assert scene.unchanged()
    with pytest.raises(DatasetRestoredError, match="epochs 1 to 2"):
        scene.driver("third")


@MODES
@pytest.mark.parametrize("slept", [0.0, 120.0])
def test_the_owner_that_the_restore_took_away_commits_nothing(
    tmp_path: Path, mode: OutputMode, slept: float
) -> None:
    scene = Scene(tmp_path, mode)
    scene.clock.seconds += slept
    with pytest.raises(DatasetRestoredError, match=f"version {scene.version}"):
        scene.second.step()
    assert scene.unchanged()
    assert not scene.second.committer.release()
    assert scene.unchanged()


def test_a_fenced_driver_stops_where_the_rows_were_brought_back_elsewhere(tmp_path: Path) -> None:
    """Its owner record is back, its successor's epochs are done, and no row is gone."""
    uri, log = str(tmp_path / "table.lance"), dict[str, int]()
    world = lance_world(uri)
    first = SparkLike(world, log, run_id="first")
    first.step()
    lance.dataset(uri).update_config({"somebody's": "1"})
    log["planned"] = log["committed"] = 1
    with pytest.raises(FencedError, match="done epoch 1, .* epoch 1:"):
        SparkLikeStale(first).step()
    assert world.rows() == epoch_rows(0)


class SparkLikeStale:
    """A driver that looks at the dataset again, as after an hour."""

    def __init__(self, driver: SparkLike) -> None:
        self._driver = driver

    def step(self) -> object:
        driver = self._driver
        driver.committer._chain._looked = Moment(-3600.0, -3600.0)
        return driver.step()


def test_restore_that_undoes_no_epoch_ends_no_driver(tmp_path: Path) -> None:
    uri, log = str(tmp_path / "table.lance"), dict[str, int]()
    world = lance_world(uri)
    driver = SparkLike(world, log)
    driver.step()
    before = lance.dataset(uri).version
    lance.dataset(uri).update_config({"somebody's": "mistake"})
    lance.dataset(uri, version=before).restore()
    driver.step()
    driver.step()
    assert driver.committer.release()
    SparkLike(world, log, run_id="next").step()
    assert sorted(row["epoch"] for row in world.rows()) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
