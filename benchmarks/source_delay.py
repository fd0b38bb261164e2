"""E7, delay: from a commit in one dataset to the commit that carries its rows on in the next.

A query reads the first dataset at a trigger of one second and appends to the second. Commits come
at random moments, so that they meet every part of a trigger's second. Both moments are those that
the datasets' own versions name.
"""

from __future__ import annotations

import random
import time

import lance
from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.source.parts import commit_time
from airflow_provider_lance.spark.source import register_source
from benchmarks.contestants import OURS, STREAMS
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import percentile
from benchmarks.harness.progress import progress
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import SCHEMA, rows

NAME, TITLE = "E7", "From one dataset to the next"

TRIGGER_SECONDS = 1
LIMIT_SECONDS = 2.0 * TRIGGER_SECONDS
"""What is claimed of the p95: a commit waits for one trigger, and has one to arrive."""
WARM_UP = 3
PATIENCE_SECONDS = 120.0


def run(bench: Bench) -> Sheet:
    commits = bench.scale.pick(quick=12, full=100)
    sheet = Sheet(NAME, TITLE, {"commits": commits, "trigger_seconds": TRIGGER_SECONDS})
    first, place = str(bench.work / "first.lance"), str(bench.work / "second")
    spark = bench.spark()
    lance.write_dataset(SCHEMA.empty_table(), first)
    with progress(TITLE, commits + WARM_UP) as advance, _stream(spark, first, place):
        dice = random.Random(7)
        for number in range(WARM_UP + commits):
            lance.write_dataset(rows(number, 1), first, mode="append")
            advance(f"{number}")
            if number < WARM_UP:  # a run opens its table in its first epochs
                _wait(place, number + 1)
            time.sleep(dice.uniform(0.3, 1.7) * TRIGGER_SECONDS)
        _wait(place, WARM_UP + commits)
    came, went = _moments(first), _moments(lance_uri(place))
    delays = [(went[each] - came[each]) / 1e6 for each in range(WARM_UP, WARM_UP + commits)]
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        value = percentile(delays, share)
        sheet.add(f"delay_{name}", value, "s", trigger=TRIGGER_SECONDS)
    claim = f"seconds from commit to commit, p95 at a trigger of {TRIGGER_SECONDS} s"
    sheet.claim(claim, value=percentile(delays, 0.95), limit=LIMIT_SECONDS)
    return sheet


def _stream(spark: SparkSession, first: str, place: str):  # type: ignore[no-untyped-def]
    register_source(spark)
    df = spark.readStream.format("lance").load(first)
    return STREAMS[OURS](df, place, processingTime=f"{TRIGGER_SECONDS} seconds")


def _wait(place: str, count: int) -> None:
    """Wait until the second dataset has so many rows.

    :raises TimeoutError: it has not after a while.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while open_dataset(lance_uri(place)).dataset.count_rows() < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the second dataset has fewer than {count} rows")
        time.sleep(0.05)


def _moments(uri: str) -> dict[int, int]:
    """Return when each id came into a dataset, in microseconds since 1970."""
    newest, found = open_dataset(uri), dict[int, int]()
    for version in range(1, newest.version + 1):
        port = newest.at(version)
        assert isinstance(port, LanceDatasetPort)
        for each in port.dataset.to_table(columns=["id"])["id"].to_pylist():
            found.setdefault(each, commit_time(port))
    return found
