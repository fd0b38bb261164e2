"""What five expectations cost an epoch: `python -m benchmarks.expectations`.

The same rows are written by the same tasks, by turns: as they are, with five expectations that
nearly all rows meet, and with onRefusedRow=quarantine beside them. One row in a thousand is
dropped, one in a thousand quarantined. Prints one JSON object; the ratios say more than
milliseconds.
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
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_provider_lance.protocol.quarantine import quarantine_schema
from airflow_provider_lance.spark.aside import Origin
from airflow_provider_lance.spark.collect_fragments import gather
from airflow_provider_lance.spark.sieve import Sieve
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.spark.writer import MESSAGE_SCHEMA, WriteTask
from airflow_provider_lance.spec.expectations import Action, Expectation
from benchmarks.harness.spark import session

PARTITIONS = 4
EXPECTATIONS = (
    Expectation("has_id", "id IS NOT NULL", Action.WARN),
    Expectation("small", "amount < 10000000", Action.WARN),
    Expectation("known", "grp IN ('g0', 'g1', 'g2')", Action.WARN),
    Expectation("sampled", "id % 1000 <> 1", Action.DROP),
    Expectation("odd", "id % 1000 <> 2", Action.QUARANTINE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    spark = session()
    columns = ["id", "CONCAT('g', id % 3) AS grp", "id / 2 AS amount", "CAST(id AS STRING) AS name"]
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder, "source"))
        spark.range(0, given.rows, 1, PARTITIONS).selectExpr(*columns).write.parquet(source)
        df = spark.read.parquet(source)
        spare_size_checks(df)
        schema = to_arrow_schema(df.schema, timezone="UTC")
        uri, aside = (str(Path(folder, f"{name}.lance")) for name in ("table", "aside"))
        dataset = lance.write_dataset(schema.empty_table(), uri)
        lance.write_dataset(quarantine_schema().empty_table(), aside)
        origin = Origin(aside, "q", 0, None, "2026-01-01T00:00:00.000+00:00", "append")
        sieves = {
            "without": Sieve(),
            "five": Sieve(EXPECTATIONS, origin=origin),
            "five_and_refused": Sieve(EXPECTATIONS, keeps_refused=True, origin=origin),
        }
        times: dict[str, list[float]] = {name: [] for name in sieves}
        for repeat in range(given.repeats + 2):  # the first two warm up
            for name, sieve in sieves.items():
                task = WriteTask(uri, "run", schema, 0, 1_048_576, sieve=sieve)
                conditions = [F.expr(text).alias(flag) for flag, text in sieve.columns]
                began = time.perf_counter()
                messages = df.select("*", *conditions).mapInArrow(task, MESSAGE_SCHEMA).collect()
                written = gather(messages, task, dataset)
                if repeat > 1:
                    times[name].append((time.perf_counter() - began) * 1000)
                taken = written.checks.dropped + written.checks.quarantined
                assert written.rows + taken == given.rows, written.checks
    spark.stop()
    p50 = {name: round(statistics.median(values), 1) for name, values in times.items()}
    ratios = {name: round(value / p50["without"], 3) for name, value in p50.items()}
    print(json.dumps({"rows": given.rows, "repeats": given.repeats, "p50_ms": p50, "over": ratios}))
    print(f"{len(EXPECTATIONS)} expectations, {PARTITIONS} partitions", file=sys.stderr)


if __name__ == "__main__":
    main()
