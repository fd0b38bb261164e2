"""E5, rows: large epochs by the shape of their rows, beside Spark's own sinks.

Each contestant streams the same files into a fresh place, by turns. A stream's first epoch, which
tells our writer how long rows are, is compared with the others' first. In the full run three jobs
over the same files tell where the sink's time goes. Each does one step more: Spark reads, rows
become Arrow in a Python worker, Lance writes them. An epoch's fragments are committed again, which
tells the commit's share. A fourth job writes without the look at every value: what that costs is a
ratio of the two.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_lance.spark.epoch_writer import EpochWriter
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask
from airflow_provider_lance.spec.sink_options import SinkOptions
from benchmarks.contestants import lance_stream, spark_sinks
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.contestants.streams import Stream
from benchmarks.harness import plots
from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import median, timed
from benchmarks.harness.progress import progress
from benchmarks.harness.scale import Scale
from benchmarks.harness.sheet import Sheet
from benchmarks.harness.spark import durations, read_files
from benchmarks.harness.turns import by_turns
from benchmarks.shapes import SHAPES, Shape, make_input

NAME, TITLE = "E5", "Rows per second of large epochs"

EPOCHS, FILES = 3, 4
"""Of a stream, and of an epoch."""


STREAMS: Mapping[str, Stream] = {
    "lance-stream": lance_stream.stream,
    "parquet": spark_sinks.parquet,
    "noop": spark_sinks.noop,
}


def run(bench: Bench) -> Sheet:
    full = bench.scale is Scale.FULL
    repeats = 4 if full else 1
    sizes = {name: shape.rows // (1 if full else 16) for name, shape in SHAPES.items()}
    settings = {f"rows_{name}": rows for name, rows in sizes.items()}
    sheet = Sheet(NAME, TITLE, {**settings, "epochs": EPOCHS, "files": FILES, "repeats": repeats})
    # A quick run warms up what all shapes share only.
    warm_ups = dict.fromkeys(SHAPES if full else list(SHAPES)[:1], 1)
    turns = len(SHAPES) * repeats + len(warm_ups)
    steps = turns * (len(STREAMS) + full * (len(JOBS) + 1))
    beside: dict[str, dict[str, float]] = {"first epoch of a run": {}, "later epochs": {}}
    with progress(TITLE, steps) as advance:
        for name, shape in SHAPES.items():
            folder = bench.work / name
            make_input(
                bench.spark(), folder / "source", shape, sizes[name] * EPOCHS, FILES * EPOCHS
            )
            warm_up = warm_ups.get(name, 0)
            seen = _streamed(bench.spark(), folder, shape, repeats, warm_up, advance)
            rates = {each: sizes[name] / ms * 1000 for each, ms in seen.epochs.items()}
            _tell(sheet, name, shape, seen, rates)
            if full:
                parts, checked = _parts(bench.spark(), folder, shape, repeats, advance)
                sheet.ratio("write", of="checked", to="unchecked", value=checked, shape=name)
                parts["commit"] = seen.commit
                total = sum(parts.values())
                for part, ms in parts.items():
                    sheet.add("share_of_epoch", ms / total, "share", part=part, shape=name)
            for which, epochs in zip(beside, (seen.first, seen.epochs), strict=True):
                beside[which][name] = epochs["parquet"] / epochs["lance-stream"]
            shutil.rmtree(folder)
    sheet.plots.append(
        plots.draw(
            bench.out,
            "e5-throughput",
            *(plots.Bars(each, which, "multiples of parquet's") for which, each in beside.items()),
            title="Rows per second of large epochs, beside Spark's parquet sink",
        )
    )
    return sheet


@dataclass(frozen=True)
class _Seen:
    """Milliseconds of each contestant's epochs, and of our commit in one.

    ``spread`` is the slowest turn's median over the fastest one's.
    """

    first: dict[str, float]
    epochs: dict[str, float]
    spread: dict[str, float]
    commit: float


def _streamed(
    spark: SparkSession,
    folder: Path,
    shape: Shape,
    repeats: int,
    warm_up: int,
    advance: Callable[[str], None],
) -> _Seen:
    commits: list[float] = []

    def turn(name: str, number: int) -> tuple[float, float]:
        place = folder / f"{name}-{number}"
        place.mkdir()
        df = read_files(spark, folder / "source", schema=shape.ddl, files_per_epoch=FILES)
        with STREAMS[name](df, str(place)) as query:
            query.awaitTermination()
        epochs = durations(query)
        assert len(epochs) == EPOCHS
        if name == "lance-stream":
            commits.append(_commit_ms(place))
        shutil.rmtree(place)
        return epochs[0], median(epochs[1:])

    turns = by_turns({name: partial(turn, name) for name in STREAMS}, repeats + warm_up, advance)
    counted = {name: list(zip(*each[warm_up:], strict=True)) for name, each in turns.items()}
    return _Seen(
        first={name: median(first) for name, (first, _) in counted.items()},
        epochs={name: median(later) for name, (_, later) in counted.items()},
        spread={name: max(later) / min(later) for name, (_, later) in counted.items()},
        commit=median(commits[warm_up:]),
    )


def _commit_ms(place: Path) -> float:
    """Commit an epoch's fragments once more, into a dataset like the one that they are in."""
    source = lance.dataset(lance_uri(str(place)))
    copy = lance.write_dataset(source.schema.empty_table(), str(place / "copy.lance"))
    found = [each.metadata for each in source.get_fragments()]
    fragments = found[: len(found) // EPOCHS]
    append = lance.LanceOperation.Append(fragments)
    return timed(lambda: lance.LanceDataset.commit(copy, append, read_version=copy.version))


# What one job does, and so what it takes more than the one before it.
JOBS = ("spark", "conversion", "write")


def _parts(
    spark: SparkSession, folder: Path, shape: Shape, repeats: int, advance: Callable[[str], None]
) -> tuple[dict[str, float], float]:
    """Return the milliseconds that each step adds, and a checked write over an unchecked one."""
    files = sorted(str(each) for each in (folder / "source").glob("*.parquet"))[:FILES]
    # A session of its own, for the writer sets how many rows its batches hold.
    df = spark.newSession().read.schema(shape.ddl).parquet(*files)
    spare_size_checks(df)
    schema = to_arrow_schema(df.schema, timezone="UTC")
    uri = str(folder / "parts.lance")
    dataset = lance.write_dataset(schema.empty_table(), uri)
    task = WriteTask(
        uri=uri,
        run_id="parts",
        schema=schema,
        small_epoch_rows=SinkOptions.small_epoch_rows,
        target_rows_per_fragment=SinkOptions.target_rows_per_fragment,
    )
    writer = EpochWriter(task)
    for _ in range(2):  # the first tells how long rows are
        writer.write(df, dataset)
    jobs: dict[str, Callable[[], object]] = {
        "spark": lambda: df.write.format("noop").mode("overwrite").save(),
        "conversion": lambda: df.mapInArrow(_count, "rows LONG").collect(),
        "write": lambda: df.mapInArrow(task, MESSAGE_SCHEMA).collect(),
    }
    assert tuple(jobs) == JOBS
    unchecked = _Unchecked(**vars(task))
    jobs["unchecked"] = lambda: df.mapInArrow(unchecked, MESSAGE_SCHEMA).collect()
    workers = {name: (lambda _, job=job: timed(job)) for name, job in jobs.items()}
    *times, without = [
        median(each[1:]) for each in by_turns(workers, repeats + 1, advance).values()
    ]
    added = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    parts = {name: max(0.0, ms) for name, ms in zip(JOBS, added, strict=True)}
    return parts, times[-1] / without


class _Unchecked(WriteTask):
    """Writes rows as they come: text, nulls and overflow are left to whoever reads them."""

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        return table.select(self.schema.names).cast(self.schema), None


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], ["rows"])


def _tell(
    sheet: Sheet,
    name: str,
    shape: Shape,
    seen: _Seen,
    rates: Mapping[str, float],
) -> None:
    for epochs, which in ((seen.epochs, "later epochs"), (seen.first, "first epoch")):
        for other in ("parquet", "noop"):
            ratio = epochs[other] / epochs["lance-stream"]
            sheet.ratio(
                "rows_per_second",
                of="lance-stream",
                to=other,
                value=ratio,
                shape=name,
                epochs=which,
            )
        sheet.claim(
            f"rows/s against the parquet sink: {shape.of}, {name}, {which}",
            value=epochs["parquet"] / epochs["lance-stream"],
            limit=shape.limit,
            atleast=True,
        )
    for contestant, rate in rates.items():
        sheet.add("rows_per_second", rate, "rows/s", contestant=contestant, shape=name)
        spread = seen.spread[contestant]
        sheet.add("slowest_over_fastest", spread, "times", contestant=contestant, shape=name)
