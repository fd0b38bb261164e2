"""E3: from start to first commit, against the depth of history and the number of fragments.

A stream writes its epochs at the end of a history of config changes, and its driver releases the
query or, as one that is killed, does not. Then it is started again: alone (open, read checkpoint
and watermark, claim, write and commit one epoch; no handle and no session is reused), the same in
an interpreter of its own, and with Spark, from `LanceSink.start` to the first epoch's commit.
Beside it, over the same dataset, goes the classic design, which looks 100 versions back. What a
restart adds is taken away again, so that each finds the same history.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.failpoints import Failpoint
from benchmarks.contestants.classic import Classic
from benchmarks.first_commit import WHOLE, first_commit
from benchmarks.harness.bench import Bench
from benchmarks.harness.machine import ROOT
from benchmarks.harness.measure import summary
from benchmarks.harness.plots import Bars, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA, add_files, read_files, rows
from benchmarks.harness.turns import by_turns
from benchmarks.histories import EPOCHS, QUERY, Scene, Size, aged, sink_for, streamed

NAME = "E3"
TITLE = "Restart against history"

ROWS = 500
OURS, CLASSIC = "lance-stream", "classic"
KILLED, RELEASED = "killed", "released"
ALONE, FRESH, SPARK = "alone", "fresh interpreter", "spark"
FEW, LIMIT = 100, 1.5
"""What is claimed: a restart at the deepest history takes at most so many times the shallowest."""

Worker = Callable[[Scene], dict[str, float]]
"""Starts a scene's query again; returns milliseconds by part, the sum as :data:`WHOLE`."""


@dataclass(frozen=True)
class Case:
    """Who starts again, where, after which end of the driver before, on which history."""

    contestant: str
    where: str
    owner: str
    size: Size

    @property
    def labels(self) -> dict[str, str | int]:
        return {
            "contestant": self.contestant,
            "where": self.where,
            "owner": self.owner,
            "versions": self.size.versions,
            "fragments": self.size.fragments,
        }


Medians = dict[Case, float]


def run(bench: Bench) -> Sheet:
    depths = bench.scale.pick(quick=(FEW, 1000), full=(FEW, 1000, 10_000))
    fragments = bench.scale.pick(quick=(1000,), full=(EPOCHS + 1, 1000))
    repeats = bench.scale.pick(quick={ALONE: 5, SPARK: 2}, full={ALONE: 31, SPARK: 7, FRESH: 3})
    settings = {
        "versions": depths,
        "fragments": fragments,
        "epochs_before": EPOCHS,
        "rows": ROWS,
        "repeats": repeats,
    }
    sheet = Sheet(NAME, TITLE, settings)
    sizes = [Size(*each) for each in product(depths, fragments)]
    spark, source = bench.spark(), bench.work / "source"
    add_files(source, 0, EPOCHS, ROWS)
    with progress("histories", len(depths) + len(sizes)) as advance:
        empty = {}
        for depth in depths:
            empty[depth] = aged(bench.work / f"aged-{depth}", depth)
            advance(f"{depth:,} versions")
        streams = []
        for size in sizes:
            place = bench.work / f"{size.versions}-{size.fragments}"
            streams.append(streamed(spark, source, empty[size.versions], place, size))
            advance(f"{size}")
    add_files(source, EPOCHS, 1, ROWS)
    table = rows(0, ROWS)
    workers: dict[str, dict[str, Worker]] = {
        ALONE: {OURS: partial(_ours, table), CLASSIC: partial(_classic, table)},
        SPARK: {OURS: partial(_with_spark, spark, source)},
        FRESH: {OURS: _own_process},
    }
    medians: Medians = {}
    for owner in (KILLED, RELEASED):
        if owner == RELEASED and not all(sink.release() for _, sink in streams):
            raise AssertionError("a query was not released")
        for scene, _ in streams:
            scene.keep()
        for where, count in repeats.items():
            turns = {
                Case(contestant, where, owner, scene.size): partial(worker, scene)
                for scene, _ in streams
                for contestant, worker in workers[where].items()
            }
            # An interpreter of its own is cold each time, and is meant to be.
            medians |= _measured(sheet, turns, count, warm_up=int(where != FRESH))
    _compare(sheet, medians)
    sheet.plots.append(_plot(bench.out, medians))
    return sheet


# ---------------------------------------------------------------------------------- starting again


def _ours(table: pa.Table, scene: Scene) -> dict[str, float]:
    taken = first_commit(scene.uri, str(scene.checkpoint), QUERY, EPOCHS, table)
    scene.back()
    return taken


