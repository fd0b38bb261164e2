"""What a long-lived process holds after many epochs or looks: `python -m benchmarks.soak`.

    python -m benchmarks.soak --epochs 10000 --mode append --compact-every 0
    python -m benchmarks.soak --epochs 10000 --mode upsert --compact-every 50
    python -m benchmarks.soak --looks 10000 --datasets 100

The first two run one real driver: the job with its heartbeats and supervision, local Spark, small
epochs as fast as they go. The JVM's heap is resident from the start, so that its figure shows what
else grows; ``heap`` is what is used of it after a collection. The third looks at many datasets as a
triggerer's poll does and as the page does, while another process commits to each of them. Prints
samples on the way and one JSON object at the end: the samples, and how much each figure grew after
the first 500. The datasets are in TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec
from benchmarks.harness.memory import held, held_by_children
from benchmarks.soak_looks import soak_looks

QUERY = "soak"
KEYS = 5_000
"""Rows that an upsert changes again and again."""
_FAST_LOG = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_LOOK_SECONDS = 0.2
_STUCK_SECONDS = 300.0

Sample = dict[str, float]


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        if given.looks:
            samples = soak_looks(Path(folder), given.looks, given.datasets, given.every, say=_say)
        else:
            samples = soak_driver(Path(folder), given)
    settings = {name: value for name, value in vars(given).items() if value is not None}
    print(
        json.dumps({"settings": settings, "grown": grown(samples, given.after), "samples": samples})
    )
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=2_000)
    parser.add_argument("--mode", choices=("append", "upsert"), default="append")
    parser.add_argument("--compact-every", type=int, default=0, help="epochs; 0: never")
    parser.add_argument("--rows", type=int, default=100, help="of an epoch")
    parser.add_argument("--on-executors", action="store_true", help="Python workers write all rows")
    parser.add_argument("--cache-bytes", type=int, help="the sink's option cacheBytes")
    parser.add_argument("--heap", default="1g", help="the JVM's")
    parser.add_argument("--looks", type=int, default=0, help="look at datasets; no Spark")
    parser.add_argument("--datasets", type=int, default=100, help="that are looked at")
    parser.add_argument("--every", type=int, default=100, help="epochs or looks between samples")
    parser.add_argument("--after", type=int, default=500, help="growth counts from here on")
    return parser


def grown(samples: Sequence[Sample], after: int) -> Sample:
    """Return how much each figure is higher at the end than after so many epochs or looks."""
    base = next((each for each in samples if each["done"] >= after), samples[0])
    return {name: round(samples[-1][name] - value, 1) for name, value in base.items()}


def _say(sample: Sample) -> None:
    print(" ".join(f"{name}={value:g}" for name, value in sample.items()), file=sys.stderr)


# ------------------------------------------------------------------------------------ one driver


def soak_driver(work: Path, given: Any) -> list[Sample]:
    """Run one driver for so many epochs, then stop it as a user would."""
    session = _session(given.heap)
    try:
        spec = _spec(work, given)
        sink = LanceSink(spec.sink, launch_id=spec.launch_id)
        watch = _Watch(session, sink, given)
        with watch:
            summary = run(session, spec, sink)
        if summary.error or summary.epochs < given.epochs or not summary.released:
            raise AssertionError(f"the run did not end in order: {summary}")
        if watch.error:
            raise watch.error
    finally:
        session.stop()
    return watch.samples


def _session(heap: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with warnings.catch_warnings():
        # PySpark starts its JVM with a fork hook, which Lance warns of; the child only execs Java.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        return (
            SparkSession.builder.master("local[2]")
            .appName("soak")
            .config("spark.driver.memory", heap)
            .config("spark.driver.extraJavaOptions", f"-Xms{heap} -XX:+AlwaysPreTouch")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.checkpointFileManagerClass", _FAST_LOG)
            .getOrCreate()
        )


def _spec(work: Path, given: Any) -> JobSpec:
    upsert = given.mode == "upsert"
    row = f"value % {KEYS} AS id" if upsert else "value AS id"
    sink = {
        "uri": str(work / "table.lance"),
        "queryId": QUERY,
        "checkpointLocation": str(work / "checkpoint"),
        "createIfMissing": True,
        "outputMode": "update" if upsert else "append",
        "mergeKeys": ["id"] if upsert else None,
        "autoCompactEvery": given.compact_every,
        "smallEpochRows": 0 if given.on_executors else None,
        "cacheBytes": given.cache_bytes,
    }
    return JobSpec.parse(
        {
            "launchId": "soak",
            "source": {
                "format": "rate-micro-batch",
                "options": {"rowsPerBatch": str(given.rows), "numPartitions": "2"},
            },
            "sql": f"SELECT {row}, value / 2 AS amount, concat('row ', value) AS words FROM source",
            "sink": {name: value for name, value in sink.items() if value is not None},
            "trigger": "0 seconds",
        }
    )


class _Watch:
    """Samples the driver from a thread of its own, and asks it to stop when it has done enough."""

    def __init__(self, session: SparkSession, sink: LanceSink, given: Any) -> None:
        self.samples: list[Sample] = []
        self.error: BaseException | None = None
        self._jvm: Any = session.sparkContext._jvm
        self._jvm_pid = int(self._jvm.java.lang.ProcessHandle.current().pid())
        self._sink, self._given = sink, given
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="soak-watch", daemon=True)

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
            self._sink.close()

    def _run(self) -> None:
        next_at, moved, last = 0, time.monotonic(), -1
        while not self._ended.wait(_LOOK_SECONDS):
            done = self._sink.totals.epochs
            if done != last:
                moved, last = time.monotonic(), done
            if time.monotonic() - moved > _STUCK_SECONDS:
                raise AssertionError(f"no epoch for {_STUCK_SECONDS:g} s after {done}")
            if done >= next_at and done:
                self._sample(done)
                next_at = done - done % self._given.every + self._given.every
            if done >= self._given.epochs:
                options = self._sink.options
                request_stop(open_dataset(options.uri), options.query_id, by="soak")
                return

    def _sample(self, done: int) -> None:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self._jvm.java.lang.System.gc()
        driver, jvm = held(), held(self._jvm_pid)
        workers = held_by_children(self._jvm_pid)
        sample = {
            "done": done,
            "seconds": round(time.monotonic() - self._began, 1),
            "driver_mib": driver.mib,
            "driver_descriptors": driver.descriptors,
            "driver_threads": driver.threads,
            "jvm_mib": jvm.mib,
            "jvm_heap_mib": round((runtime.totalMemory() - runtime.freeMemory()) / 2**20, 1),
            "jvm_descriptors": jvm.descriptors,
            "jvm_threads": jvm.threads,
            "workers_mib": workers.mib,
            "workers": workers.processes,
        }
        self.samples.append(sample)
        _say(sample)


if __name__ == "__main__":
    sys.exit(main())
