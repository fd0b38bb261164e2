"""What a run came to, on a terminal: progress while it goes on, and tables at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.life import Manner
from tests.chaos.station import RoundResult

HEADS = ("rounds", "kills", "faults", "epochs", "doubts", "refused", "fenced", "gave up", "missed")
BAD = ("lost", "duplicated", "unreadable", "falsely healthy", "failed")
SAID = ("rounds", "kills", "faults", "refused", *BAD)


class Tally:
    """The results so far."""

    def __init__(self) -> None:
        self.results: list[RoundResult] = []

    def __str__(self) -> str:
        sums = totals(self.results)
        return ", ".join(f"{sums[name]} {name}" for name in SAID[1:])

    @property
    def failed(self) -> list[RoundResult]:
        """Return the rounds in which something was wrong."""
        return [result for result in self.results if result.wrong]


def totals(results: Iterable[RoundResult]) -> Counter[str]:
    """Add results up, by the heads of the table. The last round of a station is not counted."""
    sums: Counter[str] = Counter()
    for each in results:
        sums += Counter(
            {
                "rounds": int(each.number >= 0),
                "kills": each.kills,
                "faults": each.faults.total(),
                "epochs": each.epochs,
                "doubts": each.doubts,
                "refused": each.ends[Manner.REFUSED],
                "fenced": each.ends[Manner.FENCED],
                "gave up": each.ends[Manner.GAVE_UP],
                "missed": each.missed,
                "lost": each.lost,
                "duplicated": each.duplicated,
                "unreadable": each.unreadable,
                "falsely healthy": each.healthy,
                "failed": int(bool(each.wrong)),
            }
        )
    return sums


def line(result: RoundResult) -> str:
    """Say in one line what a round came to."""
    ends = ", ".join(sorted(result.ends.elements()))
    errors = f" ({', '.join(sorted(result.errors))})" if result.errors else ""
    name = result.number if result.number >= 0 else f"end of station {result.station}"
    tail = f" WRONG: {result.wrong}" if result.wrong else ""
    return f"{name} {result.kind}, {result.what}: {ends}{errors} in {result.seconds:.0f} s{tail}"


def table(results: Sequence[RoundResult]) -> Table:
    """Return the table of a run: a row for each kind of station, and one for all."""
    drawn = Table(title="Crash laboratory")
    drawn.add_column("stream", no_wrap=True)
    for head in (*HEADS, *BAD):
        drawn.add_column(head, justify="right", style="red" if head in BAD else None)
    for kind in sorted({each.kind for each in results}):
        _row(drawn, kind, [each for each in results if each.kind == kind])
    drawn.add_section()
    _row(drawn, "all", results)
    return drawn


def _row(drawn: Table, name: str, results: Sequence[RoundResult]) -> None:
    sums = totals(results)
    drawn.add_row(name, *(str(sums[head]) for head in (*HEADS, *BAD)))


def counted(title: str, counts: Counter[str]) -> Table:
    """Return a table of how often each thing happened."""
    drawn = Table(title=title)
    drawn.add_column("what")
    drawn.add_column("times", justify="right")
    for name, count in sorted(counts.items()):
        drawn.add_row(name, str(count))
    return drawn


def show(console: Console, tally: Tally, seconds: float) -> None:
    """Print the end of a run."""
    results = tally.results
    attacks: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    upkeep: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for each in results:
        attacks[each.attack] += each.number >= 0
        faults += each.faults
        upkeep += each.upkeep
        errors += each.errors
    console.print(table(results))
    console.print(counted("Rounds by attack", +attacks))
    console.print(counted("Faults of the store", faults))
    console.print(counted("Errors that drivers ended with", errors))
    console.print(counted("Maintenance beside drivers", upkeep))
    sums = totals(results)
    said = ", ".join(f"{sums[name]} {name}" for name in SAID)
    console.print(f"{said} in {seconds:.0f} s", soft_wrap=True, highlight=False)


def progress(console: Console) -> Progress:
    """Return the line that shows how far a run is."""
    return Progress(
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
