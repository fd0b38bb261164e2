"""Where a small epoch's time goes: `python -m benchmarks.idle_epochs [--turns 20] [--rows 500]`.

Streams of one small file an epoch, by turns in one Spark: our sink as a launched job runs it, the
noop and parquet sinks and delta-rs by `foreachBatch`, each with Spark's default checkpoint manager
and with a checkpoint written as in launched jobs. Prints medians of each part of Spark's progress;
as its last line one JSON object, with what our sink takes above noop and the ratio to noop under
Spark's defaults.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.contestants import NOOP, OURS, STREAMS
from benchmarks.harness.measure import median
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Claim, study
from benchmarks.harness.spark import DDL, add_files, as_launched, durations, read_files, session
from benchmarks.harness.turns import by_turns

PARTS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
WHOLE = "triggerExecution"
SINKS = (NOOP, OURS, "parquet", "delta")
DEFAULT, LAUNCHED = "default", "as launched"

_WARM_UP = 3
"""Epochs of a query that load classes and open files."""
_FIRST_TURNS = 8
"""The JVM still compiles; the first of them is not counted at all."""

Parts = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="of each; the first warms up")
    parser.add_argument("--epochs", type=int, default=30, help="of each turn")
    parser.add_argument("--rows", type=int, default=500, help="of each epoch")
    given = parser.parse_args()
    told = compare(given.turns, given.epochs, given.rows)
    small = "small epoch beside noop under Spark's defaults"
    claims = [
        Claim(f"{small}, all turns", told["epoch_of_noop_by_default"], 0.5),
        Claim(f"{small}, first turns", told["epoch_of_noop_by_default_at_first"], 0.5),
        Claim("ms of addBatch above noop's", told["addBatch_above_noop_ms"], 10),
    ]
    print(json.dumps(study("idle_epochs", vars(given), claims, told)))


def compare(turns: int, epochs: int, rows: int) -> dict[str, Any]:
    """Run all contestants by turns; return medians in milliseconds, by contestant and part."""
    spark = session()
    with tempfile.TemporaryDirectory(prefix="idle-epochs-") as folder:
        place = Path(folder)
        add_files(place / "source", 0, epochs, rows)
        workers = {
            f"{sink}, {manager}": partial(_turn, spark, place, sink, manager)
            for sink in SINKS
            for manager in (DEFAULT, LAUNCHED)
        }
        with progress("idle epochs", turns * len(workers)) as advance:
            seen = by_turns(workers, turns, advance)
    spark.stop()
    medians = {name: _medians(each[1:]) for name, each in seen.items()}
    first = {name: _medians(each[1:_FIRST_TURNS]) for name, each in seen.items()}
    for name, parts in medians.items():
        told = "  ".join(f"{part} {ms:6.1f}" for part, ms in parts.items())
        print(f"{name:28} {told}", file=sys.stderr)
    launched, noop = medians[f"{OURS}, {LAUNCHED}"], medians[f"{NOOP}, {LAUNCHED}"]
    return {
        "rows": rows,
        "epochs": (turns - 1) * (epochs - _WARM_UP),
        "epochs_at_first": (min(turns, _FIRST_TURNS) - 1) * (epochs - _WARM_UP),
        "p50_ms": medians,
        "addBatch_above_noop_ms": round(launched["addBatch"] - noop["addBatch"], 1),
        "epoch_of_noop_by_default": _of_noop(medians),
        "epoch_of_noop_by_default_at_first": _of_noop(first),
    }


def _turn(spark: SparkSession, folder: Path, sink: str, manager: str, number: int) -> Parts:
    place = folder / f"{sink}-{number}"
    place.mkdir()
    with _managed(spark, place, manager):
        df = read_files(spark, folder / "source", schema=DDL)
        with STREAMS[sink](df, str(place)) as query:
            query.awaitTermination()
    parts = {part: durations(query, part) for part in (*PARTS, WHOLE)}
    shutil.rmtree(place)
    return parts


@contextmanager
def _managed(spark: SparkSession, place: Path, manager: str) -> Iterator[None]:
    if manager == DEFAULT:
        yield
        return
    with as_launched(spark, str(place)):
        yield


def _of_noop(medians: dict[str, dict[str, float]]) -> float:
    launched, noop = medians[f"{OURS}, {LAUNCHED}"], medians[f"{NOOP}, {DEFAULT}"]
    return round(launched[WHOLE] / noop[WHOLE], 3)


def _medians(turns: list[Parts]) -> dict[str, float]:
    return {
        part: round(median([ms for turn in turns for ms in turn[part][_WARM_UP:]]), 1)
        for part in (*PARTS, WHOLE)
    }


if __name__ == "__main__":
    main()
