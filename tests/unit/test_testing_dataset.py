from __future__ import annotations

import threading

import pytest

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    CommitStateUnknownError,
    DatasetNotFoundError,
)
from airflow_provider_lance.protocol.port import (
    Append,
    Barrier,
    Change,
    Configure,
    Overwrite,
    Upsert,
)
from airflow_provider_lance.testing.dataset import Fault, InMemoryDataset

ROW = {"id": 1, "v": "a"}
ONE = Append([(ROW,)])


@pytest.fixture
def dataset() -> InMemoryDataset:
    return InMemoryDataset(config={"user.key": "kept"})


def test_starts_empty_with_its_config(dataset: InMemoryDataset) -> None:
    port = dataset.open()
    assert (port.version, port.uri, dict(port.config)) == (1, dataset.uri, {"user.key": "kept"})
    assert (dataset.rows(), dataset.fragments) == ([], 0)


def test_a_commit_is_a_version_with_its_properties(dataset: InMemoryDataset) -> None:
    port = dataset.open().commit(ONE, {"k": "v"})
    assert (port.version, dataset.version) == (2, 2)
    assert port.properties(2) == {"k": "v"}
    assert port.properties(1) == {}
    assert port.properties(3) is None


def test_an_older_version_stays_as_it_was(dataset: InMemoryDataset) -> None:
    dataset.open().commit(Configure({"user.key": "new", "other": "x"}))
    assert dict(dataset.open(1).config) == {"user.key": "kept"}
    assert dict(dataset.open().config) == {"user.key": "new", "other": "x"}


def test_a_key_set_to_none_is_removed(dataset: InMemoryDataset) -> None:
    port = dataset.open().commit(Configure({"user.key": None, "never.there": None}))
    assert dict(port.config) == {}


def test_a_compaction_keeps_rows_and_order_in_one_fragment(dataset: InMemoryDataset) -> None:
    rows = [{"id": n, "v": "x"} for n in range(5)]
    port = dataset.open()
    for row in rows:
        port = port.commit(Append([(row,)]))
    assert dataset.fragments == 5
    dataset.compact()
    assert dataset.fragments == 1
    assert dataset.rows() == rows


def test_an_upsert_keeps_what_it_does_not_name(dataset: InMemoryDataset) -> None:
    port = dataset.open().commit(Append([(ROW, {"id": 2, "v": "b"})]))
    port = port.commit(Upsert([({"id": 2, "v": "new"},)], [{"id": 2}, {"id": 3}], ("id",)))
    assert dataset.rows() == [ROW, {"id": 2, "v": "new"}]


def test_an_overwrite_replaces_all_rows_and_keeps_the_config(dataset: InMemoryDataset) -> None:
    port = dataset.open().commit(ONE)
    port = port.commit(Overwrite([({"id": 9},)]))
    assert dataset.rows() == [{"id": 9}]
    assert port.config["user.key"] == "kept"


def test_a_preempted_commit_leaves_nothing(dataset: InMemoryDataset) -> None:
    stale = dataset.open()
    dataset.open().commit(Barrier())
    with pytest.raises(CommitPreemptedError, match="Append on version 1 .* by version 2"):
        stale.commit(ONE)
    assert dataset.version == 2
    assert dataset.rows() == []


def test_a_stale_append_lands_on_top_of_what_it_may_pass(dataset: InMemoryDataset) -> None:
    stale = dataset.open()
    dataset.open().commit(ONE).commit(Configure({"x": "1"}))
    port = stale.commit(Append([({"id": 2, "v": "b"},)]))
    assert port.version == 4
    assert port.config["x"] == "1"
    assert [row["id"] for row in dataset.rows()] == [1, 2]


@pytest.mark.parametrize("keep_from", [3, 99])
def test_a_cleanup_takes_old_versions_and_never_the_newest(
    dataset: InMemoryDataset, keep_from: int
) -> None:
    port = dataset.open().commit(ONE, {"k": "v"}).commit(Configure({"x": "1"}))
    dataset.clean_up(keep_from)
    assert port.properties(2) is None
    assert port.properties(3) == {}
    assert dataset.rows() == [ROW]
    with pytest.raises(DatasetNotFoundError, match="version 2 .* cleaned up"):
        dataset.open(2)


LANDED: list[tuple[Fault, bool]] = [
    (Fault.LOST_REQUEST, False),
    (Fault.LOST_ANSWER, True),
    (Fault.LATE, False),
]


@pytest.mark.parametrize(("fault", "landed"), LANDED)
def test_each_fault_hides_whether_the_commit_landed(
    dataset: InMemoryDataset, fault: Fault, landed: bool
) -> None:
    dataset.faults = [None, fault]
    port = dataset.open().commit(Configure({"x": "1"}))
    with pytest.raises(CommitStateUnknownError, match="Append"):
        port.commit(ONE)
    assert (dataset.rows() == [ROW]) is landed
    assert dataset.faults == []


def test_a_late_write_lands_before_the_next_commit(dataset: InMemoryDataset) -> None:
    dataset.faults = [Fault.LATE]
    with pytest.raises(CommitStateUnknownError):
        dataset.open().commit(ONE)
    port = dataset.open().commit(Configure({"x": "1"}))
    assert port.version == 3
    assert dataset.rows() == [ROW]


def test_a_late_write_lands_nowhere_once_its_version_is_taken(dataset: InMemoryDataset) -> None:
    dataset.faults = [Fault.LATE]
    other = dataset.open()
    with pytest.raises(CommitStateUnknownError):
        dataset.open().commit(ONE)
    late, dataset._late = dataset._late, None
    other.commit(Barrier())
    assert late is not None
    dataset._late = late
    dataset.open().commit(Barrier())
    assert (dataset.version, dataset.rows()) == (3, [])


def test_threads_that_append_at_once_all_land(dataset: InMemoryDataset) -> None:
    port = dataset.open()
    start = threading.Barrier(4)

    def append(n: int) -> None:
        start.wait()
        for m in range(20):
            port.commit(Append([({"id": n * 100 + m},)]))

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dataset.version == 81
    assert len({row["id"] for row in dataset.rows()}) == 80


@pytest.mark.parametrize("landed", [ONE, Configure({"x": "1"}), Barrier(), Overwrite([])])
def test_an_overwrite_is_a_true_compare_and_swap(dataset: InMemoryDataset, landed: Change) -> None:
    stale = dataset.open()
    dataset.open().commit(landed)
    with pytest.raises(CommitPreemptedError):
        stale.commit(Overwrite([]))
