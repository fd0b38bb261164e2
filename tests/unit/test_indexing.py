"""Indices beside compaction: their answers stay those of a full look."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_lance.exceptions import (
    CommitPreemptedError,
    DatasetNotFoundError,
    StorageUnavailableError,
)
from airflow_provider_lance.maintenance import indexing
from airflow_provider_lance.maintenance.compaction import compact
from airflow_provider_lance.maintenance.dataset_metrics import read_indices, uncovered_rows
from airflow_provider_lance.maintenance.indexing import MANY_PARTS, refresh_indices
from airflow_provider_lance.protocol.backoff import Backoff
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from tests.support.drivers import QUICK
from tests.support.maintenance import append, make, meanwhile, run

SIZE, PER_FRAGMENT = 8, 64
DEFERRED = pytest.mark.parametrize("defer", [False, True])


def vectors(first: int, count: int = PER_FRAGMENT) -> pa.Table:
    made = np.random.default_rng(first).random((count, SIZE), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), SIZE)
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "vector": column})


def make_vectors(folder: Path, fragments: int = 8) -> str:
    uri = str(folder / "v.lance")
    for number in range(fragments):
        lance.write_dataset(vectors(number * PER_FRAGMENT), uri, mode="append")
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=4, metric="l2")
    return uri


def add_vectors(uri: str, first: int) -> None:
    lance.write_dataset(vectors(first), uri, mode="append")


def expect_right_answers(uri: str) -> None:
    """Compare the indices' answers with those of a look at every row."""
    dataset = lance.dataset(uri)
    table = dataset.to_table()
    there = set(table.column("id").to_pylist())
    assert len(there) == table.num_rows
    for wanted in [*sorted(there)[::29], -1, 10**6]:
        found = dataset.to_table(filter=f"id = {wanted}", columns=["id"]).column("id").to_pylist()
        assert found == ([wanted] if wanted in there else []), wanted
    below = dataset.to_table(filter="id >= 50 and id < 300", columns=["id"])
    assert sorted(below.column("id").to_pylist()) == sorted(n for n in there if 50 <= n < 300)
    if "vector" not in table.column_names:
        return
    all_vectors = np.array(table.column("vector").to_pylist(), dtype=np.float32)
    all_ids = np.array(table.column("id").to_pylist())
    for query in np.random.default_rng(7).random((5, SIZE), dtype=np.float32):
        nearest = {"column": "vector", "q": query, "k": 10, "nprobes": 64}
        found = dataset.to_table(nearest=nearest, columns=["id"]).column("id").to_pylist()
        distances = ((all_vectors - query) ** 2).sum(axis=1)
        assert set(found) == set(all_ids[np.argsort(distances)[:10]].tolist())


def uses_index(uri: str) -> bool:
    plan = lance.dataset(uri).scanner(filter="id = 55").explain_plan(verbose=True)
    return "ScalarIndexQuery" in plan


@DEFERRED
def test_new_fragments_come_into_every_index(tmp_path: Path, defer: bool) -> None:
    uri = make_vectors(tmp_path)
    for number in range(8, 12):
        add_vectors(uri, number * PER_FRAGMENT)
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 256, "vector_idx": 256}
    expect_right_answers(uri)
    assert refresh_indices(open_dataset(uri)) == {"id_idx": 0, "vector_idx": 0}
    assert refresh_indices(open_dataset(uri)) == {}
    options = {"target_rows_per_fragment": 256, "defer_index_remap": defer}
    assert compact(open_dataset(uri), options).fragments_removed == 12
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 0, "vector_idx": 0}
    assert uses_index(uri)
    expect_right_answers(uri)


def test_an_index_with_many_parts_gets_few_and_trained_again_one(tmp_path: Path) -> None:
    uri = make_vectors(tmp_path)
    for number in range(8, 8 + MANY_PARTS):
        add_vectors(uri, number * PER_FRAGMENT)
        lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    add_vectors(uri, 5000)
    assert refresh_indices(open_dataset(uri)) == {"id_idx": 0, "vector_idx": 0}
    assert {len(each.parts) for each in read_indices(open_dataset(uri)).values()} == {1}
    lance.dataset(uri).optimize.optimize_indices(index_names=["vector_idx"], retrain=True)
    expect_right_answers(uri)


