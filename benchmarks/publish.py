"""Put results into the documentation: `python -m benchmarks.publish [folder or file ...]`.

A folder is one that `python -m benchmarks` wrote; a file is a laboratory's JSON object, with
`name`, `claims` (`claim`, `value`, `limit`, `atleast`), `settings`, `date`, `commit`, `machine` and
`versions`. They are kept in `docs/figures/`, and `docs/figures.md` is made of what is kept there:
each claim with its worst case, six plots, machines and versions. Where two runs hold one
experiment, the later one that was given counts. A run of which nothing counts any more is removed.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import ROOT
from benchmarks.harness.sheet import Claim

PAGE = ROOT / "docs" / "figures.md"
KEPT = ROOT / "docs" / "figures"

HEAD = """# Figures

Each row is one claim with its **worst case**: of all cases that were measured, the one nearest to
the limit, or furthest beyond it. A miss is shown as a miss. "Ahead of", "beside" and "against" are
ratios of two medians from one run: where the limit is "≤", below 1 means that `lance-stream` took
less; where it is "≥", above 1 means that it did more.

`lance-stream` is this package, `delta` is delta-rs and `iceberg` is pyiceberg, both by
`foreachBatch`; `classic` is the same writer with two transactions an epoch, `successor` with one
and a search; `bare` is a Lance append without any protocol; `noop` writes nothing.
[Benchmarks](benchmarks.md#the-contestants) has more about them.

Put `.venv/bin/python -m` before a command. `python -m benchmarks.publish` writes this page from
the raw results.
"""
PLOTS = (
    ("e1-growth", "Does a commit stay cheap, as a table grows that nobody compacts?"),
    ("e1-spark", "What does an epoch of 500 rows cost on Spark, beside other tables and sinks?"),
    ("e5-throughput", "How many rows a second does it write, beside Spark's parquet sink?"),
    ("freshness", "How old is a row when a reader first sees it?"),
    ("restart", "How long does a restart take, as history grows?"),
    ("requests", "How many requests does an object store get, and bill?"),
)
"""What a buyer asks."""

Row = Sequence[str]
Told = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument(
        "given", nargs="*", type=Path, help="folders of runs, files of laboratories"
    )
    publish(parser.parse_args().given, PAGE, KEPT)


def publish(given: Iterable[Path], page: Path, kept: Path) -> None:
    """Keep what is given, and write the page from all that is kept."""
    kept.mkdir(parents=True, exist_ok=True)
    for each in given:
        if each.is_dir():
            _keep_run(each, kept)
        else:
            told = _read(each)
            if not told.get("claims"):
                raise SystemExit(f"{each}: no claims, so there is nothing to publish.")
            target = kept / f"{told['name']}.json"
            if each.resolve() != target.resolve():
                shutil.copy(each, target)
    runs = {_number(path): _read(path) for path in kept.glob("results-*.json")}
    chosen: dict[tuple[str, str], tuple[int, Told]] = {}
    for number in sorted(runs):
        for each in runs[number]["experiments"]:
            chosen[each["name"], each["title"]] = number, each
    found = [chosen[key] for key in sorted(chosen)]
    counting = {number for number, _ in found}
    plots = [(name, asks) for name, asks in PLOTS if any(name in e["plots"] for _, e in found)]
    for number in runs.keys() - counting:
        (kept / f"results-{number}.json").unlink()
    _write_ratios(kept / "ratios.csv", found)
    labs = {
        path: _read(path) for path in sorted(kept.glob("*.json")) if "results-" not in path.name
    }
    rows = [row for run, each in found for row in _claims(each, _command(runs[run], each["name"]))]
    for told in labs.values():
        rows += _claims(told, f"benchmarks.{told['name']}")
    made = [(kept / f"results-{number}.json", runs[number]) for number in sorted(counting)]
    parts = [
        HEAD,
        _table(("claim", "limit", "seen", "held?", "command"), rows),
        "## Six plots\n",
        *(f"{asks}\n\n![{asks}]({kept.name}/{name}.svg)\n" for name, asks in plots),
        "## Machines, versions and raw results\n",
        _runs([*made, *labs.items()], kept),
        f"[ratios.csv]({kept.name}/ratios.csv) has every ratio, with its conditions.\n",
    ]
    page.write_text("\n".join(parts), encoding="utf-8")


def _keep_run(folder: Path, kept: Path) -> None:
    number = 1 + max((_number(path) for path in kept.glob("results-*.json")), default=0)
    shutil.copy(folder / "results.json", kept / f"results-{number}.json")
    for name, _ in PLOTS:
        if (folder / f"{name}.svg").exists():
            shutil.copy(folder / f"{name}.svg", kept)


def _read(path: Path) -> Told:
    told: Told = json.loads(path.read_text(encoding="utf-8").strip())
    return told


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _command(run: Told, experiment: str) -> str:
    full = "--full " if run["scale"] == "full" else ""
    return f"benchmarks {full}--only {experiment}"


def _claims(told: Told, command: str) -> Iterator[Row]:
    """Yield one row for each claim: of its cases the worst."""
    cases: dict[tuple[str, float, bool], list[Claim]] = {}
    for each in told["claims"]:
        claim = Claim.of(each)
        cases.setdefault((claim.claim.partition(", ")[0], claim.limit, claim.atleast), []).append(
            claim
        )
    for (name, limit, atleast), found in cases.items():
        worst = (min if atleast else max)(found, key=lambda each: each.value)
        alone = len(found) == 1
        case = worst.claim.partition(", ")[2]
        yield (
            worst.claim if alone else name,
            f"{'≥' if atleast else '≤'}\N{NO-BREAK SPACE}{limit:g}",
            f"{worst.value:g}" + ("" if alone else f" ({case}; worst of {len(found)})"),
            "yes" if worst.holds else "**missed**",
            f"`{command}`",
        )


def _runs(made: Iterable[tuple[Path, Told]], kept: Path) -> str:
    rows = [
        (
            f"[{path.name}]({kept.name}/{path.name})",
            told["date"][:10],
            told["commit"],
            told.get("scale", ""),
            ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in told["machine"].items()),
            ", ".join(f"{what} {value}" for what, value in told["versions"].items()),
        )
        for path, told in made
    ]
    return _table(("raw", "date", "commit", "size", "machine", "versions"), rows)


def _write_ratios(path: Path, chosen: Iterable[tuple[int, Told]]) -> None:
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
                    (f"run {run}", told["name"], each["figure"], *who, conditions, each["value"])
                )


def _table(heads: Row, rows: Iterable[Row]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
