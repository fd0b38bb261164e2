"""Vectors kept findable by their index: `python -m benchmarks.vectors`.

    python -m benchmarks.vectors --seconds 120 --turns 288          # the defaults
    python -m benchmarks.vectors --only day --turns 288 --rows 1000

Two parts. *Arrival*: the real sink on local Spark streams 1,000 vectors of 768 a second into a
table with an IVF_PQ index, from files of a tenth of a second each, with the checkpoint manager of a
launched job. The process that writes the files searches for what has just arrived, with
`fast_search`, until it finds it. Reported: from arrival (the file is there) to found, parts of the
index, and the stream's epochs. *Day*: so many turns of a simulated day, without Spark, through the
protocol: an epoch, the sink's refresh of the index, and maintenance after every 24 turns. Once with
a distribution that stays, once with one that turns away by a right angle. Reported at the quarters
of the day: recall@10 of the kept index and of one that was trained anew on a copy, both against
exact search, parts and stored bytes. Everything is in TMPDIR. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow.parquet as pq

from airflow_provider_lance.maintenance.dataset_metrics import read_indices
from airflow_provider_lance.maintenance.indexing import refresh_indices
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.autoindex import MERGED_BYTES
from airflow_provider_lance.spark.sink import LanceSink
from benchmarks.contestants.lance_stream import LanceStream
from benchmarks.harness.ageing import Ageing
from benchmarks.harness.machine import ROOT
from benchmarks.harness.measure import median, percentile, timed
from benchmarks.harness.sheet import Claim, study
from benchmarks.harness.spark import as_launched, session
from benchmarks.vector_rows import DIMENSIONS, SCHEMA, table, vectors

INDEX = "vector_idx"
SUB_VECTORS = 96
PARTITIONS, PROBES = 32, 4
"""Of the kept index and of the rebuilt one: few probes, so that a partition that is wrong shows."""
FILES_A_SECOND = 10
FOUND, RECALL, PARTS = 1.0, 0.95, 100
"""What is claimed: seconds from arrival to found, recall beside a rebuilt index, index parts."""
_QUERIES = 300


def build_index(uri: str) -> None:
    """Train the index on what is there."""
    lance.dataset(uri).create_index(
        "vector",
        "IVF_PQ",
        name=INDEX,
        metric="l2",
        num_partitions=PARTITIONS,
        num_sub_vectors=SUB_VECTORS,
        replace=True,
    )


def search(dataset: lance.LanceDataset, query: np.ndarray, refine: int | None) -> list[int]:
    """Return the ids of the nearest ten that the index alone finds."""
    nearest = {"column": "vector", "q": query, "k": 10, "nprobes": PROBES}
    if refine:
        nearest["refine_factor"] = refine
    found = dataset.to_table(columns=["id", "_distance"], nearest=nearest, fast_search=True)
    ids: list[int] = found["id"].to_pylist()
    return ids


def parts(uri: str) -> tuple[int, int]:
    """Return how many parts the index has, and how many rows are in none."""
    index = read_indices(open_dataset(uri))[INDEX]
    return len(index.parts), index.uncovered


def stored(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------ arrival


def arrival(work: Path, given: Any) -> dict[str, Any]:
    """Stream with Spark; another process writes the source and searches."""
    uri, source = str(work / "arrival.lance"), work / "source"
    lance.write_dataset(table(np.arange(-given.base, 0)), uri)
    build_index(uri)
    source.mkdir()
    spark = session()
    try:
        df = spark.readStream.schema("id BIGINT, vector ARRAY<FLOAT>").parquet(str(source))
        checkpoint = str(work / "checkpoint")
        sink = LanceSink(uri=uri, queryId="vectors", checkpointLocation=checkpoint)
        words = [sys.executable, "-m", "benchmarks.vectors", "--probe", uri, str(source)]
        for name in ("seconds", "rate", "warm_up", "base"):
            words += ["--" + name.replace("_", "-"), str(vars(given)[name])]
        # NumPy's threads wait busily between its small products: for a whole core.
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        with as_launched(spark, checkpoint):
            query = sink.start(df, processingTime=given.trigger)
            ran = subprocess.run(
                words, cwd=ROOT, env=env, capture_output=True, text=True, check=False
            )
            if ran.returncode:
                raise SystemExit(ran.stderr)
            epochs = [each for each in query.recentProgress if each["numInputRows"]]
            query.stop()
        sink.release()
    finally:
        spark.stop()
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    count, uncovered = parts(uri)
    return told | {
        "epochs": sink.totals.epochs,
        "epoch_p50_ms": round(median([each["durationMs"]["triggerExecution"] for each in epochs])),
        "parts_at_end": count,
        "uncovered_at_end": uncovered,
        "stored_bytes": stored(uri),
    }


class Producer:
    """Writes a file of rows every tenth of a second, in a thread, until told to end."""

    def __init__(self, source: Path, rate: int) -> None:
        self.arrived: list[float] = []
        """When each file was there."""
        self.rows = rate // FILES_A_SECOND
        """Of a file."""
        self._source, self._over, self._kept = source, threading.Event(), 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def forget(self, number: int) -> None:
        """Remove the files up to this one; otherwise Spark lists more of them in each epoch."""
        while self._kept <= number:
            self._file(self._kept).unlink()
            self._kept += 1

    def _file(self, number: int, hidden: str = "") -> Path:
        return self._source / f"{hidden}{number:08}.parquet"

    def _run(self) -> None:
        due = time.time()
        while not self._over.wait(max(0.0, due - time.time())):
            number = len(self.arrived)
            hidden = self._file(number, "_")
            first = number * self.rows
            pq.write_table(table(np.arange(first, first + self.rows)), hidden, compression="none")
            hidden.rename(self._file(number))
            self.arrived.append(time.time())
            due += 1 / FILES_A_SECOND


def probe(uri: str, source: Path, given: Any) -> dict[str, Any]:
    """Search for a row of every seventh file until it is found: at any time of a trigger interval.

    Of every second one, the searches alone would take a quarter of a core.
    """
    dataset, producer = lance.dataset(uri), Producer(source, given.rate)
    seconds, counted = given.seconds, given.base + given.warm_up * given.rate
    while dataset.count_rows() < counted:  # the first epochs are a young JVM's
        time.sleep(0.1)
        dataset = lance.dataset(uri)
    waiting: list[int] = []
    delays, looks, most = [], [], 0
    began, asked = time.time(), len(producer.arrived)
    while time.time() < began + seconds or (waiting and time.time() < began + seconds + 60):
        if time.time() < began + seconds and len(producer.arrived) > asked:
            waiting.append(asked)
            asked = len(producer.arrived) + 6
        newest = dataset.latest_version
        new = newest != dataset.version
        dataset = dataset.checkout_version(newest) if new else dataset
        while waiting and new:
            row = waiting[0] * producer.rows
            query, look = vectors(np.array([row]))[0], time.perf_counter()
            if row not in search(dataset, query, None):
                break  # nor are later rows there
            looks.append((time.perf_counter() - look) * 1000)
            delays.append(time.time() - producer.arrived[waiting[0]])
            producer.forget(waiting.pop(0))
        if new:
            most = max(most, len(dataset.describe_indices()[0].segments))
        time.sleep(0.01)
    made, took = len(producer.arrived) * producer.rows, time.time() - producer.arrived[0]
    producer.end()
    return {
        "samples": len(delays),
        "never_found": len(waiting),
        "found_p50_s": round(median(delays), 3),
        "found_p99_s": round(percentile(delays, 0.99), 3),
        "found_max_s": round(max(delays), 3),
        "search_p50_ms": round(median(looks), 1),
        "parts_most": most,
        "vectors_a_second": round(made / took),
    }


# ---------------------------------------------------------------------------------------------- day


def day(work: Path, given: Any, drift: float) -> dict[str, Any]:
    """One day's turns into one table; the angle is how far the distribution turns by its end."""
    folder = work / f"day-{drift:g}"
    folder.mkdir()
    stream = LanceStream(str(folder), SCHEMA)
    uri = stream.uri
    lance.write_dataset(table(np.arange(-given.base, 0)), uri, mode="append")
    build_index(uri)
    stream = LanceStream(str(folder), SCHEMA)
    ageing = Ageing(uri, 86_400 / given.turns)
    options = MaintenanceOptions(older_than=600)
    counts, refreshes, samples = [], [], []
    for turn in range(given.turns):
        ids = np.arange(turn * given.rows, (turn + 1) * given.rows)
        angle = drift * turn / given.turns
        stream.commit(turn, table(ids, angle))
        refreshes.append(timed(lambda: refresh_indices(open_dataset(uri), most_bytes=MERGED_BYTES)))
        counts.append(parts(uri)[0])
        if (turn + 1) % 24 == 0:
            ageing.age(turn + 1)
            maintain(open_dataset(uri), options)
        if (turn + 1) % max(1, given.turns // 4) == 0:
            samples.append(_recalls(folder, uri, ids[-1] + 1, angle))
            print(json.dumps({"drift": drift, **samples[-1]}), file=sys.stderr, flush=True)
    last = samples[-1]
    return {
        "drift_radians": drift,
        "rows": int(last["rows"]),
        "parts_most": max(counts),
        "parts_p50": median(counts),
        "refresh_p50_ms": round(median(refreshes), 1),
        "refresh_p99_ms": round(percentile(refreshes, 0.99), 1),
        "worst_recall_over_rebuilt": min(each["recall_over_rebuilt"] for each in samples),
        "worst_refined_over_rebuilt": min(each["refined_over_rebuilt"] for each in samples),
        "quarters": samples,
    }


def _recalls(folder: Path, uri: str, rows: int, angle: float) -> dict[str, float]:
    """Compare the kept index, one trained anew on a copy, and exact search."""
    copy = str(folder / "copy.lance")
    shutil.copytree(uri, copy)
    rebuilt_s = timed(lambda: build_index(copy)) / 1000
    kept, rebuilt = lance.dataset(uri), lance.dataset(copy)
    everything = kept.to_table(columns=["id", "vector"])
    ids = everything["id"].to_numpy()
    matrix = everything["vector"].combine_chunks().values.to_numpy().reshape(-1, DIMENSIONS)
    norms = (matrix**2).sum(axis=1)
    # Of what comes now, between the rows that are there.
    queries = vectors(np.arange(rows, rows + _QUERIES), angle)
    exact = []
    for query in queries:
        distance = norms - 2 * (matrix @ query)
        exact.append(set(ids[np.argpartition(distance, 10)[:10]].tolist()))
    del everything, matrix

    def recall(dataset: lance.LanceDataset, refine: int | None) -> float:
        hits = [
            len(exact[n] & set(search(dataset, query, refine))) for n, query in enumerate(queries)
        ]
        return sum(hits) / (10 * len(hits))

    took = [timed(lambda q=query: search(kept, q, None)) for query in queries]  # type: ignore[misc]
    plain, refined = recall(kept, None), recall(kept, 10)
    plain_new, refined_new = recall(rebuilt, None), recall(rebuilt, 10)
    count, uncovered = parts(uri)
    shutil.rmtree(copy)
    return {
        "rows": len(ids),
        "parts": count,
        "uncovered": uncovered,
        "recall": plain,
        "recall_rebuilt": plain_new,
        "recall_over_rebuilt": round(plain / plain_new, 3),
        "recall_refined": refined,
        "recall_refined_rebuilt": refined_new,
        "refined_over_rebuilt": round(refined / refined_new, 3),
        "search_p50_ms": round(median(took), 1),
        "rebuild_seconds": round(rebuilt_s, 1),
        "stored_bytes": stored(uri),
        "index_bytes": sum(each.bytes for each in read_indices(open_dataset(uri))[INDEX].parts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("arrival", "day"))
    parser.add_argument("--seconds", type=float, default=120, help="of arrival")
    parser.add_argument("--warm-up", type=float, default=30, help="seconds of arrival before")
    parser.add_argument("--rate", type=int, default=1000, help="vectors a second")
    parser.add_argument("--trigger", default="250 milliseconds")
    parser.add_argument("--turns", type=int, default=288, help="of the day")
    parser.add_argument("--rows", type=int, default=200, help="vectors of a turn")
    parser.add_argument(
        "--base", type=int, default=10_000, help="rows that the index is trained on"
    )
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.disable(logging.INFO)
    if given.probe:
        uri, source = given.probe
        print(json.dumps(probe(uri, Path(source), given)))
        return
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vectors-") as folder:
        if given.only != "day":
            told["arrival"] = arrival(Path(folder), given)
            print(json.dumps(told["arrival"]), file=sys.stderr, flush=True)
        if given.only != "arrival":
            told["days"] = [day(Path(folder), given, angle) for angle in (0.0, np.pi / 2)]
    settings = {name: value for name, value in vars(given).items() if value is not None}
    print(json.dumps(study("vectors", settings, _claims(told), told)))


def _claims(told: dict[str, Any]) -> Iterator[Claim]:
    arrived = told.get("arrival", {})
    for name in ("p50", "p99") if arrived else ():
        text = f"vectors: seconds from arrival to found by the index, {name}"
        yield Claim(text, arrived[f"found_{name}_s"], FOUND)
    for each in told.get("days", ()):
        moves = "that turns by a right angle" if each["drift_radians"] else "that stays"
        recall = f"vectors: recall beside a rebuilt index, distribution {moves}"
        yield Claim(recall, each["worst_recall_over_rebuilt"], RECALL, atleast=True)
        yield Claim(f"vectors: parts of the index, distribution {moves}", each["parts_most"], PARTS)


if __name__ == "__main__":
    main()
