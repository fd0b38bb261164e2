"""One event after another, done to a stream under Airflow's own operator and under this package's.

    python -m tests.system.compare [stock] [ours] [EVENT ...]

Prints each outcome when it is known, then a table, and as its last line JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.system.scenarios import EVENTS, Outcome, airflow, home_of, play

STOCK = "stream_stock"
# No trigger watches a stock operator's driver, and a driver of nobody's is the dataset's business.
STOCK_EVENTS = [
    name for name in EVENTS if name not in ("restart_triggerer", "kill_triggerer", "hang_elsewhere")
]
OURS = {
    # Runner, supervisor and worker have a part to play only where the task itself waits.
    "kill_runner": "stream_ours_worker",
    "kill_supervisor": "stream_ours_worker",
    "terminate_worker": "stream_ours_worker",
    "hang": "stream_ours_stall",
}


def ours(name: str) -> str:
    """Return the DAG in which an event happens to this package's operator."""
    return OURS.get(name, "stream_ours")


def run(kinds: Iterable[str], names: list[str], home: Path) -> list[Outcome]:
    """Play events in one Airflow; one that hangs is noted, and the next one follows."""
    outcomes = []
    with airflow(home) as running:
        for name in names:
            for kind in kinds:
                if kind == "stock" and name not in STOCK_EVENTS:
                    continue
                dag = STOCK if kind == "stock" else ours(name)
                try:
                    outcome = play(running, home / "scenes" / f"{name}-{kind}", dag, name)
                except (AssertionError, TimeoutError) as error:
                    outcome = Outcome(EVENTS[name].title, dag, notes={"error": str(error)})
                print(json.dumps(asdict(outcome)), flush=True)
                outcomes.append(outcome)
    return outcomes


def table(outcomes: list[Outcome]) -> Table:
    shown = Table(title="Drivers of one query; times in seconds")
    shown.add_column("event")
    shown.add_column("DAG")
    shown.add_column("first driver")
    for name in ("lived on", "at once", "with two", "longest pause", "to successor's commit"):
        shown.add_column(name, justify="right")
    shown.add_column("tasks (state, try)")
    shown.add_column("exact")
    for each in outcomes:
        shown.add_row(
            each.event,
            each.dag_id.removeprefix("stream_"),
            each.old_driver or "?",
            str(each.old_driver_lived),
            str(each.most_drivers),
            str(each.overlap),
            str(each.pause),
            "–" if each.successor_commits is None else str(each.successor_commits),
            ", ".join(f"{state} {attempt}" for state, attempt in each.tasks),
            str(bool(each.counts and each.counts.exact)),
        )
    return shown


def main(words: list[str]) -> int:
    kinds = [kind for kind in ("stock", "ours") if kind in words] or ["stock", "ours"]
    names = [word for word in words if word not in ("stock", "ours")] or list(EVENTS)
    if unknown := sorted(set(names) - set(EVENTS)):
        print(f"unknown: {unknown}; events are {sorted(EVENTS)}", file=sys.stderr)
        return 2
    home = home_of("compare")
    outcomes = run(kinds, names, home)
    Console(width=None if sys.stdout.isatty() else 160).print(table(outcomes))
    print(f"Everything these Airflows and drivers left is in {home}{os.sep}")
    print(json.dumps([asdict(each) for each in outcomes]))
    return 0 if all(each.counts and each.counts.exact for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
