from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.maintenance import dataset_metrics as module
from airflow_provider_lance.maintenance.dataset_metrics import list_versions
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.maintenance import append, make, manifest


@pytest.mark.parametrize("newer", [True, False])
def test_both_schemes_of_names_tell_number_size_and_time(tmp_path: Path, newer: bool) -> None:
    uri = make(tmp_path, 12, enable_v2_manifest_paths=newer)
    assert any(len(path.stem) == 20 for path in Path(uri, "_versions").iterdir()) is newer
    hour_ago = time.time() - 3600
    os.utime(manifest(uri, 3), (hour_ago, hour_ago))
    found = list_versions(open_dataset(uri))
    assert [version.number for version in found] == list(range(1, 13))
    assert [version.size for version in found] == [
        manifest(uri, number).stat().st_size for number in range(1, 13)
    ]
    assert found[2].written == datetime.fromtimestamp(hour_ago, UTC).replace(
        microsecond=found[2].written.microsecond
    )
    assert datetime.now(UTC) - found[3].written < timedelta(minutes=10)


def test_a_dataset_that_changed_its_scheme_on_the_way_is_read_on(tmp_path: Path) -> None:
    uri = make(tmp_path, 3, enable_v2_manifest_paths=False)
    lance.dataset(uri).migrate_manifest_paths_v2()
    append(uri, 90)
    assert [version.number for version in list_versions(open_dataset(uri))] == [1, 2, 3, 4]


def test_what_is_no_manifest_of_a_version_is_passed_over(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    for name in ("d123.manifest", ".tmp_5.manifest", "7.manifest-part", "latest.json"):
        Path(uri, "_versions", name).touch()
    assert [version.number for version in list_versions(open_dataset(uri))] == [1, 2]


@pytest.mark.parametrize("name", ["with space", "100%25", "a#b", "ü?x"])
def test_versions_are_listed_for_names_that_a_uri_encodes(tmp_path: Path, name: str) -> None:
    uri = make(tmp_path, 2, name=name)
    assert len(list_versions(open_dataset(uri))) == 2


def test_versions_are_listed_for_a_uri_with_a_scheme(tmp_path: Path) -> None:
    uri = make(tmp_path, 2)
    assert len(list_versions(open_dataset(f"file://{uri}"))) == 2


def test_where_pyarrow_does_not_serve_the_store_manifests_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = make(tmp_path, 4)
    listed = list_versions(open_dataset(uri))

    def refuse(location: str, storage_options: object = None) -> None:
        raise SpecError(f"cannot open {location!r}")

    monkeypatch.setattr(module, "open_files", refuse)
    read = list_versions(open_dataset(uri))
    assert [version.number for version in read] == [1, 2, 3, 4]
    assert {version.size for version in read} == {0}
    for one, other in zip(read, listed, strict=True):
        assert abs(one.written - other.written) < timedelta(seconds=5), "both in UTC"
