"""Charts: what is drawn lies where its value says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.diagnostics.trend import TrendPoint
from airflow_provider_lance.plugins.page.chart_geometry import (
    Axis,
    Frame,
    Mark,
    Series,
    draw,
    index_axis,
    time_axis,
)
from airflow_provider_lance.plugins.page.charts import day_pictures
from airflow_provider_lance.plugins.page.rendering import ago, clock, cut, duration, epoch, number

FRAME = Frame()
PLAIN = Axis(0.0, 10.0, (), "x")


def test_chart_line_has_a_break_where_a_value_is_missing() -> None:
    points = ((0.0, 0.0, "none"), (5.0, None, ""), (8.0, 2.0, "two"), (10.0, 4.0, "four"))
    chart = draw("t", x=PLAIN, unit="u", series=[Series("s", points)])
    [drawn] = chart.drawn
    assert drawn.path.count("M") == 2
    assert drawn.path.count("L") == 1
    first, _, last = drawn.dots
    assert (first.x, first.y) == (FRAME.left, FRAME.bottom)
    assert (last.x, last.y, last.text) == (FRAME.right, FRAME.top, "four")


def test_bar_is_visible_when_its_value_is_above_zero() -> None:
    points = tuple((float(at), value, "") for at, value in enumerate([0.0, 1.0, 1e6]))
    axis = index_axis(["a", "b", "c"], "epoch")
    [drawn] = draw("t", x=axis, unit="rows", series=[Series("s", points, bars=True)]).drawn
    none, little, all_of_it = drawn.bars
    assert none.height == 0
    assert little.height == 1
    assert all_of_it.height == FRAME.bottom - FRAME.top
    assert FRAME.left <= none.x
    assert all_of_it.x + all_of_it.width <= FRAME.right
    assert none.x + none.width < little.x


def test_marks_outside_of_the_axis_are_left_out() -> None:
    marks = [Mark(-1.0, "before"), Mark(5.0, "within"), Mark(11.0, "after")]
    chart = draw("t", x=PLAIN, unit="u", series=[], marks=marks)
    assert [mark.text for mark in chart.marks] == ["within"]
    assert chart.empty


@given(st.lists(st.floats(0, 1e12), max_size=60), st.booleans())
def test_chart_of_any_values_stays_inside_the_plot(values: list[float], bars: bool) -> None:
    points = tuple((float(at), value, "") for at, value in enumerate(values))
    axis = index_axis([str(at) for at in range(len(values))], "epoch")
    chart = draw("t", x=axis, unit="u", series=[Series("s", points, bars=bars)], from_zero=bars)
    [drawn] = chart.drawn
    heights = [dot.y for dot in drawn.dots] + [bar.y for bar in drawn.bars]
    assert len(heights) == len(values)
    assert all(FRAME.top <= y <= FRAME.bottom for y in heights)
    assert 2 <= len(chart.y_ticks) <= 8
    assert len({tick.text for tick in chart.y_ticks}) == len(chart.y_ticks)
    assert len(chart.x_ticks) <= 9


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (0, ["12:00:00", "12:00:01"]),
        (50, ["12:00:00", "12:00:10", "12:00:20", "12:00:30", "12:00:40", "12:00:50"]),
        (3_600, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (5 * 86_400, ["02 Nov", "03 Nov", "04 Nov", "05 Nov", "06 Nov"]),
    ],
)
def test_time_axis_has_round_steps(seconds: float, texts: list[str]) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()
    assert [tick.text for tick in time_axis(noon, noon + seconds, "").ticks] == texts


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_any_span_of_time_has_few_ticks(low: float, span: float) -> None:
    axis = time_axis(low, low + span, "")
    assert len(axis.ticks) <= 8
    assert all(axis.low <= tick.at <= axis.high for tick in axis.ticks)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (number(None), "–"),
        (number(1234567), "1,234,567"),
        (number(12.34), "12.3"),
        (number(0.0), "0"),
        (duration(None), "–"),
        (duration(0), "0 ms"),
        (duration(999), "999 ms"),
        (duration(1_500), "1.5 s"),
        (duration(90_000), "90 s"),
        (duration(600_000), "10 min"),
        (duration(3 * 3_600_000), "3 h"),
        (duration(5 * 86_400_000), "5 d"),
        (ago(None), "–"),
        (ago(-3), "1 s ago"),
        (ago(42.4), "42 s ago"),
        (epoch(None), "–"),
        (epoch(-1), "–"),
        (epoch(1_234), "1,234"),
        (clock(None), "–"),
        (clock("2026-11-21T14:02:03.4+01:00"), "2026-11-21 13:02:03"),
        (clock("<b>"), "<b>"),
        (cut("abc", 3), "abc"),
        (cut("abcd", 3), "abc … (4 characters)"),
    ],
)
def test_page_formats_each_value(given: str, text: str) -> None:
    assert given == text


def test_last_day_has_lag_and_both_rates_and_a_gap_between_launches() -> None:
    def point(minute: int, launch: str, behind: float, rate: float | None) -> TrendPoint:
        at = f"2026-01-01T00:{minute:02}:00+00:00"
        return TrendPoint(at, launch, behind, behind * 10, False, rate, rate and rate + 1)

    trend = [point(0, "a", 5, None), point(5, "a", 9, 2.0), point(10, "b", 100, None)]
    behind, age, rates = day_pictures(trend)
    assert behind.summary == "rows: 5 to 100 rows"
    assert [dot.text for dot in behind.drawn[0].dots][-1] == "rows: 100 rows, 2026-01-01 00:10:00"
    assert behind.drawn[0].path.count("M") == 2
    assert age.unit == "min"
    assert age.summary == "age: 0.8 to 16.7 min"
    assert rates.summary == "arriving: 3 to 3 rows/s; read: 2 to 2 rows/s"
    assert day_pictures(trend[:1]) == []


def test_last_day_of_files_counts_files_and_omits_what_is_unknown() -> None:
    trend = [TrendPoint(f"2026-01-01T0{at}:00:00+00:00", "a", at, files=True) for at in (1, 2)]
    behind, age, rates = day_pictures(trend)
    assert behind.unit == "files"
    assert age.empty
    assert rates.empty
