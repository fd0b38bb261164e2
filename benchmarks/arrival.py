"""From a record's arrival in Kafka to a reader that sees its row: `python -m benchmarks.arrival`.

    python -m benchmarks.arrival --seconds 3600 --beside 300

Kafka's own load generator sends 10,000 records of 100 bytes a second to a broker on this machine.
A stream copies them: our sink with its own upkeep, and with `optimize` and `cleanup` by the command
line every few minutes, as a schedule would run them; then delta-rs by `foreachBatch` and Spark's
parquet sink, for a shorter time, without maintenance. All have the same trigger and the checkpoint
manager of a launched job. A reader in a process of its own looks every 10 ms. Reported: the age of
a row when it was first seen, counted from the record's timestamp, over all rows and in the worst
minute; whether each record is there once. Broker, streams and reader share the machine's cores.
Everything is in TMPDIR. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from benchmarks.contestants import OURS, STREAMS
from benchmarks.freshness import COLUMN, Reader
from benchmarks.harness.measure import median, percentile
from benchmarks.harness.sheet import Claim, study
from benchmarks.harness.spark import as_launched, durations, session
from benchmarks.idle_epochs import PARTS, WHOLE
from tests.support.jars import fetched_jars
from tests.support.kafka import KAFKA, Broker, connector_jars, kafka_broker
from tests.support.kafka_session import Kafka

RECORD_BYTES = 100
MINUTE = 60
P50, P99 = 0.3, 1.0
"""What is claimed, in seconds."""
TABLES = {OURS: "t.lance", "delta": "t.delta", "parquet": "parquet"}
"""Where a contestant's table is, below its place."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=3600, help="of our stream")
    parser.add_argument("--beside", type=int, default=300, help="seconds of each other")
    parser.add_argument(
        "--warm-up", type=int, default=30, help="seconds until rows count: a young JVM's epochs"
    )
    parser.add_argument("--rate", type=int, default=10_000, help="records a second")
    parser.add_argument("--partitions", type=int, default=2, help="of each topic: one a core")
    parser.add_argument("--trigger", default="0 seconds")
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--every", type=int, default=300, help="seconds between two maintenances")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="arrival-") as folder, kafka_broker() as broker:
        told = compare(Path(folder), broker, given)
    ours = told[OURS]
    claims = [
        Claim(f"seconds from arrival to visible, {edge}", ours[f"{edge}_s"], limit)
        for edge, limit in (("p50", P50), ("p99", P99))
    ]
    for name in TABLES:
        if name != OURS and name in told:
            ratio = ours["p50_s"] / told[name]["p50_s"]
            claims.append(Claim(f"p50 from arrival to visible ahead of {name}", round(ratio, 3), 1))
    print(json.dumps(study("arrival", vars(given), claims, told)))


def compare(work: Path, broker: Broker, given: Any) -> dict[str, Any]:
    """Run one stream after the other over the same feed; return their figures by name."""
    told = {}
    spark = session(jars=connector_jars())
    try:
        for name in given.only:
            seconds = given.seconds if name == OURS else given.beside
            if seconds:
                Kafka(spark, broker.servers).create(name, given.partitions)
                told[name] = run(spark, broker, name, work / name, seconds, given)
                print(json.dumps({name: told[name]}), file=sys.stderr, flush=True)
    finally:
        spark.stop()
    return told


def run(
    spark: SparkSession, broker: Broker, name: str, place: Path, seconds: int, given: Any
) -> dict[str, Any]:
    """Stream for a while beside a reader; return the figures of the rows after the warm-up."""
    place.mkdir()
    table = place / TABLES[name]
    upkeep = Maintenance(str(table), given.every) if name == OURS else None
    with Reader(name, str(table)) as reader, as_launched(spark, str(place)):
        rows = records(spark, broker, name)
        with STREAMS[name](rows, str(place), processingTime=given.trigger) as query:
            with feed(broker, name, given.rate, place / "feed.log"):
                time.sleep(given.warm_up)
                began = time.time()
                while (left := began + seconds - time.time()) > 0:
                    if upkeep:
                        upkeep.keep()
                    query.awaitTermination(max(0.1, min(1.0, left)))
                    if error := query.exception():
                        raise error
                ended = time.time()
            query.processAllAvailable()
            parts = {part: durations(query, part) for part in (*PARTS, WHOLE)}
            epochs = query.lastProgress["batchId"] + 1
    minutes = [reader.ages(at, at + MINUTE) for at in np.arange(began, ended - MINUTE + 1, MINUTE)]
    minutes = [each for each in minutes if len(each)]
    ages = reader.ages(began, ended)
    figures = {
        "seconds": seconds,
        "rows": len(ages),
        "rows_a_second": round(len(ages) / (ended - began)),
        "p50_s": _quantile(ages, 0.5),
        "p99_s": _quantile(ages, 0.99),
        "max_s": _quantile(ages, 1),
        "worst_minute_p50_s": max((_quantile(each, 0.5) for each in minutes), default=None),
        "worst_minute_p99_s": max((_quantile(each, 0.99) for each in minutes), default=None),
        "last_minute_p50_s": _quantile(minutes[-1], 0.5) if minutes else None,
        "epochs": epochs,
        "epoch_p50_ms": {part: round(median(took)) for part, took in parts.items()},
        "epoch_p99_ms": round(percentile(parts[WHOLE], 0.99)),
        "rows_not_once": not_once(name, table),
    }
    return figures | (upkeep.figures() if upkeep else {})


