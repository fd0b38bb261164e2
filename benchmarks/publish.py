"""Put results into the documentation: `python -m benchmarks.publish build/bench [more folders]`.

Writes `docs/figures.md`: one table of claims, each with its worst case, then the plots of each
experiment. Beside it, in `docs/figures/`, are the plots, the ratios and the results that they were
made of. Nothing in it is written by hand. Where two folders hold one experiment, the later counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import ROOT

PAGE = ROOT / "docs" / "figures.md"
PLOTS = ROOT / "docs" / "figures"

HEAD = """# Figures

Each row is one claim with its **worst case**: of all cases that were measured, the one nearest to
the limit, or furthest beyond it. "Ahead of", "beside" and "against" are ratios of two medians from
one run. Where the limit is "≤", below 1 means that `lance-stream` took less; where it is "≥", above
1 means that it did more. [Benchmarks](benchmarks.md) explains the experiments and names the command
behind each figure. [What an epoch costs](costs.md) is the summary.

`python -m benchmarks.publish` writes this page from results.
"""

RAW = """## Raw results

| file | holds |
| --- | --- |
| [ratios.csv](figures/ratios.csv) | every ratio of this page's experiments, with its conditions |
{files}
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
    chosen = [experiments[key] for key in sorted(experiments)]
    _write_ratios(plots / "ratios.csv", chosen)
    files = [
        f"| [results-{number}.json](figures/results-{number}.json), "
        f"[results-{number}.csv](figures/results-{number}.csv) | {name}: all figures, all claims |"
        for number, name in enumerate(runs, 1)
    ]
    claims = _table(
        ("", "claim", "worst case", "case", "limit", ""),
        [row for _, each in chosen for row in _claims(each)],
    )
    parts = [HEAD, claims, "## Plots\n"]
    parts += [_experiment(name, each) for name, each in chosen]
    parts += [RAW.format(files="\n".join(files)), _runs(runs)]
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
    lines = [f"### {told['name']}: {told['title']}", ""]
    lines += [f"![{told['title']}: {plot}](figures/{plot}.svg)\n" for plot in told["plots"]]
    lines += [f"{run.capitalize()}; {settings}.", ""]
    return "\n".join(lines)


def _claims(told: Mapping[str, Any]) -> Iterable[Row]:
    """Yield one row for each claim: of its cases the worst."""
    cases: dict[tuple[str, float, bool], list[Mapping[str, Any]]] = {}
    for each in told["claims"]:
        key = each["claim"].partition(", ")[0], each["limit"], each["atleast"]
        cases.setdefault(key, []).append(each)
    for (claim, limit, atleast), found in cases.items():
        worst = (min if atleast else max)(found, key=lambda each: each["value"])
        case = worst["claim"].partition(", ")[2].partition("; ")[0]
        if len(found) > 1:
            case += f"; worst of {len(found)}"
        yield (
            told["name"],
            claim,
            f"{worst['value']:g}",
            case,
            f"{'≥' if atleast else '≤'}\N{NO-BREAK SPACE}{limit:g}",
            "holds" if worst["holds"] else "**missed**",
        )


def _write_ratios(path: Path, chosen: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    named = ("figure", "value", "unit", "of", "to")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "experiment", "figure", "of", "to", "conditions", "ratio"))
        for run, told in chosen:
            for each in told["figures"]:
                if each["unit"] != "ratio":
                    continue
                conditions = ";".join(f"{k}={v}" for k, v in each.items() if k not in named)
                who = each.get("of", ""), each.get("to", "")
                writer.writerow(
                    (run, told["name"], each["figure"], *who, conditions, each["value"])
                )


def _table(heads: Row, rows: Iterable[Row]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
