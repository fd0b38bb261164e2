"""A chain of three streams under kills: `python -m tests.chaos.chain --kills 300 --seed 1`.

Exit status: 0 all was right, 1 something was lost, duplicated or otherwise wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.chaos.__main__ import WIDTH
from tests.chaos.chain.deaths import ANY, deaths
from tests.chaos.chain.links import LINKS
from tests.chaos.chain.round import RoundResult, rounds
from tests.chaos.chain.source import Reads
from tests.chaos.java import archive
from tests.chaos.report import counted
from tests.support.processes import QUICK_JAVA

WORTH_AN_ARCHIVE = 10
"""Kills from which on it pays to make JVMs start faster."""


def main(argv: Sequence[str]) -> int:
    """Run the laboratory; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.chain", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many (300)")
    parser.add_argument("--each", type=int, default=25, help="kills of one chain (25)")
    parser.add_argument("--seed", default="1", help="decides everything that is drawn (1)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all chains")
    parser.add_argument(
        "--reads", type=Reads, choices=list(Reads), default=Reads.PINNED, help="others must fail"
    )
    given = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="lance-chain-"))
    began = time.monotonic()
    os.environ.setdefault("LANCE_LOG", "error")  # it warns of every conflict, and there are many
    results: list[RoundResult] = []

    def tell(result: RoundResult) -> bool:
        results.append(result)
        console.print(_line(result), soft_wrap=True, highlight=False)
        if not (result.wrong or given.keep):
            shutil.rmtree(folder / f"chain-{result.number:02}", ignore_errors=True)
        return not result.wrong

    java = archive(folder) if given.kills >= WORTH_AN_ARCHIVE else QUICK_JAVA
    fates = {link.name: deaths(given.seed, link) for link in LINKS}
    rounds(folder, given.seed, given.kills, given.each, fates, tell, given.reads, java)
    _show(console, results, time.monotonic() - began)
    if any(folder.glob("chain-*")):
        console.print(f"folder: {folder}", highlight=False, soft_wrap=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if any(result.wrong for result in results) else 0


def _line(result: RoundResult) -> str:
    slow = f", {result.slow} ended by Spark's time-outs" if result.slow else ""
    again = f", {result.restarted} by an error that a restart ends" if result.restarted else ""
    tail = f" WRONG: {result.wrong}" if result.wrong else ""
    return (
        f"chain {result.number}: {result.kills.total()} kills, {result.epochs} epochs, "
        f"{result.rows} rows in {result.seconds:.0f} s{slow}{again}{tail}"
    )


def _show(console: Console, results: Sequence[RoundResult], seconds: float) -> None:
    kills, missed, upkeep = Counter[str](), Counter[str](), Counter[str]()
    for each in results:
        kills += each.kills
        missed += each.missed
        upkeep += each.upkeep
    console.print(counted("Kills by point", kills))
    if missed:
        console.print(counted("Points that a driver did not come to", missed))
    console.print(counted("Maintenance beside drivers", upkeep))
    figures = {
        "chains": len(results),
        "kills": kills.total(),
        "kills at points": kills.total() - kills[ANY],
        "epochs": sum(each.epochs for each in results),
        "rows": sum(each.rows for each in results),
        "lost": sum(each.lost for each in results),
        "duplicated": sum(each.duplicated for each in results),
        "failed": sum(bool(each.wrong) for each in results),
    }
    said = ", ".join(f"{figure} {name}" for name, figure in figures.items())
    console.print(f"{said} in {seconds:.0f} s", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
