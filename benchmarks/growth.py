"""E1: epochs without compaction, ours and others', without Spark and with it.

Without Spark an epoch is 1,000 rows in memory, and its time that of write and commit, as public
figures of these systems count it. Contestants take turns of some epochs; ours and the bare append
alternate epoch by epoch, for their ratio is the finest. With Spark the tables as they are by then
get a stream of small files, under another query id.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.contestants import FLOOR, NOOP, OURS, RIVALS, STREAMS, TABLES
from benchmarks.contestants.lance_stream import LanceStream
from benchmarks.harness.bench import Bench
from benchmarks.harness.laps import WARM_UP, Lapper, Source
from benchmarks.harness.measure import median, summary
from benchmarks.harness.plots import Bars, Lines, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.race import Racer, check, note_windows
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA
from benchmarks.harness.turns import by_turns

NAME = "E1"
TITLE = "Epochs without compaction"
ROWS, SPARK_ROWS = 1000, 500
TURN = 25


def run(bench: Bench) -> Sheet:
    pick = bench.scale.pick
    epochs, rounds = pick(quick=200, full=2500), pick(quick=1, full=7)
    turn, budget = pick(quick=6, full=TURN), pick(quick=3, full=160)
    sheet = Sheet(
        NAME,
        TITLE,
        {
            "epochs": epochs,
            "rows": ROWS,
            "turn": TURN,
            "seconds_for_each": budget,
            "spark_epochs": rounds * turn,
            "spark_rows": SPARK_ROWS,
            "spark_turn": turn,
            "spark_warm_up": WARM_UP,
            "spark_tables": "as they are after the epochs without Spark, of another query id; "
            "parquet begins with none",
        },
    )
    racers = _alone(bench, sheet, epochs, budget)
    grown = {name: racer.end() for name, racer in racers.items()}
    for name, reached in grown.items():
        sheet.add("epochs_reached", reached, "epochs", contestant=name)
    lappers = _with_spark(bench, sheet, rounds, turn)
    for name in (OURS, *RIVALS):
        expected = grown[name] * ROWS + rounds * turn * SPARK_ROWS
        check(TABLES[name](str(bench.work / name), SCHEMA), expected)
    sheet.plots = [_plot_growth(bench.out, racers), _plot_spark(bench.out, lappers)]
    return sheet


# --------------------------------------------------------------------------------- without Spark


def _alone(bench: Bench, sheet: Sheet, epochs: int, budget: float) -> dict[str, Racer]:
    window = epochs // 20
    racers = {}
    for name, make in TABLES.items():
        (bench.work / name).mkdir()
        table = make(str(bench.work / name), SCHEMA)
        racers[name] = Racer(table, ROWS, window, budget)
    ours, floor = racers[OURS], racers[FLOOR]

    def both(number: int) -> None:
        for epoch in range(TURN):
            for racer in (ours, floor) if epoch % 2 else (floor, ours):
                racer.epoch()

    def alone(racer: Racer, number: int) -> None:
        for _ in range(TURN):
            racer.epoch()

    others = {name: partial(alone, racers[name]) for name in RIVALS}
    workers = {f"{OURS} and {FLOOR}": both, **others}
    rounds = epochs // TURN
    with progress("without Spark", rounds * len(workers)) as advance:
        by_turns(workers, rounds, advance)
    for name, racer in racers.items():
        note_windows(sheet, racer, contestant=name)
    _compare(sheet, racers, tail=min(200, epochs // 2))
    assert isinstance(ours.table, LanceStream)
    claim, updates = 1, ours.table.committer.manifest_updates
    updates_each = (updates - claim) / len(ours.milliseconds)
    sheet.add("manifest_updates_per_epoch", updates_each, "commits", contestant=OURS)
    sheet.claim("manifest updates per epoch", value=updates_each, limit=1.1)
    return racers


def _compare(sheet: Sheet, racers: dict[str, Racer], tail: int) -> None:
    """Compare the last epochs that both have done: the same numbers of each."""
    ours = racers[OURS].milliseconds
    for name in (*RIVALS, FLOOR):
        theirs = racers[name].milliseconds
        last = min(len(ours), len(theirs))
        first = max(0, last - tail)
        value = median(ours[first:last]) / median(theirs[first:last])
        where = f"{first + 1}-{last}"
        sheet.ratio("commit_p50", of=OURS, to=name, value=value, epochs=where)
        limit, what = (1.15, "against") if name == FLOOR else (1.0, "ahead of")
        sheet.claim(f"commit p50 {what} {name}, epochs {where}", value=value, limit=limit)
    value = median(ours) / median(racers[FLOOR].milliseconds)
    where = f"1-{len(ours)}"
    sheet.ratio("commit_p50", of=OURS, to=FLOOR, value=value, epochs=where)
    sheet.claim(f"commit p50 against {FLOOR}, epochs {where}", value=value, limit=1.15)


def _plot_growth(out: Path, racers: dict[str, Racer]) -> str:
    windows = {name: racer.windows() for name, racer in racers.items()}
    commits = {name: [(each.last, each.p50) for each in some] for name, some in windows.items()}
    stored = {
        name: [(each.last, each.facts.stored_bytes / 1e6) for each in some]
        for name, some in windows.items()
    }
    return draw(
        out,
        "e1-growth",
        Lines(commits, "write and commit 1,000 rows, p50", "epochs", "ms", log_y=True),
        Lines(stored, "stored", "epochs", "MB", log_y=True),
        title="Epochs without compaction, without Spark",
    )


# ------------------------------------------------------------------------------------ with Spark


def _with_spark(bench: Bench, sheet: Sheet, rounds: int, turn: int) -> dict[str, Lapper]:
    spark = bench.spark()
    with progress("with Spark", len(STREAMS) * (rounds + 1)) as advance:
        # A young JVM is slow: whoever comes first would pay for all.
        early = Source(bench.work / "early", SPARK_ROWS)
        streams = {**STREAMS, OURS: partial(STREAMS[OURS], options={"autoCompactEvery": 0})}
        for name, stream in streams.items():
            Lapper(spark, stream, bench.work / f"early-{name}", early).turn(turn)
            advance("warm-up")
        source = Source(bench.work / "source", SPARK_ROWS)
        lappers = {
            name: Lapper(spark, stream, bench.work / name, source)
            for name, stream in streams.items()
        }
        workers = {name: partial(_lap, lapper, turn) for name, lapper in lappers.items()}
        by_turns(workers, rounds, advance)
    for name, lapper in lappers.items():
        epoch = summary(lapper.epochs)
        sheet.add("epochs_counted", int(epoch["n"]), "epochs", contestant=name)
        sheet.add("epoch_p50", epoch["p50"], "ms", contestant=name)
        sheet.add("epoch_p90", epoch["p90"], "ms", contestant=name)
        sheet.add("add_batch_p50", median(lapper.add_batch), "ms", contestant=name)
    ours = lappers[OURS]
    for name in (*RIVALS, "parquet", NOOP):
        theirs = lappers[name]
        value = median(ours.epochs) / median(theirs.epochs)
        batch = median(ours.add_batch) / median(theirs.add_batch)
        sheet.ratio("epoch_p50", of=OURS, to=name, value=value)
        sheet.ratio("add_batch_p50", of=OURS, to=name, value=batch)
        if name in RIVALS:
            sheet.claim(f"epoch p50 on Spark ahead of {name}", value=value, limit=1.0)
        if name == NOOP:
            sheet.claim(f"epoch p50 on Spark against {name}", value=value, limit=1.3)
    return lappers


def _lap(lapper: Lapper, turn: int, number: int) -> None:
    lapper.turn((number + 1) * turn)


def _plot_spark(out: Path, lappers: dict[str, Lapper]) -> str:
    epochs = {name: median(lapper.epochs) for name, lapper in lappers.items()}
    batches = {name: median(lapper.add_batch) for name, lapper in lappers.items()}
    return draw(
        out,
        "e1-spark",
        Bars(epochs, "whole epoch, p50", "ms"),
        Bars(batches, "its addBatch, p50", "ms"),
        title="Epochs of 500 rows on Spark, into the tables that have grown",
    )
