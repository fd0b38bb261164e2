"""Run the benchmarks: `python -m benchmarks [--full] [--only E1,week] [--out build/bench]`.

Runs the experiments E1 to E8, and without `--full` the studies of one question, too, both small.
Writes results.json, results.csv and the plots, a JSON file for each study, and ends in a table of
what was claimed and what was seen, with the command whose result is published. Contestants of one
experiment run by turns in one run; ratios say more than milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine
from benchmarks.harness.bench import Bench
from benchmarks.harness.scale import Scale
from benchmarks.harness.sheet import Claim, Sheet, write
from benchmarks.harness.spark import session

EXPERIMENTS = (
    ("E1", "growth"),
    ("E2", "upkeep"),
    ("E3", "restart"),
    ("E4", "rate"),
    ("E5", "throughput"),
    ("E5", "requests"),
    ("E5", "remote"),
    ("E6", "airflow_side"),
    ("E7", "source_poll"),
    ("E7", "source_backfill"),
    ("E7", "source_delay"),
    ("E8", "cdc"),
)
NAMES = tuple(dict.fromkeys(name for name, _ in EXPERIMENTS))
PUBLISHED_SMALL = frozenset({"E2", "E4", "E6"})
"""Experiments whose published figures are of a small run."""

STUDIES = {
    "arrival": "--seconds 6 --beside 3 --warm-up 7 --every 3 --only delta parquet lance-stream",
    "by_shape": "--shapes json --part 128 --turns 2 --small-epochs 4",
    "crowd": "--queries 20 --seconds 6 --processes 2 --every 3",
    "idle_epochs": "--turns 2 --epochs 7",
    "million": "--epochs 300 --window 60 --sample 300 --every 30",
    "vectors": "--seconds 5 --warm-up 5 --turns 1 --base 3000",
    "week": "--epochs 600 --first 300",
}
"""Those that have claims, and what makes them small; without that they run for up to hours."""
_STUDY = "study"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the sizes that the figures are of")
    parser.add_argument("--only", type=chosen, help="such as E1,E3,week")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for all results")
    given = parser.parse_args()
    scale = Scale.FULL if given.full else Scale.QUICK
    asked = given.only or (EXPERIMENTS if given.full else chosen(",".join((*NAMES, *STUDIES))))
    spark = cache(session)
    errors = Console(stderr=True)
    sheets: list[Sheet] = []
    told: list[tuple[str, Claim, str]] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(scale=scale, work=Path(folder), out=given.out, spark=spark)
        about = {"scale": scale.value, **machine.about(bench.work)}
        for name, module in asked:
            began = time.monotonic()
            try:
                if name == _STUDY:
                    command = f"benchmarks.{module}"
                    told += [(module, each, command) for each in _study(module, bench)]
                else:
                    sheets.append(_run(module, bench))
                    full = "" if name in PUBLISHED_SMALL else "--full "
                    command = f"benchmarks {full}--only {name}"
                    told += [(name, each, command) for each in sheets[-1].claims]
            except Exception:  # the others' figures are worth keeping
                errors.print_exception()
                failed.append(f"{name} ({module})")
            errors.print(f"{name} ({module}) took {time.monotonic() - began:.0f} s", style="dim")
            write(sheets, given.out, about)  # after each, so that an interrupted run leaves some
        if spark.cache_info().currsize:
            spark().stop()
    _show(told)
    for each in failed:
        errors.print(f"[red]failed[/red] {each}")
    return 1 if failed else 0


def chosen(text: str) -> Sequence[tuple[str, str]]:
    """Return experiments and studies by their names, or by their modules."""
    everything = (*EXPERIMENTS, *((_STUDY, name) for name in STUDIES))
    asked = set(text.split(","))
    if unknown := asked - {word for each in everything for word in each}:
        raise argparse.ArgumentTypeError(
            f"no experiment {sorted(unknown)}; there are {NAMES[0]} to {NAMES[-1]}, "
            f"and the studies {', '.join(STUDIES)}"
        )
    return [each for each in everything if asked & set(each)]


def _run(module: str, bench: Bench) -> Sheet:
    experiment = import_module(f"benchmarks.{module}")
    print(f"{experiment.NAME}  {experiment.TITLE}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        began = time.monotonic()
        sheet: Sheet = experiment.run(replace(bench, work=Path(folder)))
        sheet.seconds = time.monotonic() - began
    return sheet


def _study(name: str, bench: Bench) -> Sequence[Claim]:
    """Run a study in a process of its own, keep its JSON, and return its claims."""
    words = [] if bench.scale is Scale.FULL else STUDIES[name].split()
    print(" ".join((name, *words)), file=sys.stderr)
    command = [sys.executable, "-m", f"benchmarks.{name}", *words]
    ran = subprocess.run(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    (bench.out / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    return [Claim.of(each) for each in found["claims"]]


def _show(told: Sequence[tuple[str, Claim, str]]) -> None:
    # Where there is no terminal, rich takes 80 columns, and breaks each claim into many lines.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    table = Table("", "claim", "seen", "limit", "", "published by")
    for name, claim, command in told:
        sign = "≥" if claim.atleast else "≤"
        outcome = "[green]holds[/green]" if claim.holds else "[red]does not hold[/red]"
        limit = f"{sign} {claim.limit:g}"
        what = claim.claim.removeprefix(f"{name}: ")
        table.add_row(name, what, f"{claim.value:g}", limit, outcome, command)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
