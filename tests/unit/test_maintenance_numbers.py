from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.exceptions import DatasetNotFoundError
from airflow_provider_lance.maintenance.dataset_metrics import measure, uncovered_rows
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.json_codec import camel
from tests.support.maintenance import append, make, manifest, numbers


def test_a_dataset_in_numbers_is_what_its_files_say(tmp_path: Path) -> None:
    uri = make(tmp_path, 4)
    append(uri, 100, 50)
    lance.dataset(uri).delete("id in (0, 1, 100)")
    seen = measure(open_dataset(uri), 20)
    data = list(Path(uri, "data").iterdir())
    assert (seen.rows, seen.deleted_rows) == (87, 3)
    assert (seen.fragments, seen.small_fragments, seen.files) == (5, 4, 5)
    assert seen.bytes == sum(path.stat().st_size for path in data)
    assert (seen.version, seen.versions) == (6, 6)
    assert seen.manifest_bytes == manifest(uri, 6).stat().st_size
    assert seen.history_bytes == sum(manifest(uri, n).stat().st_size for n in numbers(uri))
    assert seen.uncovered_rows == 0


def test_a_fragment_counts_as_small_by_its_live_rows(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    assert measure(open_dataset(uri), 10).small_fragments == 0
    lance.dataset(uri).delete("id = 3")
    assert measure(open_dataset(uri), 10).small_fragments == 1


def test_rows_not_covered_are_those_of_the_index_that_leaves_out_most(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    append(uri, 100)
    lance.dataset(uri).create_scalar_index("epoch", "BITMAP")
    append(uri, 200)
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 20, "epoch_idx": 10}
    assert measure(open_dataset(uri), 10).uncovered_rows == 20
    lance.dataset(uri).delete("id >= 195")
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 10, "epoch_idx": 0}


def test_internal_indices_of_lance_are_not_counted(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files(defer_index_remap=True)
    assert "__lance_frag_reuse" in {i.name for i in lance.dataset(uri).describe_indices()}
    assert uncovered_rows(open_dataset(uri)) == {"id_idx": 0}


def test_a_dataset_without_rows_has_numbers_too(tmp_path: Path) -> None:
    uri = make(tmp_path, 1)
    lance.dataset(uri).delete("true")
    seen = measure(open_dataset(uri), 10)
    assert (seen.rows, seen.fragments, seen.bytes, seen.versions) == (0, 0, 0, 2)


def test_a_dataset_that_is_gone_is_named(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    port = open_dataset(uri)
    shutil.rmtree(uri)
    with pytest.raises(DatasetNotFoundError, match="t.lance"):
        measure(port, 10)


def test_dataset_metrics_are_camel_case_in_json(tmp_path: Path) -> None:
    assert camel("manifest_bytes") == "manifestBytes"
    plain = measure(open_dataset(make(tmp_path, 1)), 10).to_json()
    assert set(plain) >= {"smallFragments", "deletedRows", "uncoveredRows", "historyBytes"}