@DEFERRED
def test_answers_stay_right_through_deletes_compactions_refreshes_and_cleanups(
    tmp_path: Path, defer: bool
) -> None:
    uri = make_vectors(tmp_path)
    compaction = {"target_rows_per_fragment": 200, "defer_index_remap": defer}
    for turn in range(4):
        for number in range(3):
            add_vectors(uri, 1000 * (turn + 1) + number * PER_FRAGMENT)
        lance.dataset(uri).delete(f"id % 9 = {turn}")
        report = run(uri, compaction=compaction, olderThan=0)
        assert report.done["index"]["left"] == {"id_idx": 0, "vector_idx": 0}
        assert report.after.uncovered_rows == 0
        assert report.after.versions == 1
        assert uses_index(uri)
        expect_right_answers(uri)


@DEFERRED
def test_a_refresh_in_the_middle_of_a_compaction_costs_no_answer(
    tmp_path: Path, defer: bool
) -> None:
    uri = make_vectors(tmp_path)
    for number in range(8, 12):
        add_vectors(uri, number * PER_FRAGMENT)

    def refresh() -> None:
        assert refresh_indices(open_dataset(uri)) == {"id_idx": 0, "vector_idx": 0}

    options = {"target_rows_per_fragment": 256, "defer_index_remap": defer}
    done = compact(open_dataset(uri), options, execute=meanwhile(refresh))
    assert done.left == 0
    assert done.fragments_removed >= 8
    expect_right_answers(uri)
    refresh_indices(open_dataset(uri))
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 0, "vector_idx": 0}
    expect_right_answers(uri)


class InTheWay:
    """Lets something happen between the moment a refresh looks and the moment it commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[int], Any]) -> None:
        self.calls = 0
        optimizers = import_module("lance.dataset").DatasetOptimizer
        real = optimizers.optimize_indices

        def optimize(optimizer: Any, **kwargs: Any) -> None:
            self.calls += 1
            happens(self.calls)
            real(optimizer, **kwargs)

        monkeypatch.setattr(optimizers, "optimize_indices", optimize)


def test_a_refresh_that_a_compaction_preempted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    for number in range(4, 8):
        append(uri, number * 10)

    def happens(call: int) -> None:
        if call == 1:
            compact(open_dataset(uri), {"target_rows_per_fragment": 40})

    way = InTheWay(monkeypatch, happens)
    assert refresh_indices(open_dataset(uri), QUICK) == {"id_idx": 0}
    assert way.calls == 2
    expect_right_answers(uri)


def test_a_refresh_that_never_gets_through_ends_in_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 1)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 500)

    def happens(call: int) -> None:
        append(uri, 1000 * call)
        compact(open_dataset(uri), {"target_rows_per_fragment": 1000})

    way = InTheWay(monkeypatch, happens)
    with pytest.raises(CommitPreemptedError, match=r"\['id_idx'\].*t.lance.*preempted"):
        refresh_indices(open_dataset(uri), Backoff(attempts=3, first=0.0))
    assert way.calls == 3
    expect_right_answers(uri)


def test_appends_and_deletes_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 40)

    def happens(call: int) -> None:
        append(uri, 500)
        lance.dataset(uri).delete("id in (3, 45)")

    way = InTheWay(monkeypatch, happens)
    assert refresh_indices(open_dataset(uri), QUICK) == {"id_idx": 10}, "what came meanwhile"
    assert way.calls == 1
    expect_right_answers(uri)


def test_a_table_overwritten_in_the_middle_is_a_conflict_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 4)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 40)

    def happens(call: int) -> None:
        lance.write_dataset(vectors(0).select(["id"]), uri, mode="overwrite")

    InTheWay(monkeypatch, happens)
    with suppress(CommitPreemptedError):
        refresh_indices(open_dataset(uri), Backoff(attempts=2, first=0.0))
    assert lance.dataset(uri).count_rows() == PER_FRAGMENT
    assert lance.dataset(uri).count_rows("id = 33") == 1


def test_a_store_that_fails_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 1)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 40)

    def happens(call: int) -> None:
        raise OSError("connection reset")

    way = InTheWay(monkeypatch, happens)
    with pytest.raises(StorageUnavailableError, match="connection reset"):
        refresh_indices(open_dataset(uri), QUICK)
    assert way.calls == 1


def test_a_dataset_without_indices_needs_no_refresh(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    assert refresh_indices(open_dataset(uri)) == {}
    assert open_dataset(uri).version == 2


def test_a_dataset_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make(tmp_path, 2)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 40)
    port = open_dataset(uri)
    seen = indexing.read_indices

    def drop(at: LanceDatasetPort) -> Any:
        found = seen(at)
        shutil.rmtree(uri, ignore_errors=True)
        return found

    monkeypatch.setattr(indexing, "read_indices", drop)
    with pytest.raises(DatasetNotFoundError, match="t.lance"):
        refresh_indices(port, QUICK)
