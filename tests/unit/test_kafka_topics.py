"""Which topics are not the recorded ones, how many offsets are gone, and how that is shown."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_lance.diagnostics.formatting import unmet
from airflow_provider_lance.protocol.row_checks import RowChecks
from airflow_provider_lance.spark.kafka import gone_offsets, replaced_topics


@pytest.mark.parametrize(
    ("known", "seen", "expected"),
    [
        ({}, {"a": ("1",)}, []),
        ({"a": ("1",)}, {"a": ("1",), "b": ("2",)}, []),
        ({"a": ("1",)}, {"a": ("2",)}, ["a"]),
        ({"b": ("1",), "a": ("1",)}, {"b": ("2",), "a": ("2",)}, ["a", "b"]),
        ({"a": ("1",)}, {}, []),
        ({"a": ("1", "2")}, {"a": ("2",)}, []),
        ({"a": ("1", "2")}, {"a": ("2", "3")}, ["a"]),
    ],
)
def test_replaced_topics(known: Any, seen: Any, expected: list[str]) -> None:
    assert replaced_topics(known, seen) == expected


@pytest.mark.parametrize(
    ("starts", "ends", "earliest", "expected"),
    [
        ({0: 10}, {0: 20}, {0: 0}, 0),
        ({0: 10}, {0: 20}, {0: 10}, 0),
        ({0: 10}, {0: 20}, {0: 15}, 5),
        ({0: 10}, {0: 20}, {0: 99}, 10),
        ({0: 10, 1: 0}, {0: 20, 1: 5}, {0: 12, 1: 3}, 5),
        ({0: 10}, {0: 20, 1: 5}, {0: 0, 1: 2}, 2),
        ({0: 10}, {0: 3}, {0: 99}, 0),
        ({0: 10}, {0: 20}, {}, 0),
    ],
)
def test_gone_offsets(
    starts: dict[int, int], ends: dict[int, int], earliest: dict[int, int], expected: int
) -> None:
    def of_topic(each: dict[int, int]) -> dict[tuple[str, int], int]:
        return {("a", partition): offset for partition, offset in each.items()}

    assert gone_offsets(of_topic(starts), of_topic(ends), of_topic(earliest)) == expected


def test_lost_offsets_travel_with_the_epoch_and_are_shown() -> None:
    checks = RowChecks(lost=5, dropped=1)
    assert RowChecks.decode(checks.encode()) == RowChecks.read_json(checks.to_json()) == checks
    assert unmet(checks) == "1 dropped, 5 lost"
    assert checks.not_landed == 1, "they were never read"
    assert (checks + checks).lost == 10
    older = {name: value for name, value in checks.to_json().items() if name != "lost"}
    assert RowChecks.read_json(older).lost == 0
