"""What gathering a small epoch into one fragment costs: `python -m benchmarks.small_epochs`.

For each size the same rows in four partitions are written twice: gathered on the driver (one
fragment), and where they are (one fragment per partition). The default of `smallEpochRows` weighs
the milliseconds against a fragment that every later commit and scan carries along. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import lance
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_lance.spark.collect_fragments import gather
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask
from benchmarks.harness.spark import session
from benchmarks.shapes import SHAPES, make_input

SIZES = (500, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
PARTITIONS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    spark = session()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            source = Path(folder, f"source-{size}")
            make_input(spark, source, SHAPES["narrow"], size, PARTITIONS)
            df = (
                spark.read.schema(SHAPES["narrow"].ddl)
                .parquet(str(source))
                .repartition(PARTITIONS)
                .cache()
            )
            df.count()
            spare_size_checks(df)
            schema = to_arrow_schema(df.schema, timezone="UTC")
            uri = str(Path(folder, f"{size}.lance"))
            dataset = lance.write_dataset(schema.empty_table(), uri)
            times: dict[str, list[float]] = {"gathered": [], "in_place": []}
            for repeat in range(repeats + 2):  # the first two warm up
                for name, limit in (("gathered", 10**9), ("in_place", 0)):
                    task = WriteTask(uri, f"run-{size}", schema, limit, 1_048_576)
                    began = time.perf_counter()
                    messages = df.mapInArrow(task, MESSAGE_SCHEMA).collect()
                    written = gather(messages, task, dataset)
                    if repeat > 1:
                        times[name].append((time.perf_counter() - began) * 1000)
                    assert written.rows == size
            p50 = {name: round(statistics.median(values), 1) for name, values in times.items()}
            ratio = round(p50["gathered"] / p50["in_place"], 2)
            results.append({"rows": size, "p50_ms": p50, "gathered_over_in_place": ratio})
            print(results[-1], file=sys.stderr)
            df.unpersist()
    spark.stop()
    print(json.dumps({"partitions": PARTITIONS, "repeats": repeats, "sizes": results}))


if __name__ == "__main__":
    main()
