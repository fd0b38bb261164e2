"""Put results into the documentation: `python -m benchmarks.publish build/bench [more folders]`.

Writes `docs/figures.md` with the claims, ratios and plots of each experiment, and the plots beside
it in `docs/figures/`, with the results they were made of. Nothing in it is written by hand. Where
two folders hold one experiment, the later one counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import ROOT

PAGE = ROOT / "docs" / "figures.md"
PLOTS = ROOT / "docs" / "figures"

HEAD = """# Figures

What the [benchmarks](benchmarks.md) measured, as `python -m benchmarks.publish` writes it from
their results. A ratio is of two medians from one run; `of` is what was divided by `to`. All other
figures are in the results themselves: {results}.
"""

Row = Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="that `python -m benchmarks` wrote")
    publish(parser.parse_args().folders, PAGE, PLOTS)


def publish(folders: Iterable[Path], page: Path, plots: Path) -> None:
    """Write the page and copy what it shows."""
    shutil.rmtree(plots, ignore_errors=True)
    plots.mkdir(parents=True)
    runs: dict[str, Mapping[str, Any]] = {}
    experiments: dict[tuple[str, str], tuple[str, Mapping[str, Any]]] = {}
    for number, folder in enumerate(folders, 1):
        run = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        name = f"run {number}"
        runs[name] = run
        for suffix in ("json", "csv"):
            shutil.copy(folder / f"results.{suffix}", plots / f"results-{number}.{suffix}")
        for each in run["experiments"]:
            experiments[each["name"], each["title"]] = name, each
            for plot in each["plots"]:
                for suffix in ("svg", "png"):
                    shutil.copy(folder / f"{plot}.{suffix}", plots)
    links = ", ".join(
        f"[{name}](figures/results-{number}.json) ([CSV](figures/results-{number}.csv))"
        for number, name in enumerate(runs, 1)
    )
    parts = [HEAD.format(results=links), _runs(runs)]
    parts += [_experiment(name, each) for _, (name, each) in sorted(experiments.items())]
    page.write_text("\n".join(parts), encoding="utf-8")


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            name,
            run["date"][:10],
            run["commit"],
            run["scale"],
            ", ".join(
                f"{value} {what.replace('_', ' ')}" for what, value in run["machine"].items()
            ),
            ", ".join(f"{what} {value}" for what, value in run["versions"].items()),
        )
        for name, run in runs.items()
    ]
    return _table(("run", "date", "commit", "scale", "machine", "versions"), rows)


def _experiment(run: str, told: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in told["settings"].items())
    lines = [f"## {told['name']}: {told['title']}", "", f"{run.capitalize()}; {settings}.", ""]
    lines += [f"![{plot}](figures/{plot}.svg)\n" for plot in told["plots"]]
    if told["claims"]:
        lines += [_table(("claim", "seen", "limit", ""), map(_claim, told["claims"]))]
    ratios = [each for each in told["figures"] if each["unit"] == "ratio"]
    if ratios:
        lines += [_table(("figure", "of", "to", "where", "ratio"), map(_ratio, ratios))]
    return "\n".join(lines)


def _claim(claim: Mapping[str, Any]) -> Row:
    limit = f"{'≥' if claim['atleast'] else '≤'} {claim['limit']:g}"
    return claim["claim"], f"{claim['value']:g}", limit, "holds" if claim["holds"] else "**missed**"


def _ratio(figure: Mapping[str, Any]) -> Row:
    named = ("figure", "value", "unit", "of", "to")
    where = ", ".join(f"{name} {value}" for name, value in figure.items() if name not in named)
    return (
        figure["figure"],
        figure.get("of", ""),
        figure.get("to", ""),
        where,
        f"{figure['value']:g}",
    )


def _table(heads: Row, rows: Iterable[Row]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
