"""What the benchmarks of restart, rate and Airflow decide by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.provider_info import get_provider_info
from benchmarks.airflow_side import public_modules
from benchmarks.harness.spark import SCHEMA
from benchmarks.histories import Scene, Size, aged
from benchmarks.rate import CLOSE, highest
from benchmarks.rate_streams import Taken, measured, second


@pytest.mark.parametrize("limit", [1_500, 9_000, 100_000, 730_000, 6_000_000])
def test_the_highest_rate_is_found_from_below_and_from_above(limit: int) -> None:
    tried: list[int] = []

    def holds(rate: int) -> bool:
        tried.append(rate)
        return rate <= limit

    good, bad = highest(holds, 100_000, lambda: True)
    assert bad is not None
    assert good <= limit < bad <= good * CLOSE
    assert len(tried) == len(set(tried)) < 15


def test_a_search_ends_with_its_time_and_with_nothing_that_holds() -> None:
    def ticks(left: int) -> Iterator[bool]:
        return (number < left for number in count())

    two = ticks(2)
    assert highest(lambda rate: True, 100, lambda: next(two)) == (200, None)
    assert highest(lambda rate: False, 100, lambda: True) == (0, 1)


def test_epochs_count_from_when_the_stream_keeps_up() -> None:
    cold, caught_up = Taken(0, 4, 3000), Taken(4, 7, 900)
    warm, full, late = Taken(7, 8, 300), Taken(8, 9, 400), Taken(9, 10, 1001)
    behind = Taken(10, 12, 500)
    assert measured([cold, caught_up, warm, full, late, behind], 1) == [full, late, behind]
    assert [each.in_time(1) for each in (full, late, behind)] == [True, False, False]
    assert measured([cold, caught_up], 1) == []
    partial = Taken(1, 4, 100)
    assert measured([Taken(0, 1, 100), partial, Taken(4, 9, 100)], 5) == [Taken(4, 9, 100)]


def test_what_an_offset_of_the_rate_source_means() -> None:
    assert [second(each) for each in (None, "null", "0", "12")] == [0, 0, 0, 12]


def test_the_modules_that_airflow_is_told_about() -> None:
    modules = public_modules(get_provider_info())
    assert modules == sorted(set(modules))
    package = "airflow_provider_lance"
    for name in ("assets.lance", "cli.airflow", "hooks.lance", "links.lance", "triggers.event"):
        assert f"{package}.{name}" in modules


def test_a_scene_goes_back_to_what_it_was(tmp_path: Path) -> None:
    scene = Scene(aged(tmp_path / "scene", 105), Size(105, 1))
    scene.checkpoint.mkdir()
    scene.keep()
    for text in ("one", "two"):
        dataset = lance.dataset(scene.uri)
        before = dataset.version
        lance.write_dataset(SCHEMA.empty_table(), dataset, mode="append")
        dataset.update_config({"said": text})
        (scene.checkpoint / "metadata").write_text(text)
        scene.back()
        assert lance.dataset(scene.uri).version == before == 5
        assert "said" not in lance.dataset(scene.uri).config()
        assert not any(scene.checkpoint.iterdir())
