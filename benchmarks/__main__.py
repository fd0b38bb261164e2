"""Run the experiments E1 to E8: `python -m benchmarks [--full] [--only E1,E3] [--out build/bench]`.

Writes results.json, results.csv and the plots, and ends in a table of what was claimed and what was
seen. Contestants of one experiment run by turns in one run; ratios say more than milliseconds.
"""

from __future__ import annotations

import argparse
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
from benchmarks.harness.sheet import Sheet, write
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the sizes that the figures are of")
    parser.add_argument("--only", type=chosen, default=EXPERIMENTS, help="such as E1,E3")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for all results")
    given = parser.parse_args()
    scale = Scale.FULL if given.full else Scale.QUICK
    spark = cache(session)
    errors = Console(stderr=True)
    sheets: list[Sheet] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(scale=scale, work=Path(folder), out=given.out, spark=spark)
        about = {"scale": scale.value, **machine.about(bench.work)}
        for name, module in given.only:
            try:
                sheets.append(_run(module, bench))
            except Exception:  # the others' figures are worth keeping
                errors.print_exception()
                failed.append(f"{name} ({module})")
            write(sheets, given.out, about)  # after each, so that an interrupted run leaves some
        if spark.cache_info().currsize:
            spark().stop()
    _show(sheets)
    for each in failed:
        errors.print(f"[red]failed[/red] {each}")
    return 1 if failed else 0


def chosen(text: str) -> Sequence[tuple[str, str]]:
    asked = set(text.split(","))
    if unknown := asked - {word for experiment in EXPERIMENTS for word in experiment}:
        raise argparse.ArgumentTypeError(f"no experiment {sorted(unknown)}; there are E1 to E8")
    return [experiment for experiment in EXPERIMENTS if asked & set(experiment)]


def _run(module: str, bench: Bench) -> Sheet:
    experiment = import_module(f"benchmarks.{module}")
    print(f"{experiment.NAME}  {experiment.TITLE}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        began = time.monotonic()
        sheet: Sheet = experiment.run(replace(bench, work=Path(folder)))
        sheet.seconds = time.monotonic() - began
    return sheet


def _show(sheets: Sequence[Sheet]) -> None:
    table = Table("", "claim", "seen", "limit", "")
    for sheet in sheets:
        for claim in sheet.claims:
            sign = "≥" if claim.atleast else "≤"
            outcome = "[green]holds[/green]" if claim.holds else "[red]does not hold[/red]"
            limit = f"{sign} {claim.limit:g}"
            table.add_row(sheet.name, claim.claim, f"{claim.value:g}", limit, outcome)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
