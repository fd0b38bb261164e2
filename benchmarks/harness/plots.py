"""Plots for the documentation: each as SVG and as PNG, the same bytes for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "figure.facecolor": "white",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "benchmarks",
    "svg.fonttype": "none",
}
# Okabe and Ito's colours: told apart by the colour-blind as well.
_COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999", "#000000")
_KNOWN = ("lance-stream", "classic", "successor", "delta", "iceberg", "parquet", "noop", "bare")
"""A contestant has the same colour in every plot."""
_LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Lines:
    """One chart: for each name its points (x, y)."""

    series: Mapping[str, Sequence[tuple[float, float]]]
    title: str
    x: str
    y: str
    log_y: bool = False


@dataclass(frozen=True)
class Bars:
    """One chart: for each name a bar, or for each name in each group."""

    values: Mapping[str, float | Mapping[str, float]]
    """Name to value, or group to name to value."""
    title: str
    y: str
    log_y: bool = False


def draw(folder: Path, name: str, *charts: Lines | Bars, title: str = "") -> str:
    """Write charts into one ``<name>.svg`` and ``<name>.png``, up to three in a row."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        columns = 2 if len(charts) == 4 else min(len(charts), 3)
        rows = -(-len(charts) // columns)
        size = (6.4 if columns == 1 else 3.6 * columns, 3.0 * rows + 0.4)
        figure, grid = plt.subplots(
            rows, columns, squeeze=False, layout="constrained", figsize=size
        )
        axes = grid.flatten()
        for chart, axis in zip(charts, axes, strict=False):
            _draw(chart, axis)
        for axis in axes[len(charts) :]:
            axis.set_visible(False)
        if title:
            figure.suptitle(title)
        _legend(figure, axes)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=150)
        plt.close(figure)
    return name


def _draw(chart: Lines | Bars, axis: Any) -> None:
    axis.set_title(chart.title)
    axis.set_ylabel(chart.y)
    if isinstance(chart, Lines):
        _draw_lines(chart, axis)
    else:
        _draw_bars(chart, axis)
    if chart.log_y:
        axis.set_yscale("log", subs=[])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(FuncFormatter(_plain))


def _draw_lines(chart: Lines, axis: Any) -> None:
    axis.set_xlabel(chart.x)
    for number, (name, points) in enumerate(chart.series.items()):
        style = _LINES[number // len(_COLOURS) % len(_LINES)]
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axis.plot(xs, ys, style, label=name, color=_colour(name, number), marker="o", markersize=2)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(FuncFormatter(_plain))


def _draw_bars(chart: Bars, axis: Any) -> None:
    groups = {
        group: value if isinstance(value, Mapping) else {group: value}
        for group, value in chart.values.items()
    }
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    single = all(len(group) == 1 for group in groups.values())
    width = 0.8 if single else 0.8 / len(names)
    labelled: set[str] = set()
    for place, group in enumerate(groups.values()):
        for name, value in group.items():
            number = names.index(name)
            left = place if single else place + (number - (len(names) - 1) / 2) * width
            label = "" if single or name in labelled else name
            labelled.add(name)
            drawn = axis.bar(left, value, width, color=_colour(name, number), label=label)
            axis.bar_label(drawn, [_plain(float(f"{value:.3g}"))], padding=1, fontsize=6)
    slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if len(groups) > 4 else {}
    axis.set_xticks(range(len(groups)), list(groups), **slanted)
    axis.tick_params(axis="x", length=0)


def _plain(value: float, position: int | None = None) -> str:
    return f"{value / 1e6:.6g} M" if value >= 1e6 else f"{value:,.6g}"


def _colour(name: str, number: int) -> str:
    place = _KNOWN.index(name) if name in _KNOWN else number + 1
    return _COLOURS[place % len(_COLOURS)]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Name the colours once, below all charts."""
    named: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if named:
        columns = 4 if max(map(len, named)) < 20 else 2
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=min(len(named), columns)
        )
