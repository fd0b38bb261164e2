"""When a stream will have caught up, how long its rows wait, and the trend of a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_lance.diagnostics.outlook import (
    Outlook,
    Sample,
    outlook,
    samples,
    waiting_seconds,
)
from airflow_provider_lance.diagnostics.trend import points_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def seen(*behind: float, every: float = 10.0, read: float = 100.0) -> list[Sample]:
    start = BEGIN.timestamp()
    return [Sample(start + every * n, each, read) for n, each in enumerate(behind)]


@pytest.mark.parametrize(
    ("behind", "says"),
    [
        ((), ""),
        ((900, 600), ""),
        ((0, 0, 0, 0), ""),
        ((500, 500, 500), ""),
        ((100_000, 100_010, 100_000, 100_005), ""),
        ((9000, 6000, 3000), "caught up in about 10 s"),
        ((100_000, 99_000, 98_000), "caught up in about 16 min"),
        ((1000, 3000, 5000), "falls behind by 200 rows/s"),
        ((10, 11, 12, 13), "falls behind slowly"),
        ((900, 600, 0), ""),
    ],
)
def test_outlook_is_the_line_through_what_was_unread(behind: tuple[float, ...], says: str) -> None:
    assert str(outlook(seen(*behind))) == says


def test_outlook_counts_files_as_files_and_only_the_newest_minutes() -> None:
    assert str(outlook(seen(10, 40, 70), files=True)) == "falls behind by 3 files/s"
    before = [Sample(each.at - 3600, 10**9) for each in seen(1, 2, 3)]
    assert outlook([*before, *seen(9000, 6000, 3000)]).caught_up_in_seconds == 10.0


def test_a_trigger_shorter_than_the_clock_proves_nothing() -> None:
    assert outlook(seen(1, 2, 3, 4, every=0.001)) == Outlook()


def test_samples_are_the_epochs_of_which_spark_has_said_how_much_is_unread() -> None:
    whole = {"epoch": 1, "at": at(0), "behind": 7, "read": 3}
    broken: list[Any] = [
        {"epoch": 0, "at": at(0), "batchMs": None},
        {"epoch": 2, "at": at(0), "behind": None},
        {"epoch": 3, "at": "yesterday", "behind": 1},
        {"epoch": 4, "at": "2026-01-01T00:00:00", "behind": 1},
        {"epoch": 5, "at": at(0), "behind": float("inf")},
        7,
    ]
    assert samples({"recent": [*broken, whole]}) == (Sample(BEGIN.timestamp(), 7.0, 3.0),)
    for nothing in (None, {}, {"recent": None}, {"recent": {"epoch": 1}}):
        assert samples(nothing) == ()


def test_rows_have_waited_since_more_were_there_than_have_been_read() -> None:
    """300 were read in all; 350 were there 20 s before the last epoch, 200 before that."""
    start = BEGIN.timestamp()
    found = [Sample(start, 100, 100), Sample(start + 10, 150, 200), Sample(start + 30, 60, 0)]
    assert waiting_seconds(found, at(40)) == 30.0
    assert waiting_seconds([], at(40)) is None
    assert waiting_seconds(seen(50, 20, 0), at(40)) is None, "nothing is unread"
    assert waiting_seconds(found, "soon") is None


def test_trend_has_rates_between_its_points() -> None:
    points: list[Any] = [
        {"at": at(0), "read": 0, "behind": 1000, "secondsBehind": 5.0},
        {"at": at(100), "read": 5000, "behind": 2000},
        {"at": at(200), "read": 9000, "behind": 500},
        {"at": "never", "read": 1},
        {"at": at(300), "read": None},
        {"at": at(300), "read": 9500, "behind": None},
    ]
    first, second, third, last = points_of({"points": points}, "L1")
    assert (first.behind, first.seconds_behind, first.read_per_second) == (1000.0, 5.0, None)
    assert (second.read_per_second, second.arriving_per_second) == (50.0, 60.0)
    assert (third.read_per_second, third.arriving_per_second) == (40.0, 25.0)
    assert (last.read_per_second, last.arriving_per_second, last.behind) == (5.0, None, None)
    files = points_of({"points": points, "files": True}, "L1")
    assert [each.arriving_per_second for each in files] == [None] * 4, "files are no rows"
    assert points_of({"points": 7}, "L1") == []