def _quantile(ages: np.ndarray, share: float) -> float:
    return round(float(np.quantile(ages, share)), 3)


def records(spark: SparkSession, broker: Broker, topic: str) -> DataFrame:
    source = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": broker.servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
    )
    text = "CAST(value AS STRING) AS text"
    return source.load().selectExpr("partition", "offset", text, f"timestamp AS {COLUMN}")


@contextmanager
def feed(broker: Broker, topic: str, rate: int, log: Path) -> Iterator[None]:
    """Send records at a steady rate."""
    jars = fetched_jars("org.apache.kafka", f"kafka-tools:{KAFKA}")
    command = ["java", "-Xmx256m", "-cp", f"{jars}/*"]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    command += ["--num-records", str(2**40), "--record-size", str(RECORD_BYTES)]
    command += ["--throughput", str(rate), "--producer-props", "linger.ms=5", "acks=1"]
    command += [f"bootstrap.servers={broker.servers}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            if process.poll() is not None:
                raise SystemExit(f"The load generator ended: {log.read_text()[-2000:]}")
        finally:
            process.kill()
            process.wait()


class Maintenance:
    """Compaction and cleanup by the command line, in turns of a schedule."""

    def __init__(self, uri: str, every: int) -> None:
        self._uri, self._every = uri, every
        self._due = time.monotonic() + every
        self._pool = ThreadPoolExecutor(1)
        self._turns: list[Future[float]] = []

    def keep(self) -> None:
        """Begin a turn if it is due and none runs.

        :raises subprocess.CalledProcessError: one has failed.
        """
        if time.monotonic() > self._due and all(each.done() for each in self._turns):
            self._due += self._every
            self._turns.append(self._pool.submit(self._turn))

    def _turn(self) -> float:
        began = time.monotonic()
        for words in (["optimize"], ["cleanup", "--older-than", "10m"]):
            command = [sys.executable, "-m", "airflow_provider_lance.cli", *words, self._uri]
            subprocess.run([*command, "--yes"], stdout=sys.stderr, check=True)
        return time.monotonic() - began

    def figures(self) -> dict[str, Any]:
        """Wait for the newest turn; return how many there were, and what they left."""
        took = [each.result() for each in self._turns]
        dataset = lance.dataset(self._uri)
        return {
            "maintenance_runs": len(took),
            "maintenance_max_s": round(max(took, default=0.0), 1),
            "fragments_at_end": len(dataset.get_fragments()),
            "versions_at_end": len(dataset.versions()),
        }


def not_once(name: str, table: Path) -> int:
    """Return how many records are missing before the last one, or there twice."""
    wanted = ["partition", "offset"]
    reads: Mapping[str, Any] = {
        OURS: lambda: lance.dataset(str(table)).to_table(columns=wanted),
        "delta": lambda: DeltaTable(str(table)).to_pyarrow_table(columns=wanted),
        "parquet": lambda: pq.read_table(table, columns=wanted),
    }
    rows: pa.Table = reads[name]()
    wrong = 0
    for partition in np.unique(rows["partition"].to_numpy()):
        mask = rows["partition"].to_numpy() == partition
        offsets = np.sort(rows["offset"].to_numpy()[mask])
        wrong += int(np.abs(np.diff(offsets, prepend=-1) - 1).sum())
    return wrong


if __name__ == "__main__":
    main()
