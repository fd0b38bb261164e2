from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest

from airflow_provider_lance.protocol.codec import fold_updates
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.watermark import (
    WatermarkReader,
    exact_watermark,
    find_epoch,
)
from airflow_provider_lance.testing.dataset import InMemoryDataset, InMemoryDatasetPort
from tests.support.drivers import QUERY, QUICK, SparkLike, twin_world


class CountingPort(InMemoryDatasetPort):
    """Counts how often each version's transaction is read."""

    reads: ClassVar[Counter[int]] = Counter()

    def latest(self) -> CountingPort:
        return CountingPort(self._dataset, self._dataset.version)

    def properties(self, version: int) -> Mapping[str, str] | None:
        self.reads[version] += 1
        return super().properties(version)


@pytest.fixture
def dataset() -> InMemoryDataset:
    return InMemoryDataset()


@pytest.fixture
def port(dataset: InMemoryDataset) -> CountingPort:
    CountingPort.reads = Counter()
    return CountingPort(dataset, dataset.version)


def driver(dataset: InMemoryDataset, log: dict[str, int], every: int = 10) -> SparkLike:
    policy = CommitPolicy(watermark_every=every, backoff=QUICK)
    return SparkLike(twin_world(dataset), log, policy=policy)


def test_a_query_that_is_not_there_costs_no_read(port: CountingPort) -> None:
    mark = exact_watermark(port, QUERY)
    assert (mark.epoch, mark.version, mark.committed_at, mark.stamps) == (-1, 1, None, ())
    assert not port.reads


def test_each_version_is_read_once_however_often_one_asks(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    reader = WatermarkReader(port, QUERY)
    for n in range(25):
        running.step()
        assert reader.read().epoch == n
        assert reader.read().version == dataset.version
    assert set(port.reads.values()) == {1}


def test_new_reader_reads_only_the_versions_after_the_fold(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    for _ in range(13):
        running.step()
    mark = WatermarkReader(port, QUERY).read()
    assert mark.epoch == 12
    assert [stamp.epoch_id for stamp in mark.stamps] == [10, 11, 12]
    assert sorted(port.reads) == list(range(dataset.version - 3, dataset.version + 1))


def test_folds_leave_the_number_as_it_was(dataset: InMemoryDataset, port: CountingPort) -> None:
    running = driver(dataset, {}, every=2)
    reader = WatermarkReader(port, QUERY)
    seen = []
    for _ in range(6):
        running.step()
        seen.append(reader.read().epoch)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_released_query_is_read_from_its_config_alone(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    for _ in range(3):
        running.step()
    assert running.committer.release()
    for n in range(20):
        dataset.open().commit(Configure({"user.key": str(n)}))
    mark = exact_watermark(port.latest(), QUERY)
    assert (mark.epoch, mark.version, mark.stamps, mark.missing) == (2, dataset.version, (), 0)
    assert mark.committed_at is not None
    assert not port.reads


def test_a_reader_follows_over_release_and_the_next_claim(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    log: dict[str, int] = {}
    reader = WatermarkReader(port, QUERY)
    for n in range(3):
        running = driver(dataset, log)
        running.step()
        assert reader.read().epoch == n
        assert running.committer.release()
        assert reader.read().epoch == n
    assert max(port.reads.values()) == 1


def test_a_new_generation_forgets_the_old_numbers(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    old = driver(dataset, {})
    for _ in range(4):
        old.step()
    reader = WatermarkReader(port, QUERY)
    assert reader.read().epoch == 3
    anew = SparkLike(
        twin_world(dataset),
        {},
        checkpoint_id="other",
        policy=CommitPolicy(new_generation=True, backoff=QUICK),
    )
    anew.step()
    mark = reader.read()
    assert mark.epoch == 0
    assert [stamp.generation for stamp in mark.stamps] == [1]
    assert exact_watermark(dataset.open(), QUERY).epoch == 0


def test_versions_that_were_cleaned_up_are_counted(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    for _ in range(5):  # versions 2 (claim) to 7, folded up to 1
        running.step()
    dataset.clean_up(5)
    mark = exact_watermark(port.latest(), QUERY)
    assert (mark.epoch, mark.missing) == (4, 3)
    assert [stamp.epoch_id for stamp in mark.stamps] == [2, 3, 4]


def test_what_was_read_before_the_cleanup_is_not_missing(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    reader = WatermarkReader(port, QUERY)
    for _ in range(5):
        running.step()
    reader.read()
    dataset.clean_up(dataset.version)
    running.step()
    mark = reader.read()
    assert (mark.epoch, mark.missing) == (5, 0)


def test_a_fold_closes_the_gap_below_it(dataset: InMemoryDataset, port: CountingPort) -> None:
    running = driver(dataset, {})
    reader = WatermarkReader(port, QUERY)
    for _ in range(9):
        running.step()
    dataset.clean_up(5)
    assert reader.read().missing == 3
    running.step()
    assert reader.read().missing == 0


def test_fold_closes_the_gap_below_it_for_a_reader_that_has_read_further(
    dataset: InMemoryDataset, port: CountingPort
) -> None:
    running = driver(dataset, {})
    for _ in range(5):
        running.step()
    dataset.clean_up(5)
    reader = WatermarkReader(port, QUERY)
    mark = reader.read()
    assert mark.missing == 3
    folded = fold_updates(QUERY, mark.epoch, mark.version, mark.committed_at)
    dataset.open().commit(Configure(folded))
    assert (reader.read().epoch, reader.read().missing) == (4, 0)


def test_a_start_reads_each_version_once(dataset: InMemoryDataset, port: CountingPort) -> None:
    log: dict[str, int] = {}
    killed = driver(dataset, log)
    for _ in range(8):
        killed.step()
    world = replace(twin_world(dataset), open=port.latest)
    SparkLike(world, log, policy=CommitPolicy(backoff=QUICK)).step()
    assert len(port.reads) > 8
    assert set(port.reads.values()) == {1}


def test_another_querys_epochs_do_not_count(dataset: InMemoryDataset) -> None:
    SparkLike(twin_world(dataset), {}).step()
    other: dict[str, int] = {}
    for _ in range(3):
        SparkLike(twin_world(dataset), other, query_id="other").step()
    assert exact_watermark(dataset.open(), QUERY).epoch == 0
    assert exact_watermark(dataset.open(), "other").epoch == 2


def test_epoch_is_found_by_its_owner_and_after_the_given_version_only(
    dataset: InMemoryDataset,
) -> None:
    running = driver(dataset, {})
    running.step()
    running.step()
    owner = running.committer.owner
    assert owner is not None
    port = dataset.open()
    found = find_epoch(port, QUERY, owner, 1, after=1)
    assert found is not None
    assert (found.epoch_id, found.version) == (1, port.version)
    assert find_epoch(port, QUERY, owner, 1, after=port.version) is None
    assert find_epoch(port, QUERY, owner, 2, after=1) is None
    assert find_epoch(port, "other", owner, 1, after=1) is None


def test_the_same_epoch_by_another_owner_is_no_answer(dataset: InMemoryDataset) -> None:
    log: dict[str, int] = {}
    first = driver(dataset, log)
    first.step()
    owner = first.committer.owner
    assert owner is not None
    driver(dataset, log).step()  # token 2 commits epoch 1
    assert find_epoch(dataset.open(), QUERY, owner, 1, after=1) is None