def _classic(table: pa.Table, scene: Scene) -> dict[str, float]:
    began = time.perf_counter()
    Classic(str(scene.folder), SCHEMA, query_id=CLASSIC).epoch(table, EPOCHS)
    taken = time.perf_counter() - began
    scene.back()
    return {WHOLE: taken * 1000}


def _with_spark(spark: SparkSession, source: Path, scene: Scene) -> dict[str, float]:
    landed: list[float] = []

    def on_step(step: Failpoint) -> None:
        if step is Failpoint.COMMIT_LANDED:
            landed.append(time.perf_counter())

    df = read_files(spark, source)
    began = time.perf_counter()
    sink_for(scene, on_step).start(df, availableNow=True).awaitTermination()
    scene.back()
    return {WHOLE: (landed[0] - began) * 1000}


def _own_process(scene: Scene) -> dict[str, float]:
    code = "import sys; from benchmarks.first_commit import main; main(*sys.argv[1:])"
    words = [sys.executable, "-c", code, scene.uri, str(scene.checkpoint), QUERY, str(EPOCHS)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    scene.back()
    return {WHOLE: json.loads(ran.stdout.splitlines()[-1])[WHOLE]}


# ------------------------------------------------------------------------------------- the figures


def _measured(
    sheet: Sheet,
    turns: dict[Case, Callable[[], dict[str, float]]],
    repeats: int,
    *,
    warm_up: int,
) -> Medians:
    """Let all start again by turns; the rounds that warm up do not count."""

    def each_time(start: Callable[[], dict[str, float]]) -> Callable[[int], dict[str, float]]:
        return lambda number: start()

    names = {str(case): case for case in turns}
    workers = {name: each_time(turns[case]) for name, case in names.items()}
    title = ", ".join(sorted({f"{case.where}, {case.owner}" for case in turns}))
    rounds = warm_up + repeats
    with progress(title, rounds * len(turns)) as advance:
        found = by_turns(workers, rounds, lambda name: advance(""))
    medians: Medians = {}
    for name, taken in found.items():
        case = names[name]
        told = {part: summary([each[part] for each in taken[warm_up:]]) for part in taken[0]}
        for part, figures in told.items():
            sheet.add(f"{part}_p50", figures["p50"], "ms", **case.labels)
        sheet.add(f"{WHOLE}_p90", told[WHOLE]["p90"], "ms", **case.labels)
        medians[case] = told[WHOLE]["p50"]
    return medians


def _compare(sheet: Sheet, medians: Medians) -> None:
    """Set the depths beside the shallowest, and ours beside the classic design."""
    deepest = max(case.size.versions for case in medians)
    for case, value in medians.items():
        classic = medians.get(Case(CLASSIC, case.where, case.owner, case.size))
        if case.contestant == OURS and classic is not None:
            sheet.ratio(f"{WHOLE}_p50", of=OURS, to=CLASSIC, value=value / classic, **_rest(case))
        if case.size.versions == FEW:
            continue
        few = medians[Case(case.contestant, case.where, case.owner, _at(case.size, FEW))]
        deep, shallow = f"{case.size.versions} versions", f"{FEW} versions"
        labels = {name: each for name, each in case.labels.items() if name != "versions"}
        sheet.ratio(f"{WHOLE}_p50", of=deep, to=shallow, value=value / few, **labels)
        if case.contestant == OURS and case.where != FRESH and case.size.versions == deepest:
            sheet.claim(
                f"restart of a {case.owner} query, {case.where}, at {deepest:,} versions beside "
                f"{FEW} ({case.size.fragments:,} fragments)",
                value=value / few,
                limit=LIMIT,
            )


def _rest(case: Case) -> dict[str, str | int]:
    return {name: each for name, each in case.labels.items() if name != "contestant"}


def _at(size: Size, versions: int) -> Size:
    return Size(versions, size.fragments)


def _plot(folder: Path, medians: Medians) -> str:
    """Draw the restart of a killed query: alone beside the classic design, and with Spark."""
    killed = [case for case in medians if case.owner == KILLED]
    # Ours first, so that a name has the same colour in both charts.
    cases = sorted(killed, key=lambda case: (case.size.versions, case.contestant != OURS))
    charts = [
        Bars(
            _grouped((case for case in cases if case.where == where), medians),
            title,
            "ms to the first commit, p50",
        )
        for where, title in ((ALONE, "without Spark"), (SPARK, "with Spark"))
    ]
    return draw(folder, "restart", *charts, title="Restart of a killed query, by versions")


def _grouped(cases: Iterable[Case], medians: Medians) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for case in cases:
        name = f"{case.contestant}, {case.size.fragments:,} fragments"
        groups.setdefault(f"{case.size.versions:,}", {})[name] = medians[case]
    return groups
