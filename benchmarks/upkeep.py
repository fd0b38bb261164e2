"""E2: epochs with compaction every 50 and every 200 epochs, with the sink's own, and with none.

The same query into four datasets, by turns. Without Spark maintenance runs between two epochs, as
the scheduled operator does it: compaction and cleanup, on a simulated clock of 10 seconds an epoch;
no epoch is timed meanwhile. With Spark the same streams go on, in the datasets as they are by then,
and maintenance runs in a thread beside them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.spark import autocompact
from airflow_provider_lance.spark.autocompact import AutoCompaction
from benchmarks.contestants import OURS, STREAMS
from benchmarks.contestants.lance_stream import LanceStream
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.contestants.table import QUERY
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.bench import Bench
from benchmarks.harness.laps import WARM_UP, Lapper, Source
from benchmarks.harness.measure import median, percentile, summary
from benchmarks.harness.plots import Lines, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.race import Racer, check, note_windows
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA
from benchmarks.harness.turns import by_turns

NAME = "E2"
TITLE = "Epochs with compaction"
ROWS, SPARK_ROWS = 1000, 500
TURN, SPARK_TURN = 25, 28
OPTIONS = MaintenanceOptions(older_than=600)


@dataclass(frozen=True)
class Upkeep:
    """Who compacts, and after how many epochs: maintenance beside the stream, or the sink."""

    beside: int = 0
    own: int = 0


NONE = "none"
KINDS = {
    NONE: Upkeep(),
    "every 50": Upkeep(beside=50),
    "every 200": Upkeep(beside=200),
    "autoCompactEvery=50": Upkeep(own=50),
}


def run(bench: Bench) -> Sheet:
    pick = bench.scale.pick
    epochs, rounds = pick(quick=300, full=2000), pick(quick=1, full=8)
    sheet = Sheet(
        NAME,
        TITLE,
        {
            "epochs": epochs,
            "rows": ROWS,
            "turn": TURN,
            "simulated_seconds_between_epochs": 10,
            "older_than": OPTIONS.older_than,
            "spark_epochs": rounds * SPARK_TURN,
            "spark_rows": SPARK_ROWS,
            "spark_turn": SPARK_TURN,
            "spark_warm_up": WARM_UP,
            "spark_datasets": "as they are after the epochs without Spark, of another query id",
        },
    )
    kept = _alone(bench, sheet, epochs)
    streams = _with_spark(bench, sheet, rounds)
    for name in KINDS:
        table = LanceStream(str(bench.work / name), SCHEMA)
        check(table, epochs * ROWS + rounds * SPARK_TURN * SPARK_ROWS)
        fragments = table.facts().fragments
        sheet.add("fragments_at_end", fragments, "fragments", upkeep=name, where="spark")
    sheet.plots = [_plot(bench.out, kept), _plot_spark(bench.out, streams)]
    return sheet


# --------------------------------------------------------------------------------- without Spark


class Kept:
    """A dataset with its upkeep between epochs; what upkeep takes is timed for itself."""

    def __init__(self, place: Path, upkeep: Upkeep, window: int) -> None:
        place.mkdir()
        self.seconds: list[float] = []
        self._table = LanceStream(str(place), SCHEMA)
        self.racer = Racer(self._table, ROWS, window)
        self._upkeep, self._ageing = upkeep, Ageing(self._table.uri)
        self._own = AutoCompaction(upkeep.own, QUERY)

    def turn(self, number: int) -> None:
        for _ in range(TURN):
            self.racer.epoch()
            self._keep(len(self.racer.milliseconds))

    def _keep(self, done: int) -> None:
        every = self._upkeep.beside or self._upkeep.own
        if not every or done % every:
            return
        began = time.perf_counter()
        if self._upkeep.beside:
            self._ageing.age(done)
            maintain(open_dataset(self._table.uri), OPTIONS)
        else:
            self._own.epoch_done(done - 1, self._table.port, self._table.committer.owner)
            self._own.end(60)
            self._own = AutoCompaction(every, QUERY)
        self.seconds.append(time.perf_counter() - began)


def _alone(bench: Bench, sheet: Sheet, epochs: int) -> dict[str, Kept]:
    window = epochs // 20
    kept = {name: Kept(bench.work / name, kind, window) for name, kind in KINDS.items()}
    rounds = epochs // TURN
    with progress("without Spark", rounds * len(kept)) as advance:
        by_turns({name: each.turn for name, each in kept.items()}, rounds, advance)
    tail = min(200, epochs // 2)
    where = f"{epochs - tail + 1}-{epochs}"
    none = kept[NONE].racer.milliseconds[-tail:]
    for name, each in kept.items():
        note_windows(sheet, each.racer, upkeep=name)
        each.racer.end()
        mine = each.racer.milliseconds
        _note_compactions(sheet, each.seconds, upkeep=name, where="alone")
        grown = median(mine[-tail:]) / median(mine[:tail])
        sheet.add("commit_p50_last_over_first", grown, "ratio", upkeep=name)
        if name == NONE:
            continue
        for edge, share in (("p50", 0.5), ("p90", 0.9)):
            value = percentile(mine[-tail:], share) / percentile(none, share)
            sheet.ratio(f"commit_{edge}", of=name, to=NONE, value=value, epochs=where)
            if edge == "p50":
                sheet.claim(
                    f"commit p50, {name}, against none, epochs {where}", value=value, limit=1.0
                )
    return kept


def _note_compactions(sheet: Sheet, seconds: list[float], **labels: str) -> None:
    sheet.add("compactions", len(seconds), "runs", **labels)
    if seconds:
        sheet.add("compaction_p50", median(seconds), "s", **labels)
        sheet.add("compaction_max", max(seconds), "s", **labels)


def _plot(out: Path, kept: Mapping[str, Kept]) -> str:
    windows = {name: each.racer.windows() for name, each in kept.items()}
    commits = {name: [(each.last, each.p50) for each in some] for name, some in windows.items()}
    fragments = {
        name: [(each.last, each.facts.fragments) for each in some] for name, some in windows.items()
    }
    stored = {
        name: [(each.last, each.facts.stored_bytes / 1e6) for each in some]
        for name, some in windows.items()
    }
    return draw(
        out,
        "e2-upkeep",
        Lines(commits, "write and commit 1,000 rows, p50", "epochs", "ms"),
        Lines(fragments, "fragments", "epochs", ""),
        Lines(stored, "stored", "epochs", "MB"),
        title="Epochs with compaction, without Spark",
    )


# ------------------------------------------------------------------------------------ with Spark


class Streamed:
    """A stream with its upkeep beside it; notes which epochs met a compaction."""

    def __init__(self, lapper: Lapper, upkeep: Upkeep) -> None:
        self.lapper = lapper
        self.met: list[float] = []
        """Epochs, in milliseconds, while a compaction was under way."""
        self.seconds: list[float] = []
        self._upkeep, self._epochs = upkeep, 0
        self._busy: list[tuple[float, float]] = []
        self._threads: list[threading.Thread] = []

    def turn(self, number: int) -> None:
        options = {"autoCompactEvery": self._upkeep.own, "on_step": self._step}
        self._busy = []
        with self._own_compactions():
            query = self.lapper.turn((number + 1) * SPARK_TURN, options=options)
            for thread in self._threads:
                thread.join()
        self._threads = []
        self.seconds += [end - began for began, end in self._busy]
        self._meet(query)

    def _meet(self, query: StreamingQuery) -> None:
        epochs = [each for each in query.recentProgress if each["numInputRows"]][WARM_UP:]
        for epoch in epochs:
            began = datetime.fromisoformat(epoch["timestamp"]).timestamp()
            took = epoch["durationMs"]["triggerExecution"]
            if any(start < began + took / 1000 and end > began for start, end in self._busy):
                self.met.append(took)

    def _step(self, step: Failpoint) -> None:
        if step is not Failpoint.COMMIT_FOLDED or not self._upkeep.beside:
            return
        self._epochs += 1
        if self._epochs % self._upkeep.beside == 0:
            self._threads.append(threading.Thread(target=self._maintain))
            self._threads[-1].start()

    def _maintain(self) -> None:
        with self._noted():
            maintain(open_dataset(lance_uri(str(self.lapper.place))), OPTIONS)

    @contextmanager
    def _own_compactions(self) -> Iterator[None]:
        """Note when the sink's own ones run; the sink only logs them."""
        compact = autocompact.compact  # type: ignore[attr-defined]

        def noted(*arguments: Any, **named: Any) -> Any:
            with self._noted():
                return compact(*arguments, **named)

        with patch.object(autocompact, "compact", noted):
            yield

    @contextmanager
    def _noted(self) -> Iterator[None]:
        began = time.time()
        yield
        self._busy.append((began, time.time()))


