"""Charts as geometry: data in, SVG coordinates out; pure. The templates draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

__all__ = ["Axis", "Chart", "Frame", "Mark", "Series", "draw", "index_axis", "time_axis"]

_BAR, _WIDEST = 0.7, 60.0
"""The part of its place that a bar fills, and its greatest width in the SVG's units."""

_STEPS = [1, 2, 5, 10, 15, 30]
_WEEK = 604_800
_TIME_STEPS = [
    *_STEPS,
    *(60 * each for each in _STEPS),
    *(3_600 * each for each in (1, 2, 3, 6, 12, 24, 48)),
]
"""Seconds between two ticks of a time axis; beyond them, whole weeks."""


class Frame(NamedTuple):
    """The size of an SVG, and the edges of the plot in it, in the SVG's own units."""

    width: float = 620.0
    height: float = 228.0
    left: float = 62.0
    right: float = 610.0
    top: float = 28.0
    bottom: float = 182.0


_FRAME = Frame()


class Mark(NamedTuple):
    """A tick or an event: its place, in the units of the data or of the SVG, and its text."""

    at: float
    text: str


class Axis(NamedTuple):
    """The range of an axis, in the units of the data."""

    low: float
    high: float
    ticks: tuple[Mark, ...]
    label: str


class Series(NamedTuple):
    """Points ``(x, y, description)``; a point without ``y`` interrupts the line."""

    name: str
    points: tuple[tuple[float, float | None, str], ...]
    bars: bool = False


class Dot(NamedTuple):
    """One point of a line."""

    x: float
    y: float
    text: str


class Bar(NamedTuple):
    """One bar; its height is visible whenever its value is above 0."""

    x: float
    y: float
    width: float
    height: float
    text: str


class Drawn(NamedTuple):
    """One series in the SVG's units: a path with its dots, or bars."""

    name: str
    path: str = ""
    dots: tuple[Dot, ...] = ()
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that the template of a chart writes; ``empty`` if there is nothing to draw."""

    title: str
    summary: str
    unit: str
    x_label: str
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    drawn: tuple[Drawn, ...]
    marks: tuple[Mark, ...]
    frame: Frame = _FRAME

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to draw."""
        return not any(each.dots or each.bars for each in self.drawn)


def draw(
    title: str,
    *,
    x: Axis,
    unit: str,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    summary: str = "",
    from_zero: bool = True,
) -> Chart:
    """Lay out a chart.

    :param unit: of the values, written above the y axis.
    :param summary: the chart as text, for users who cannot see it.
    """
    values = [y for each in series for _, y, _ in each.points if y is not None]
    y = _value_axis(values, from_zero)
    return Chart(
        title=title,
        summary=summary,
        unit=unit,
        x_label=x.label,
        x_ticks=tuple(Mark(_x(x, tick.at), tick.text) for tick in x.ticks),
        y_ticks=tuple(Mark(_y(y, tick.at), tick.text) for tick in y.ticks),
        drawn=tuple((_bars if each.bars else _line)(each, x, y) for each in series),
        marks=tuple(
            Mark(_x(x, each.at), each.text) for each in marks if x.low <= each.at <= x.high
        ),
    )


def index_axis(labels: Sequence[str], label: str) -> Axis:
    """Return an axis of evenly spaced places, the first at 0; some have no label."""
    count = max(len(labels), 1)
    step = max(1, round(_nice(count / 8)))
    ticks = tuple(Mark(at, labels[at]) for at in range(0, len(labels), step))
    return Axis(-0.6, count - 0.4, ticks, label)


def time_axis(low: float, high: float, label: str) -> Axis:
    """Return an axis of time, in seconds since 1970."""
    high = max(high, low + 1)
    step = next((each for each in _TIME_STEPS if (high - low) / each <= 7), 0)
    step = step or _WEEK * math.ceil((high - low) / 7 / _WEEK)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%d %b"
    ticks = tuple(
        Mark(at, datetime.fromtimestamp(at, UTC).strftime(form))
        for at in range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    )
    edge = (high - low) * 0.02
    return Axis(low - edge, high + edge, ticks, label)


def _value_axis(values: Sequence[float], from_zero: bool) -> Axis:
    low = 0.0 if from_zero else min(values, default=0.0)
    high = max([*values, low])
    step = _nice((high - low) / 4 or 0.25)
    if all(float(value).is_integer() for value in values):
        step = max(1.0, math.ceil(step))
    bottom = math.floor(low / step)
    top = max(math.ceil(high / step), bottom + 1)
    ticks = tuple(Mark(n * step, _label(n * step, step)) for n in range(bottom, top + 1))
    return Axis(bottom * step, top * step, ticks, "")


def _nice(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= value * 0.999)


def _label(value: float, step: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and step >= size / 10:
            return f"{value / size:g} {letter}"
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"


def _x(axis: Axis, value: float) -> float:
    return _between(_FRAME.left, _FRAME.right, axis, value)


def _y(axis: Axis, value: float) -> float:
    return _between(_FRAME.bottom, _FRAME.top, axis, value)


def _between(start: float, end: float, axis: Axis, value: float) -> float:
    return round(start + (value - axis.low) / (axis.high - axis.low) * (end - start), 1)


def _line(series: Series, x: Axis, y: Axis) -> Drawn:
    path, dots, pen = "", [], "M"
    for at, value, text in series.points:
        if value is None:
            pen = "M"
            continue
        dots.append(dot := Dot(_x(x, at), _y(y, value), text))
        path += f"{pen}{dot.x:g} {dot.y:g}"
        pen = "L"
    return Drawn(series.name, path, tuple(dots))


def _bars(series: Series, x: Axis, y: Axis) -> Drawn:
    width = min(_BAR * (_FRAME.right - _FRAME.left) / (x.high - x.low), _WIDEST)
    bars = []
    for at, value, text in series.points:
        if value is None:
            continue
        height = max(round(_FRAME.bottom - _y(y, value), 1), 1.0 if value > 0 else 0.0)
        left, top = round(_x(x, at) - width / 2, 1), round(_FRAME.bottom - height, 1)
        bars.append(Bar(left, top, round(width, 1), height, text))
    return Drawn(series.name, bars=tuple(bars))
