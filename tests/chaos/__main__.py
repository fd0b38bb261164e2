"""The crash laboratory: `python -m tests.chaos --rounds 300 --seed 1 [--workers 2] [--keep]`.

Exit status: 0 all was right, 1 something was lost, duplicated or otherwise wrong, 2 bad arguments
or no C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.chaos import report
from tests.chaos.draw import station, stations
from tests.chaos.interposer import NoCompilerError, compile_interposer
from tests.chaos.java import archive
from tests.chaos.plan import ROUNDS, Attack, Control, StationPlan
from tests.chaos.pool import run_all
from tests.chaos.report import Tally
from tests.chaos.station import Bench, RoundResult
from tests.support.processes import QUICK_JAVA

WORTH_AN_ARCHIVE = 20
"""Rounds from which on it pays to make JVMs start faster."""

WIDTH = 160
"""Of tables that nobody sees on a terminal."""


def main(argv: Sequence[str]) -> int:
    """Run the laboratory; see the module's docstring."""
    arguments = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="lance-chaos-"))
    began = time.monotonic()
    os.environ.setdefault("LANCE_LOG", "error")  # it warns of every conflict, and there are many
    try:
        tally = _run(arguments, folder, console)
    except NoCompilerError as error:
        console.print(str(error), soft_wrap=True, highlight=False)
        return 2
    finally:
        if not any(folder.glob("station-*")):
            shutil.rmtree(folder, ignore_errors=True)
    report.show(console, tally, time.monotonic() - began)
    for each in tally.failed:
        console.print(f"\n[bold red]{_name(each)} failed[/]: {each.what}", highlight=False)
        console.print(f"  {each.wrong}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"  folder: {each.folder}", highlight=False, soft_wrap=True)
        console.print(f"  again:  {_again(arguments, each)}", highlight=False, soft_wrap=True)
    return 1 if tally.failed else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", default="1", help="decides everything that is drawn (1)")
    parser.add_argument("--workers", type=int, default=2, help="stations at a time (2)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all stations")
    parser.add_argument("--only", type=int, help="one round, and those of its station before it")
    parser.add_argument(
        "--attack", type=Attack, choices=list(Attack), help="the attack of all rounds"
    )
    parser.add_argument(
        "--control",
        type=Control,
        default=Control.NONE,
        choices=list(Control),
        help="take something out of the protocol; must fail",
    )
    return parser.parse_args(argv)


def _run(arguments: argparse.Namespace, folder: Path, console: Console) -> Tally:
    plans, tally = _plans(arguments), Tally()
    rounds = sum(len(plan.rounds) for plan in plans)
    with report.progress(console) as shown:
        task = shown.add_task("making JVMs start fast", total=rounds)
        java = archive(folder) if rounds >= WORTH_AN_ARCHIVE else QUICK_JAVA
        shown.reset(task, description="")
        interposer = compile_interposer(folder)
        bench = Bench(folder, arguments.control, java, interposer, arguments.keep)

        def tell(result: RoundResult) -> bool:
            tally.results.append(result)
            if not console.is_terminal:
                console.print(report.line(result), soft_wrap=True, highlight=False)
            shown.update(task, advance=result.number >= 0, description=str(tally))
            # A control has done its duty once it is caught.
            return not (result.wrong and arguments.control is not Control.NONE)

        run_all(plans, bench, arguments.workers, tell)
    return tally


def _plans(arguments: argparse.Namespace) -> list[StationPlan]:
    if arguments.only is None:
        return stations(
            arguments.seed,
            arguments.rounds,
            arguments.control,
            least=arguments.workers,
            attack=arguments.attack,
        )
    number = arguments.only // ROUNDS
    plan = station(arguments.seed, number, arguments.control, arguments.attack)
    return [replace(plan, rounds=plan.rounds[: arguments.only % ROUNDS + 1])]


def _name(result: RoundResult) -> str:
    return f"round {result.number}" if result.number >= 0 else f"station {result.station}'s end"


def _again(arguments: argparse.Namespace, result: RoundResult) -> str:
    number = result.number if result.number >= 0 else (result.station + 1) * ROUNDS - 1
    control = f" --control {arguments.control}" if arguments.control is not Control.NONE else ""
    attack = f' --attack "{arguments.attack}"' if arguments.attack else ""
    return f"python -m tests.chaos --seed {arguments.seed} --only {number} --keep{attack}{control}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