def _with_spark(bench: Bench, sheet: Sheet, rounds: int) -> dict[str, Streamed]:
    spark = bench.spark()
    stream = STREAMS[OURS]
    source = Source(bench.work / "source", SPARK_ROWS)
    with progress("with Spark", len(KINDS) * rounds + 1) as advance:
        early = Source(bench.work / "early", SPARK_ROWS)
        Lapper(spark, stream, bench.work / "early-stream", early).turn(2 * SPARK_TURN)
        advance("warm-up")
        streams = {
            name: Streamed(Lapper(spark, stream, bench.work / name, source), kind)
            for name, kind in KINDS.items()
        }
        workers = {name: each.turn for name, each in streams.items()}
        by_turns(workers, rounds, advance)
    none = streams[NONE].lapper.epochs
    for name, each in streams.items():
        epoch = summary(each.lapper.epochs)
        sheet.add("epochs_counted", int(epoch["n"]), "epochs", upkeep=name)
        sheet.add("epoch_p50", epoch["p50"], "ms", upkeep=name)
        sheet.add("epoch_p90", epoch["p90"], "ms", upkeep=name)
        _note_compactions(sheet, each.seconds, upkeep=name, where="spark")
        sheet.add("epochs_beside_a_compaction", len(each.met), "epochs", upkeep=name)
        if each.met:
            sheet.add("epoch_p50_beside", median(each.met), "ms", upkeep=name)
        if name == NONE:
            continue
        for edge, share in (("p50", 0.5), ("p90", 0.9)):
            value = percentile(each.lapper.epochs, share) / percentile(none, share)
            sheet.ratio(f"epoch_{edge}", of=name, to=NONE, value=value)
            if edge == "p50":
                sheet.claim(f"epoch p50 on Spark, {name}, against none", value=value, limit=1.1)
    return streams


def _plot_spark(out: Path, streams: Mapping[str, Streamed]) -> str:
    counted = SPARK_TURN - WARM_UP
    lines = {}
    for name, each in streams.items():
        epochs = each.lapper.epochs
        turns = range(len(epochs) // counted)
        lines[name] = [
            ((number + 1) * SPARK_TURN, median(epochs[number * counted : (number + 1) * counted]))
            for number in turns
        ]
    return draw(
        out, "e2-spark", Lines(lines, "whole epoch on Spark, p50 of each turn", "epochs", "ms")
    )
