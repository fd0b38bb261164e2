"""Rows per second beside Spark's own sinks, in one run: `python -m benchmarks.throughput`.

The same files are streamed by the Lance sink, by Spark's parquet file sink and by its noop sink,
turn by turn, each into a fresh place with a fresh checkpoint. Prints one JSON object; ratios are
of medians, so that the machine's speed drops out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.spark.sink import LanceSink

DDL = "id BIGINT, value DOUBLE, label STRING, at TIMESTAMP"


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def make_input(spark: SparkSession, folder: str, rows: int, files: int) -> None:
    frame = spark.range(rows, numPartitions=files).selectExpr(
        "id",
        "rand(7) AS value",
        "concat('label-', id % 1000) AS label",
        "timestamp_seconds(1700000000 + id % 86400) AS at",
    )
    frame.write.parquet(folder)


def to_lance(df: DataFrame, place: str) -> StreamingQuery:
    sink = LanceSink(
        uri=f"{place}/t.lance",
        queryId="bench",
        checkpointLocation=f"{place}/checkpoint",
        createIfMissing=True,
    )
    return sink.start(df, availableNow=True)


def to_spark(format_: str) -> Callable[[DataFrame, str], StreamingQuery]:
    def start(df: DataFrame, place: str) -> StreamingQuery:
        writer = df.writeStream.format(format_).option("checkpointLocation", f"{place}/checkpoint")
        if format_ == "parquet":
            writer = writer.option("path", f"{place}/out")
        return writer.trigger(availableNow=True).start()

    return start


SINKS = {"lance": to_lance, "parquet": to_spark("parquet"), "noop": to_spark("noop")}


def epoch_ms(query: StreamingQuery) -> list[float]:
    return [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--files-per-epoch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    spark = session()
    times: dict[str, list[float]] = {name: [] for name in SINKS}
    epochs: dict[str, list[float]] = {name: [] for name in SINKS}
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source"
        make_input(spark, source, arguments.rows, arguments.files)
        for repeat in range(arguments.repeats + 1):  # the first one warms up
            for name, start in SINKS.items():
                place = Path(folder, f"{name}-{repeat}")
                place.mkdir()
                df = (
                    spark.readStream.schema(DDL)
                    .option("maxFilesPerTrigger", arguments.files_per_epoch)
                    .parquet(source)
                )
                began = time.perf_counter()
                query = start(df, str(place))
                query.awaitTermination()
                if repeat:
                    times[name].append(time.perf_counter() - began)
                    epochs[name] += epoch_ms(query)
                print(f"{name} {repeat}/{arguments.repeats}", file=sys.stderr)
    spark.stop()
    seconds = {name: statistics.median(values) for name, values in times.items()}
    p50 = {name: statistics.median(values) for name, values in epochs.items()}
    print(
        json.dumps(
            {
                "rows": arguments.rows,
                "files": arguments.files,
                "files_per_epoch": arguments.files_per_epoch,
                "repeats": arguments.repeats,
                "rows_per_second": {
                    name: round(arguments.rows / value) for name, value in seconds.items()
                },
                "lance_over_parquet": round(seconds["parquet"] / seconds["lance"], 2),
                "epoch_p50_ms": p50,
                "epoch_p50_lance_over_noop": round(p50["lance"] / p50["noop"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
