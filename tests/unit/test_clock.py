"""The clock for ages that guard a commit."""

from __future__ import annotations

import time

import pytest

from airflow_provider_lance.protocol.commit_policy import Moment, now


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        (Moment(160.0, 1000.0), 60.0),
        (Moment(100.0, 1060.0), 60.0),
        (Moment(100.0, 940.0), 60.0),
        (Moment(160.0, 1030.0), 60.0),
    ],
    ids=["the wall clock stands still", "paused unseen", "set back", "both run"],
)
def test_elapsed_time_is_that_of_the_clock_that_advanced_more(
    later: Moment, seconds: float
) -> None:
    assert later.since(Moment(100.0, 1000.0)) == seconds


def test_now_counts_the_time_in_which_the_machine_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {time.CLOCK_BOOTTIME: 7.0, time.CLOCK_MONOTONIC: 3.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "time", lambda: 11.0)
    assert now() == Moment(7.0, 11.0)
