"""E4: how many rows a second a stream sustains, and how fresh its rows are, by trigger.

Spark's rate source makes rows by the clock, each with its own timestamp. A rate holds if no epoch
takes longer than the trigger and none begins with a backlog. Freshness is the time from a row's
timestamp until a reader that looks for the newest version sees it; what the trigger itself costs is
half of its interval. Spark's parquet file sink does the same beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.contestants import OURS
from benchmarks.freshness import COLUMN
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import summary
from benchmarks.harness.plots import Bars, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import DDL
from benchmarks.rate_streams import PARTITIONS, Setting, Stand, Taken

NAME = "E4"
TITLE = "Sustained rate and freshness"

PARQUET = "parquet"
CONTESTANTS = (OURS, PARQUET)
SLOW, BUSY = 1_000, 10_000
FIRST_RATE = 100_000
CLOSE = 1.15
"""A search ends when the lowest rate that failed is at most so many times the one that held."""


def highest(
    holds: Callable[[int], bool], first: int, is_time_left: Callable[[], bool]
) -> tuple[int, int | None]:
    """Search the highest rate that holds: by doubling, then by bisecting.

    :returns: the highest that held, 0 if none did, and the lowest that failed, if any.
    """
    good, bad, rate = 0, None, first
    while is_time_left():
        if holds(rate):
            good = rate
        else:
            bad = rate
        if bad is None:
            rate = good * 2
        elif not good:
            rate = bad // 2
        else:
            rate = int(float(f"{math.sqrt(good * bad):.2g}"))
        if not rate or (good and bad is not None and bad <= good * CLOSE):
            break
    return good, bad


def run(bench: Bench) -> Sheet:
    settings = bench.scale.pick(
        quick=[Setting(BUSY, 1, 5)],
        full=[
            Setting(SLOW, 1, 6),
            Setting(BUSY, 1, 10),
            Setting(SLOW, 5, 1),
            Setting(BUSY, 5, 2),
            Setting(SLOW, 15, 1),
            Setting(BUSY, 15, 2),
        ],
    )
    searches: dict[int, float] = bench.scale.pick(quick={}, full={1: 40.0, 5: 40.0})
    sheet = Sheet(
        NAME,
        TITLE,
        {
            "runs": [vars(each) for each in settings],
            "seconds_of_search_by_trigger": searches,
            "partitions": PARTITIONS,
            "columns": f"{DDL}, {COLUMN} TIMESTAMP",
        },
    )
    spark = bench.spark()
    steps = 1 + len(settings) + len(searches)
    with _quiet(spark), progress("rates", steps * len(CONTESTANTS)) as advance:
        stand = Stand(spark, bench.work)
        for contestant in CONTESTANTS:
            stand.holds(contestant, Setting(BUSY, 1, 5))
            advance("warming up")
        fresh: dict[tuple[str, Setting], dict[str, float]] = {}
        for setting in settings:
            for contestant in CONTESTANTS:
                advance(f"{contestant}, {setting.rate:,} rows/s, every {setting.trigger} s")
                epochs, ages = stand.freshness(contestant, setting)
                if ages:
                    fresh[contestant, setting] = ages
                _note(sheet, contestant, setting, epochs, ages)
        first = FIRST_RATE
        for trigger, seconds in searches.items():
            found = {}
            # Ours last: it ends in order, so that no cut-off epoch logs after the block.
            for contestant in reversed(CONTESTANTS):
                advance(f"{contestant}, highest rate, every {trigger} s")
                found[contestant] = _search(stand, contestant, trigger, seconds, first)
            _note_highest(sheet, trigger, found)
            first = max(first, *(held for held, _ in found.values()))
    _compare(sheet, fresh)
    sheet.plots.append(_plot(bench.out, fresh))
    return sheet


@contextmanager
def _quiet(spark: SparkSession) -> Iterator[None]:
    """Keep Spark from logging the epochs that are cut off where a rate is too high."""
    spark.sparkContext.setLogLevel("FATAL")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("ERROR")


def _search(
    stand: Stand, contestant: str, trigger: int, seconds: float, first: int
) -> tuple[int, int | None]:
    end = time.monotonic() + seconds
    epochs = 4 if trigger == 1 else 2

    def holds(rate: int) -> bool:
        setting = Setting(rate, trigger, epochs)
        # Again before it is said to fail: one hiccup would send the search far too low.
        return stand.holds(contestant, setting) or stand.holds(contestant, setting)

    return highest(holds, first, lambda: time.monotonic() < end)


def _note(
    sheet: Sheet,
    contestant: str,
    setting: Setting,
    epochs: Sequence[Taken],
    ages: dict[str, float],
) -> None:
    """Put one run's figures down, the longest epoch and the freshness in units of the trigger."""
    named = {"rate": setting.rate, "trigger": setting.trigger}
    if epochs:
        took = [epoch.milliseconds for epoch in epochs]
        longest = max(took) / 1000 / setting.trigger
        sheet.add("epoch_p50", summary(took)["p50"], "ms", contestant=contestant, **named)
        sheet.ratio("epoch_longest", of=contestant, to="trigger", value=longest, **named)
    for edge in ("p50", "p90"):
        if ages:
            sheet.add(f"freshness_{edge}", ages[edge], "s", contestant=contestant, **named)
            part = ages[edge] / setting.trigger
            sheet.ratio(f"freshness_{edge}", of=contestant, to="trigger", value=part, **named)
    if contestant == OURS:
        in_time = sum(epoch.in_time(setting.trigger) for epoch in epochs)
        sheet.claim(
            f"epochs in time, {setting.rate:,} rows/s every {setting.trigger} s",
            value=in_time / setting.epochs,
            limit=1.0,
            atleast=True,
        )


def _note_highest(sheet: Sheet, trigger: int, found: dict[str, tuple[int, int | None]]) -> None:
    """Put the searches' ends down; they compare only if none ran out of time before a failure."""
    for contestant, (held, failed) in found.items():
        sheet.add("highest_rate", held, "rows/s", contestant=contestant, trigger=trigger)
        if failed is not None:
            sheet.add("rate_failed", failed, "rows/s", contestant=contestant, trigger=trigger)
    if all(held and failed for held, failed in found.values()):
        value = found[OURS][0] / found[PARQUET][0]
        sheet.ratio("highest_rate", of=OURS, to=PARQUET, value=value, trigger=trigger)


def _compare(sheet: Sheet, fresh: dict[tuple[str, Setting], dict[str, float]]) -> None:
    """Set ours beside the parquet sink."""
    for (contestant, setting), ages in fresh.items():
        other = fresh.get((PARQUET, setting))
        if contestant != OURS or other is None:
            continue
        for edge in ("p50", "p90"):
            sheet.ratio(
                f"freshness_{edge}",
                of=OURS,
                to=PARQUET,
                value=ages[edge] / other[edge],
                rate=setting.rate,
                trigger=setting.trigger,
            )


def _plot(folder: Path, fresh: dict[tuple[str, Setting], dict[str, float]]) -> str:
    """Draw the freshness at the higher rate, in units of the trigger's interval."""
    charts = []
    for edge in ("p50", "p90"):
        groups: dict[str, dict[str, float]] = {}
        for (contestant, setting), ages in fresh.items():
            if setting.rate == BUSY:
                group = groups.setdefault(f"{setting.trigger} s", {})
                group[contestant] = ages[edge] / setting.trigger
        charts.append(Bars(groups, edge, "age when first seen, in triggers"))
    return draw(folder, "freshness", *charts, title=f"Freshness at {BUSY:,} rows/s, by trigger")
