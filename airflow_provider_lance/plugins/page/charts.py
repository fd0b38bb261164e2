"""The charts of one stream: its epochs, durations, rows and fragments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from statistics import median

from airflow_provider_lance.diagnostics.epochs import EpochRow, EpochTable, VersionMark
from airflow_provider_lance.plugins.page.chart_geometry import (
    Axis,
    Chart,
    Mark,
    Series,
    draw,
    index_axis,
    time_axis,
)
from airflow_provider_lance.plugins.page.formatting import clock, duration, number

__all__ = ["pictures"]

_UNITS = ((1.0, "ms", 1_000.0), (1_000.0, "s", 120_000.0), (60_000.0, "min", float("inf")))
"""Milliseconds in a unit, its name, and the longest duration that uses it."""


def pictures(table: EpochTable, totals: Mapping[int, int]) -> list[Chart]:
    """Return the charts, each over the same epochs, oldest on the left."""
    epochs = list(reversed(table.rows))
    compactions = [mark for mark in table.marks if mark.kind == "compaction"]
    axis = index_axis([str(each.epoch) for each in epochs], "epoch")
    places = [Mark(_place(epochs, each), _told(each)) for each in compactions]
    return [
        _progress(epochs, compactions),
        _batches(epochs, axis),
        _commits(epochs, axis),
        _rows(epochs, axis),
        _fragments(epochs, axis, compactions, places, totals),
    ]


def _progress(epochs: Sequence[EpochRow], compactions: Sequence[VersionMark]) -> Chart:
    points = tuple((_seconds(each.committed_at), float(each.epoch), _name(each)) for each in epochs)
    times = [at for at, _, _ in points] or [0.0]
    return draw(
        "Epochs over time",
        x=time_axis(times[0], times[-1], "committed at (UTC)"),
        unit="epoch",
        series=[Series("epochs", points)],
        marks=[Mark(_seconds(each.at), _told(each)) for each in compactions if each.at],
        summary=_span(epochs),
        from_zero=False,
    )


def _batches(epochs: Sequence[EpochRow], axis: Axis) -> Chart:
    return _durations(
        "Batch duration",
        epochs,
        axis,
        {
            "Spark's whole trigger": lambda each: each.batch_ms,
            "in the sink: write and commit": lambda each: each.duration_ms,
        },
    )


def _commits(epochs: Sequence[EpochRow], axis: Axis) -> Chart:
    return _durations("Commit duration", epochs, axis, {"commit": lambda each: each.commit_ms})


def _durations(
    title: str,
    epochs: Sequence[EpochRow],
    axis: Axis,
    series: Mapping[str, Callable[[EpochRow], float | None]],
) -> Chart:
    values = {name: [read(each) for each in epochs] for name, read in series.items()}
    known = {name: [v for v in found if v is not None] for name, found in values.items()}
    longest = max((value for found in known.values() for value in found), default=0.0)
    divisor, unit = next((size, name) for size, name, most in _UNITS if longest < most)
    return draw(
        title,
        x=axis,
        unit=unit,
        series=[
            Series(
                name,
                tuple(
                    (
                        float(at),
                        None if value is None else value / divisor,
                        f"{name}: {duration(value)}, {_name(epochs[at])}",
                    )
                    for at, value in enumerate(found)
                ),
            )
            for name, found in values.items()
        ],
        summary="; ".join(
            f"{name}: {duration(min(found))} to {duration(max(found))}, "
            f"median {duration(median(found))}"
            for name, found in known.items()
            if found
        ),
    )


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
        summary=f"{number(sum(each.rows for each in epochs))} rows in {len(epochs)} epochs",
    )


def _fragments(
    epochs: Sequence[EpochRow],
    axis: Axis,
    compactions: Sequence[VersionMark],
    places: Sequence[Mark],
    totals: Mapping[int, int],
) -> Chart:
    """Draw the dataset's fragments after each epoch, and after each compaction between them."""
    found = [(float(at), each.version, _name(each)) for at, each in enumerate(epochs)]
    found += [
        (place.at, each.version, place.text)
        for place, each in zip(places, compactions, strict=True)
    ]
    points = []
    for at, version, name in sorted(found, key=lambda each: each[:2]):
        total = totals.get(version)
        text = "" if total is None else f"{number(total)} fragments after {name}"
        points.append((at, None if total is None else float(total), text))
    return draw(
        "Fragments of the dataset",
        x=axis,
        unit="fragments",
        series=[Series("fragments after each epoch", tuple(points))],
        marks=places,
        summary=f"{len(compactions)} compactions in between" if compactions else "",
    )


def _place(epochs: Sequence[EpochRow], mark: VersionMark) -> float:
    """Return the place of a version among the epochs: half a step after the epoch before it."""
    return sum(each.version < mark.version for each in epochs) - 0.5


def _told(mark: VersionMark) -> str:
    return f"compaction, version {mark.version}"


def _name(row: EpochRow) -> str:
    return f"epoch {row.epoch}, version {row.version}, {clock(row.committed_at)}"


def _span(epochs: Sequence[EpochRow]) -> str:
    if not epochs:
        return ""
    first, last = epochs[0], epochs[-1]
    since, until = clock(first.committed_at), clock(last.committed_at)
    return f"epochs {first.epoch} to {last.epoch}, from {since} to {until}"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
