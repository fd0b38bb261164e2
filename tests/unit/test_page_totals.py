"""How many fragments a dataset had at earlier versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.plugins.page import queries as totals
from airflow_provider_lance.plugins.page.queries import fragment_totals
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.maintenance import append, make

FIRST = {1: "09:00", 2: "09:01", 3: "09:02"}


def test_each_version_has_its_own_fragment_total(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    assert fragment_totals(open_dataset(uri), FIRST) == {1: 1, 2: 2, 3: 3}


def test_a_version_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make(tmp_path, 3)
    fragment_totals(open_dataset(uri), FIRST)
    append(uri, 100)
    with monkeypatch.context() as patch:
        patch.setattr(totals, "_SECONDS", -1.0)
        assert fragment_totals(open_dataset(uri), FIRST | {4: "09:03"}) == {}
        assert fragment_totals(open_dataset(uri), FIRST) == {1: 1, 2: 2, 3: 3}
    assert fragment_totals(open_dataset(uri), FIRST | {4: "09:03"})[4] == 4


def test_recreated_dataset_has_fragment_totals_of_its_own(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    fragment_totals(open_dataset(uri), FIRST)
    shutil.rmtree(uri)
    make(tmp_path, 1)
    lance.dataset(uri).update_config({"a": "b"})
    assert fragment_totals(open_dataset(uri), {1: "10:00", 2: "10:01"}) == {1: 1, 2: 1}


def test_versions_that_were_cleaned_up_are_left_out(tmp_path: Path) -> None:
    uri = make(tmp_path, 3)
    assert fragment_totals(open_dataset(uri), {3: "11:00", 99: "11:01"}) == {3: 3}


def test_the_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_MOST", 2)
    fragment_totals(open_dataset(make(tmp_path, 3)), FIRST)
    assert len(totals._known) == 2
