"""What is expected of an epoch, from the ones before it."""

from __future__ import annotations

import pytest

from airflow_provider_lance.spark.epoch_writer import EpochSizeEstimate, Size


def test_no_size_is_estimated_for_the_first_two_epochs_of_a_run() -> None:
    forecast = EpochSizeEstimate()
    assert forecast.at(10.0) is None
    forecast.note(10.0, Size(100, 1000))
    assert forecast.at(11.0) is None
    forecast.note(11.0, Size(100, 1000))
    assert forecast.at(12.0) == Size(100, 1000)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (25.0, Size(200, 2000)),  # sooner than usual: no less than the last
        (30.0, Size(200, 2000)),
        (120.0, Size(2000, 20_000)),  # ten times later: a backlog
    ],
)
def test_estimate_is_the_last_rate_times_the_seconds_since(now: float, expected: Size) -> None:
    forecast = EpochSizeEstimate()
    forecast.note(10.0, Size(100_000, 1))
    forecast.note(20.0, Size(200, 2000))
    assert forecast.at(now) == expected


def test_no_size_is_estimated_from_two_epochs_of_one_moment() -> None:
    forecast = EpochSizeEstimate()
    forecast.note(10.0, Size(100, 1000))
    forecast.note(10.0, Size(100, 1000))
    assert forecast.at(11.0) is None
