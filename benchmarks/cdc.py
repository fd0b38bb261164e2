"""E8: changes of keys, in the order of their sequences, beside the plain upsert and Delta's MERGE.

Each contestant streams the same files of 10,000 changes (updates, a tenth deletes, a twentieth new
keys) into a copy of the same table, which has an index on its key; the first epochs of a stream are
not counted. Delta has no order of its own: its MERGE, by `foreachBatch`, compares the sequences. A
long stream with scheduled maintenance beside it shows whether an epoch stays what it was.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.maintenance.options import MaintenanceOptions, Step
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import open_dataset
from benchmarks.contestants import lance_stream
from benchmarks.contestants.delta_spark import delta_session
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import median
from benchmarks.harness.plots import Bars, Lines, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.scale import Scale
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import durations, read_files
from benchmarks.harness.turns import by_turns

NAME, TITLE = "E8", "Changes in the order of their sequences"

CHANGES = 10_000
WARM = 3
"""Epochs of each stream that are not counted."""
DDL = "id BIGINT, seq BIGINT, value DOUBLE, op STRING"
SEQUENCED, PLAIN, DELTA = "sequenceBy", "upsert", "delta-merge"
LIMIT, FLAT = 2.0, 1.25
UPKEEP = (Step.COMPACT, Step.INDEX)
UPSERT = {
    "outputMode": "update",
    "mergeKeys": "id",
    "deleteWhen": "op = 'd'",
    "exceptColumns": "op",
}
OPTIONS: dict[str, dict[str, Any]] = {
    SEQUENCED: UPSERT | {"sequenceBy": "seq"},
    PLAIN: UPSERT,
}


def run(bench: Bench) -> Sheet:
    full = bench.scale is Scale.FULL
    sizes = bench.scale.pick(quick=(10_000, 100_000), full=(100_000, 10_000_000))
    epochs, repeats = bench.scale.pick(quick=(WARM + 4, 1), full=(WARM + 15, 3))
    long = bench.scale.pick(quick=40, full=1_000)
    settings = {"changes": CHANGES, "rows": sizes, "epochs": epochs, "long": long}
    sheet = Sheet(NAME, TITLE, settings)
    spark = bench.spark()
    delta = delta_session(spark) if full else None  # no claim is about it
    if delta:  # its default of 200 is meant for clusters
        delta.conf.set("spark.sql.shuffle.partitions", "4")
    names = [SEQUENCED, PLAIN, *([DELTA] if delta else [])]
    shown: dict[str, dict[str, float]] = {}
    with progress(TITLE, len(sizes) * repeats * len(names) + 1) as advance:
        for size in sizes:
            folder = bench.work / str(size)
            _changes(folder / "changes", size, epochs)
            _table(folder / "base", size)
            if delta:
                rows = delta.read.parquet(str(folder / "base.parquet"))
                vectors = {"delta.enableDeletionVectors": "true"}
                rows.write.format("delta").options(**vectors).save(str(folder / "delta"))
            turns = {
                name: partial(_turn, delta if name == DELTA and delta else spark, folder, name)
                for name in names
            }
            ms = {name: median(each) for name, each in by_turns(turns, repeats, advance).items()}
            shown[f"{size:,} rows"] = {name: CHANGES / each * 1000 for name, each in ms.items()}
            for name, each in ms.items():
                sheet.add("epoch_p50", each, "ms", contestant=name, rows=size)
                sheet.add(
                    "rows_per_second", CHANGES / each * 1000, "rows/s", contestant=name, rows=size
                )
            for name in names[1:]:
                value = ms[SEQUENCED] / ms[name]
                sheet.ratio("epoch_p50", of=SEQUENCED, to=name, value=value, rows=size)
            value = ms[SEQUENCED] / ms[PLAIN]
            sheet.claim(f"epoch with sequenceBy, {size:,} rows", value=value, limit=LIMIT)
            shutil.rmtree(folder)
        lines = _long(spark, bench.work / "long", sizes[0], long, full, sheet)
        advance(f"{long} epochs")
    bars = Bars(shown, f"Rows per second, epochs of {CHANGES:,} changes", "rows/s", log_y=True)
    sheet.plots.append(draw(bench.out, "e8-cdc", bars, lines))
    return sheet


def _long(
    spark: SparkSession, folder: Path, size: int, epochs: int, full: bool, sheet: Sheet
) -> Lines:
    """Run one long stream with maintenance, and compare its last tenth with an early one."""
    _changes(folder / "changes", size, epochs)
    _table(folder / "base", size)
    every = 50 if full else 10
    ms = _stream(spark, folder, SEQUENCED, folder / "run", maintained_every=every)
    tenth = epochs // 10
    early, late = median(ms[tenth : 2 * tenth]), median(ms[-tenth:])
    sheet.ratio("epoch_p50", of=f"last {tenth}", to=f"second {tenth}", value=late / early)
    sheet.claim(f"epoch after {epochs:,} epochs with maintenance", value=late / early, limit=FLAT)
    shutil.rmtree(folder)
    points = [(n, median(ms[n : n + tenth])) for n in range(0, epochs - tenth + 1, tenth)]
    return Lines({SEQUENCED: points}, "An epoch over time", "epochs", "ms")


# --------------------------------------------------------------------------------------- one stream


def _turn(spark: SparkSession, folder: Path, name: str, number: int) -> float:
    place = folder / f"{name}-{number}"
    found = median(_stream(spark, folder, name, place)[WARM:])
    shutil.rmtree(place)
    return found


def _stream(
    spark: SparkSession, folder: Path, name: str, place: Path, *, maintained_every: int = 0
) -> list[float]:
    """Stream all changes into a copy of the table; return each epoch's milliseconds.

    :param maintained_every: the epochs after which the table and its tombstones are maintained.
    """
    df = read_files(spark, folder / "changes", schema=DDL)
    place.mkdir()
    running: AbstractContextManager[StreamingQuery]
    if name == DELTA:
        shutil.copytree(folder / "delta", place / "delta")
        running = _merge(df, place)
    else:
        shutil.copytree(lance_uri(str(folder / "base")), lance_uri(str(place)))
        running = lance_stream.stream(df, str(place), options=OPTIONS[name])
    with running as query:
        done = 0
        while not query.awaitTermination(1):
            seen = query.lastProgress
            if maintained_every and seen and seen.batchId - done >= maintained_every:
                maintain(open_dataset(lance_uri(str(place))), MaintenanceOptions(steps=UPKEEP))
                done = seen.batchId
    return durations(query)


@contextmanager
def _merge(df: DataFrame, place: Path) -> Any:
    def batch(rows: DataFrame, epoch_id: int) -> None:
        rows.createOrReplaceTempView("changes")
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{place / 'delta'}` t USING changes s ON t.id = s.id "
            "WHEN MATCHED AND s.seq > t.seq AND s.op = 'd' THEN DELETE "
            "WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET seq = s.seq, value = s.value "
            "WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT (id, seq, value) "
            "VALUES (s.id, s.seq, s.value)"
        )

    query = (
        df.writeStream.option("checkpointLocation", str(place / "checkpoint"))
        .foreachBatch(batch)
        .trigger(availableNow=True)
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


# ------------------------------------------------------------------------------------------- input


def _table(place: Path, size: int) -> None:
    """Write the table, with an index on its key, and the same rows as parquet."""
    place.mkdir(parents=True)
    ids = np.arange(size)
    nothing = np.zeros(size, np.int64)
    rows = pa.table({"id": ids, "seq": nothing, "value": ids / 2})
    made = lance.write_dataset(rows, lance_uri(str(place)))
    made.create_scalar_index("id", "BTREE")
    pq.write_table(rows, place.with_suffix(".parquet"))


def _changes(folder: Path, size: int, epochs: int) -> None:
    """Write a file for each epoch; its keys are different, and a twentieth of them new."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(7)
    began = int(time.time()) - 100_000
    for epoch in range(epochs):
        known = draw.choice(size, CHANGES * 19 // 20, replace=False)
        fresh = size + epoch * CHANGES + np.arange(CHANGES // 20)
        ids = np.concatenate([known, fresh])
        rows = pa.table(
            {
                "id": ids,
                "seq": np.full(CHANGES, epoch + 1),
                "value": ids / 3,
                "op": np.where(draw.random(CHANGES) < 0.1, "d", "u"),
            }
        )
        path = folder / f"{epoch:06}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (began + epoch, began + epoch))
