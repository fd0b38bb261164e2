"""E7, rows: a table of millions of rows read as a stream, beside Spark's own source of files.

The same rows are in a Lance dataset, in parquet files and, where its jar can be had, in a table of
Delta made of those files. Each source is streamed into `noop`, which shows what reading costs, and
into our sink. Epochs have the same rows; the first of a stream, which starts Python workers, is not
counted. Delta is shown beside; the claim is against parquet.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.spark.source import register_source
from benchmarks.contestants.delta_spark import convert, delta_session
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import median
from benchmarks.harness.plots import Bars, draw
from benchmarks.harness.progress import progress
from benchmarks.harness.scale import Scale
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import durations, read_files
from benchmarks.harness.turns import by_turns
from benchmarks.shapes import SHAPES, Shape, make_input
from benchmarks.throughput import EPOCHS, FILES, STREAMS

NAME, TITLE = "E7", "Rows per second of the Lance source"

PARQUET, DELTA = "parquet", "delta"
SINKS = ("noop", "lance-stream")
READ = ("narrow", "text", "vectors")
"""The shapes that are read back; a quick run reads the first two."""
VECTOR = pa.list_(pa.float32(), 768)
"""A vector's type in the Lance dataset; Spark and parquet know lists only."""
LIMIT = 0.5
"""What is claimed: at least so many times the rows per second of files in parquet."""


def run(bench: Bench) -> Sheet:
    full = bench.scale is Scale.FULL
    repeats, warm_up = (3, 1) if full else (1, 0)
    sizes = {
        name: SHAPES[name].rows // (1 if full else 32) for name in (READ if full else READ[:2])
    }
    settings = {f"rows_{name}": rows for name, rows in sizes.items()}
    sheet = Sheet(NAME, TITLE, {**settings, "epochs": EPOCHS, "files": FILES, "repeats": repeats})
    rates: dict[str, dict[str, float]] = {}
    spark = bench.spark()
    register_source(spark)
    sessions = {"lance": spark, PARQUET: spark}
    delta = delta_session(spark) if full else None  # no claim is about it
    if delta:
        sessions[DELTA] = delta
    with progress(TITLE, len(sizes) * (repeats + warm_up) * len(sessions) * len(SINKS)) as advance:
        for name, shape in ((name, SHAPES[name]) for name in sizes):
            folder = bench.work / name
            rows = sizes[name]
            make_input(spark, folder / PARQUET, shape, rows * EPOCHS, FILES * EPOCHS)
            _copy(folder / PARQUET, folder / "lance")
            if delta:
                convert(delta, folder / PARQUET, folder / DELTA)
            turns = {
                f"{source} to {sink}": partial(_turn, session, folder, shape, rows, source, sink)
                for source, session in sessions.items()
                for sink in SINKS
            }
            times = by_turns(turns, repeats + warm_up, advance)
            ms = {each: median(found[warm_up:]) for each, found in times.items()}
            rates[name] = {each: rows / value * 1000 for each, value in ms.items()}
            for each, rate in rates[name].items():
                sheet.add("rows_per_second", rate, "rows/s", stream=each, shape=name)
            for sink in SINKS:
                labels = {"sink": sink, "shape": name}
                for other in list(sessions)[1:]:
                    value = ms[f"{other} to {sink}"] / ms[f"lance to {sink}"]
                    sheet.ratio("rows_per_second", of="lance", to=other, value=value, **labels)
                    if other == PARQUET:
                        claim = f"rows/s of the source against files of parquet, {name} to {sink}"
                        sheet.claim(claim, value=value, limit=LIMIT, atleast=True)
            shutil.rmtree(folder)
    bars = Bars(rates, "Rows per second of a large epoch", "rows/s", log_y=True)
    sheet.plots.append(draw(bench.out, "e7-backfill", bars))
    return sheet


def _copy(files: Path, uri: Path) -> None:
    """Write the rows of parquet files into a Lance dataset, vectors as such."""
    found = ds.dataset(files, format="parquet")
    fields = [
        field.with_type(VECTOR) if pa.types.is_list(field.type) else field for field in found.schema
    ]
    schema = pa.schema([each.remove_metadata() for each in fields])
    batches = (batch.cast(schema) for batch in found.to_batches())
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(uri))


def _turn(
    spark: SparkSession,
    folder: Path,
    shape: Shape,
    rows: int,
    source: str,
    sink: str,
    number: int,
) -> float:
    """Stream everything once; return the milliseconds of an epoch."""
    place = folder / f"{source}-{sink}-{number}"
    place.mkdir()
    with STREAMS[sink](_read(spark, folder, shape, rows, source), str(place)) as query:
        query.awaitTermination()
    epochs = durations(query)
    assert len(epochs) == EPOCHS, epochs
    shutil.rmtree(place)
    return median(epochs[1:])


def _read(spark: SparkSession, folder: Path, shape: Shape, rows: int, source: str) -> DataFrame:
    if source == PARQUET:
        return read_files(spark, folder / source, schema=shape.ddl, files_per_epoch=FILES)
    if source == DELTA:
        some = spark.readStream.format(DELTA).option("maxFilesPerTrigger", FILES)
        return some.load(str(folder / source))
    reader = spark.readStream.format("lance").option("maxRowsPerTrigger", rows)
    return reader.load(str(folder / source))
