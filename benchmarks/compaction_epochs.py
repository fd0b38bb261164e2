"""What compaction costs a running stream's epochs: `python -m benchmarks.compaction_epochs`.

Spark streams the same small files into four datasets, one file an epoch: without compaction; with a
maintenance run (compaction and cleanup) in a thread beside the stream after every 50 and after
every 200 epochs; and with the sink's own `autoCompactEvery=50`. They take turns of `--turn` epochs
in one session, so that the machine's speed drops out. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_lance.spark import autocompact
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.streaming.dataset import open_dataset
from airflow_provider_lance.streaming.maintenance.options import MaintenanceOptions
from airflow_provider_lance.streaming.maintenance.run import maintain
from airflow_provider_lance.streaming.steps import Step
from benchmarks.throughput import session

DDL = "id BIGINT, value DOUBLE"
OPTIONS = MaintenanceOptions(older_than=600)


class Variant:
    """One stream with its dataset, checkpoint and way of being compacted."""

    def __init__(self, folder: Path, *, beside: int = 0, own: int = 0) -> None:
        folder.mkdir()
        self.uri = str(folder / "t.lance")
        self.milliseconds: list[float] = []
        self.beside: list[float] = []
        """Epochs, in milliseconds, while some compaction was under way."""
        self.compactions: list[float] = []
        """Compactions, in seconds."""
        self._folder, self._every, self._own = folder, beside, own
        self._epochs = 0
        self._busy: list[tuple[float, float]] = []
        self._threads: list[threading.Thread] = []

    def turn(self, spark: SparkSession, source: str) -> None:
        """Stream what is new in the source, to its end."""
        sink = LanceSink(
            on_step=self._step,
            uri=self.uri,
            queryId="bench",
            checkpointLocation=str(self._folder / "checkpoint"),
            createIfMissing=True,
            autoCompactEvery=self._own,
        )
        df = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(source)
        self._busy = []
        compact = autocompact.compact  # type: ignore[attr-defined]

        def noted(*arguments: Any, **named: Any) -> Any:
            began = time.time()
            try:
                return compact(*arguments, **named)
            finally:
                self._busy.append((began, time.time()))

        with patch.object(autocompact, "compact", noted):
            query = sink.start(df, availableNow=True)
            query.awaitTermination()
            sink.release()
            for thread in self._threads:
                thread.join()
        self._threads = []
        self.compactions += [end - began for began, end in self._busy]
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                self._note(progress["timestamp"], progress["durationMs"]["triggerExecution"])

    def _note(self, timestamp: str, milliseconds: float) -> None:
        began = datetime.fromisoformat(timestamp).timestamp()
        end = began + milliseconds / 1000
        self.milliseconds.append(milliseconds)
        if any(start < end and stop > began for start, stop in self._busy):
            self.beside.append(milliseconds)

    def _step(self, step: Step) -> None:
        if step is not Step.COMMIT_FOLDED or not self._every:
            return
        self._epochs += 1
        if self._epochs % self._every == 0:
            self._threads.append(threading.Thread(target=self._maintain))
            self._threads[-1].start()

    def _maintain(self) -> None:
        began = time.time()
        maintain(open_dataset(self.uri), OPTIONS)
        self._busy.append((began, time.time()))

    def figures(self) -> dict[str, object]:
        times = sorted(self.milliseconds)
        return {
            "epoch_p50_ms": statistics.median(times),
            "epoch_p90_ms": times[len(times) * 9 // 10],
            "epoch_max_ms": times[-1],
            "epochs_beside_a_compaction": len(self.beside),
            "epoch_p50_ms_beside": statistics.median(self.beside) if self.beside else None,
            "epoch_max_ms_beside": max(self.beside, default=None),
            "compactions": len(self.compactions),
            "compaction_p50_seconds": (
                round(statistics.median(self.compactions), 3) if self.compactions else None
            ),
            "compaction_max_seconds": round(max(self.compactions, default=0.0), 3),
            "fragments_at_end": len(lance.dataset(self.uri).get_fragments()),
        }

    def check(self, rows: int) -> None:
        """Fail unless each row is there once."""
        ids = lance.dataset(self.uri).to_table(columns=["id"]).column("id").to_numpy()
        if not np.array_equal(np.sort(ids), np.arange(rows)):
            raise AssertionError(f"{self.uri}: {len(ids)} rows, expected {rows}")


def add_files(folder: Path, first: int, count: int, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        ids = np.arange(number * rows, (number + 1) * rows)
        hidden = folder / f"_{number:06}.parquet"
        pq.write_table(pa.table({"id": ids, "value": ids / 2}), hidden)
        hidden.rename(folder / f"{number:06}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--turn", type=int, default=35)
    arguments = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        add_files(folder / "warm-up", 0, 20, arguments.rows)
        Variant(folder / "none-at-first").turn(spark, str(folder / "warm-up"))
        variants = {
            "none": Variant(folder / "none"),
            "beside, every 50": Variant(folder / "beside-50", beside=50),
            "beside, every 200": Variant(folder / "beside-200", beside=200),
            "autoCompactEvery=50": Variant(folder / "own-50", own=50),
        }
        order = list(variants.values())
        done = 0
        while done < arguments.epochs:
            count = min(arguments.turn, arguments.epochs - done)
            add_files(folder / "source", done, count, arguments.rows)
            for variant in order:
                variant.turn(spark, str(folder / "source"))
            order = [*order[1:], order[0]]
            done += count
            print(f"{done}/{arguments.epochs}", file=sys.stderr)
        for variant in order:
            variant.check(arguments.epochs * arguments.rows)
        told = {name: variant.figures() for name, variant in variants.items()}
    spark.stop()
    base = told["none"]
    for figures in told.values():
        for edge in ("p50", "p90"):
            mine, none = figures[f"epoch_{edge}_ms"], base[f"epoch_{edge}_ms"]
            figures[f"{edge}_over_none"] = round(float(mine) / float(none), 3)  # type: ignore[arg-type]
    print(json.dumps({"epochs": arguments.epochs, "rows": arguments.rows, "streams": told}))


if __name__ == "__main__":
    main()
