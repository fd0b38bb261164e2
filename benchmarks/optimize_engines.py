"""Compaction in one process and on executors: `python -m benchmarks.optimize_engines [fragments]`.

Both engines compact a copy of the same dataset, in turn: the one in this process, the other as a
Spark job on a standalone cluster of two workers with one core each, on this machine. `seconds` is
what a task waits for (the job's start included), `job_seconds` what the report says of the run
itself. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from airflow_provider_lance import shipping
from airflow_provider_lance.maintenance.options import (
    MaintenanceOptions,
    MaintenanceSpec,
)
from airflow_provider_lance.maintenance.run import maintain
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.cluster import Cluster, standalone_cluster

VECTOR = 64


def fill(uri: str, fragments: int, rows: int) -> None:
    """Write a dataset of small fragments in one commit."""
    numbers = np.random.default_rng(7)
    first = lance.write_dataset(batch(numbers, 0, rows), uri)
    made = [each.metadata for each in first.get_fragments()]
    for number in range(1, fragments):
        made += lance.fragment.write_fragments(batch(numbers, number * rows, rows), uri)
    overwrite = lance.LanceOperation.Overwrite(first.schema, made)
    lance.LanceDataset.commit(uri, overwrite, read_version=first.version)


def batch(numbers: np.random.Generator, first: int, rows: int) -> pa.Table:
    vectors = pa.array(numbers.random(rows * VECTOR, dtype=np.float32))
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "label": pa.array([f"label-{n % 1000}" for n in range(first, first + rows)]),
            "value": pa.array(numbers.random(rows)),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, VECTOR),
        }
    )


def local(spec: MaintenanceSpec) -> dict[str, Any]:
    return maintain(open_dataset(spec.uri), spec.options).to_json()


def on_cluster(spec: MaintenanceSpec, cluster: Cluster, folder: Path) -> dict[str, Any]:
    file, report = folder / "spec.json", folder / "report.json"
    file.write_text(spec.dumps())
    words = (str(file), "--remove", "--report", str(report))
    code = shipping.build_zip(folder)
    status, output = cluster.submit(shipping.application_path("maintain"), code, *words)
    if status:
        raise SystemExit(output)
    return json.loads(report.read_text())


def shape(uri: str) -> list[int]:
    return [each.count_rows() for each in lance.dataset(uri).get_fragments()]


def executors(cluster: Cluster) -> dict[str, int]:
    """Return how many tasks each executor ran."""
    ends = (each for each in cluster.events() if each["Event"] == "SparkListenerTaskEnd")
    return dict(Counter(f"executor {each['Task Info']['Executor ID']}" for each in ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fragments", type=int, nargs="?", default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--target-rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    options = MaintenanceOptions.parse(
        {"compaction": {"target_rows_per_fragment": given.target_rows}}
    )
    runs: dict[str, list[dict[str, float]]] = {"local": [], "spark": []}
    shapes: list[list[int]] = []
    with tempfile.TemporaryDirectory() as name, standalone_cluster(Path(name, "c")) as cluster:
        folder = Path(name)
        source = str(folder / "source.lance")
        fill(source, given.fragments, given.rows)
        size = lance.dataset(source)
        for _ in range(given.repeats):
            for engine, seen in runs.items():
                uri = shutil.copytree(source, str(folder / f"{engine}.lance"))
                spec = MaintenanceSpec(uri=uri, options=options)
                began = time.perf_counter()
                report = local(spec) if engine == "local" else on_cluster(spec, cluster, folder)
                seconds = time.perf_counter() - began
                seen.append({"seconds": seconds, "job_seconds": report["seconds"]})
                shapes.append(shape(uri))
                shutil.rmtree(uri)
                print(f"{engine} {seen[-1]}", file=sys.stderr)
        tasks = executors(cluster)
        bytes_ = sum(
            f.file_size_bytes or 0 for each in size.get_fragments() for f in each.data_files()
        )
    print(
        json.dumps(
            {
                "fragments": given.fragments,
                "rows": given.fragments * given.rows,
                "bytes": bytes_,
                "fragments_after": len(shapes[0]),
                "same_fragments": all(each == shapes[0] for each in shapes),
                "cores": os.cpu_count(),
                "repeats": given.repeats,
                "tasks_by_executor": tasks,
                "median_seconds": {
                    engine: {
                        what: round(statistics.median(run[what] for run in each), 2)
                        for what in ("seconds", "job_seconds")
                    }
                    for engine, each in runs.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
