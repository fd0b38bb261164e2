"""The charts of one stream: its last day; its epochs, durations, rows and fragments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from airflow_provider_lance.diagnostics.epochs import EpochRow, EpochTable, VersionMark
from airflow_provider_lance.diagnostics.trend import TrendPoint
from airflow_provider_lance.plugins.page.chart_geometry import (
    Axis,
    Chart,
    Mark,
    Series,
    draw,
    index_axis,
    time_axis,
)
from airflow_provider_lance.plugins.page.rendering import clock, duration, number

__all__ = ["day_pictures", "pictures"]

_UNITS = ((1.0, "ms", 1_000.0), (1_000.0, "s", 120_000.0), (60_000.0, "min", float("inf")))
"""Milliseconds in a unit, its name, and the longest duration that uses it."""


def pictures(table: EpochTable, totals: Mapping[int, int]) -> list[Chart]:
    """Return the charts, each over the same epochs, oldest on the left."""
    epochs = list(reversed(table.rows))
    compactions = [mark for mark in table.marks if mark.kind == "compaction"]
    axis = index_axis([str(each.epoch) for each in epochs], "epoch")
    batches: dict[str, Sequence[float | None]] = {
        "Spark's whole trigger": [each.batch_ms for each in epochs],
        "in the sink: write and commit": [each.duration_ms for each in epochs],
    }
    commits = {"commit": [each.commit_ms for each in epochs]}
    return [
        _progress(epochs, compactions),
        _durations("Batch duration", epochs, axis, batches),
        _durations("Commit duration", epochs, axis, commits),
        _rows(epochs, axis),
        _fragments(epochs, axis, compactions, totals),
    ]


def day_pictures(trend: Sequence[TrendPoint]) -> list[Chart]:
    """Return the charts of the last day: how far behind, and both rates; none without points."""
    if len(trend) < 2:
        return []
    what = "files" if trend[-1].files else "rows"
    late = [each.seconds_behind for each in trend if each.seconds_behind is not None]
    divisor, unit = (1.0, "s") if max(late, default=0.0) < 600 else (60.0, "min")
    return [
        _day("Not read yet", what, trend, {what: lambda each: each.behind}),
        _day(
            "Age of the oldest that is not read",
            unit,
            trend,
            {"age": lambda each: _divided(each.seconds_behind, divisor)},
        ),
        _day(
            "Arriving and read",
            "rows/s",
            trend,
            {
                "arriving": lambda each: each.arriving_per_second,
                "read": lambda each: each.read_per_second,
            },
        ),
    ]


def _day(
    title: str,
    unit: str,
    trend: Sequence[TrendPoint],
    values: Mapping[str, Callable[[TrendPoint], float | None]],
) -> Chart:
    """Draw values over time; between two launches the line is interrupted."""
    times = [_seconds(each.at) for each in trend]
    series, said = [], []
    for name, value in values.items():
        points: list[tuple[float, float | None, str]] = []
        for at, (before, each) in zip(times, pairwise([None, *trend]), strict=True):
            assert each is not None
            if before is not None and before.launch_id != each.launch_id:
                points.append((at, None, ""))
            found = value(each)
            points.append((at, found, f"{name}: {number(found)} {unit}, {clock(each.at)}"))
        known = [y for _, y, _ in points if y is not None]
        if known:
            said.append(f"{name}: {number(min(known))} to {number(max(known))} {unit}")
        series.append(Series(name, tuple(points)))
    return draw(
        title,
        x=time_axis(times[0], times[-1], "UTC"),
        unit=unit,
        series=series,
        summary="; ".join(said),
    )


def _divided(value: float | None, divisor: float) -> float | None:
    return None if value is None else round(value / divisor, 1)


def _progress(epochs: Sequence[EpochRow], compactions: Sequence[VersionMark]) -> Chart:
    points = tuple((_seconds(each.committed_at), float(each.epoch), _name(each)) for each in epochs)
    times = [at for at, _, _ in points] or [0.0]
    summary = ""
    if epochs:
        first, last = epochs[0], epochs[-1]
        since, until = clock(first.committed_at), clock(last.committed_at)
        summary = f"epochs {first.epoch} to {last.epoch}, from {since} to {until}"
    return draw(
        "Epochs over time",
        x=time_axis(times[0], times[-1], "committed at (UTC)"),
        unit="epoch",
        series=[Series("epochs", points)],
        marks=[Mark(_seconds(each.at), _compaction(each)) for each in compactions if each.at],
        summary=summary,
        from_zero=False,
    )


def _durations(
    title: str,
    epochs: Sequence[EpochRow],
    axis: Axis,
    series: Mapping[str, Sequence[float | None]],
) -> Chart:
    known = {name: [v for v in values if v is not None] for name, values in series.items()}
    longest = max((value for found in known.values() for value in found), default=0.0)
    divisor, unit = next((size, name) for size, name, most in _UNITS if longest < most)

    def point(name: str, at: int, value: float | None) -> tuple[float, float | None, str]:
        text = f"{name}: {duration(value)}, {_name(epochs[at])}"
        return float(at), None if value is None else value / divisor, text

    return draw(
        title,
        x=axis,
        unit=unit,
        series=[
            Series(name, tuple(point(name, at, value) for at, value in enumerate(values)))
            for name, values in series.items()
        ],
        summary="; ".join(f"{name}: {_spread(found)}" for name, found in known.items() if found),
    )


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return duration(values[0])
    low, high, middle = (duration(each) for each in (min(values), max(values), median(values)))
    return f"{low} to {high}, median {middle}"


def _rows(epochs: Sequence[EpochRow], axis: Axis) -> Chart:
    points = tuple(
        (float(at), float(each.rows), f"{number(each.rows)} rows, {_name(each)}")
        for at, each in enumerate(epochs)
    )
    return draw(
        "Rows in each epoch",
        x=axis,
        unit="rows",
        series=[Series("rows", points, bars=True)],
        summary=f"rows: {number(sum(each.rows for each in epochs))}; epochs: {len(epochs)}",
    )


def _fragments(
    epochs: Sequence[EpochRow],
    axis: Axis,
    compactions: Sequence[VersionMark],
    totals: Mapping[int, int],
) -> Chart:
    """Draw the dataset's fragments after each epoch, and after each compaction between them."""
    # A compaction's place is half a step after the epoch before it.
    between = [sum(each.version < mark.version for each in epochs) - 0.5 for mark in compactions]
    marks = [Mark(*each) for each in zip(between, map(_compaction, compactions), strict=True)]
    found = [(float(at), each.version, _name(each)) for at, each in enumerate(epochs)]
    found += [
        (mark.at, each.version, mark.text) for mark, each in zip(marks, compactions, strict=True)
    ]
    points = []
    for at, version, name in sorted(found, key=lambda each: each[:2]):
        total = totals.get(version)
        plural = "fragment" if total == 1 else "fragments"
        text = f"{number(total)} {plural} after {name}"
        points.append((at, None if total is None else float(total), text))
    return draw(
        "Fragments of the dataset",
        x=axis,
        unit="fragments",
        series=[Series("fragments after each epoch", tuple(points))],
        marks=marks,
        summary=f"compactions in between: {len(compactions)}" if compactions else "",
    )


def _compaction(mark: VersionMark) -> str:
    return f"compaction, version {mark.version}"


def _name(row: EpochRow) -> str:
    return f"epoch {row.epoch}, version {row.version}, {clock(row.committed_at)}"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
