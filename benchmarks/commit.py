"""The protocol's commit beside a bare Lance append, in one run: `python -m benchmarks.commit`.

Both write the same table into a dataset of their own, turn by turn, from a live handle. With
`--versions` both datasets get so many versions first, which add no fragment: what is left of the
difference is what history costs. Prints one JSON object; ratios are of medians, so that the
machine's speed drops out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.streaming.checkpoint import Checkpoint
from airflow_provider_lance.streaming.committer import Committer
from airflow_provider_lance.streaming.dataset import LanceDatasetPort
from airflow_provider_lance.streaming.epoch import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.streaming.port import Configure
from airflow_provider_lance.streaming.view import Policy


def timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def aged(uri: str, table: pa.Table, versions: int) -> LanceDatasetPort:
    """Make an empty dataset with a history of config changes."""
    port = LanceDatasetPort(lance.write_dataset(table.slice(0, 0), uri))
    for number in range(versions):
        port = port.commit(Configure({"bench.age": str(number)}))
    return port


def bare_append(port: LanceDatasetPort, table: pa.Table) -> Callable[[], None]:
    handle = port.dataset

    def epoch() -> None:
        nonlocal handle
        fragments = write_fragments(table, handle)
        handle = lance.LanceDataset.commit(
            handle,
            lance.LanceOperation.Append(fragments),
            read_version=handle.version,
        )

    return epoch


def protocol(
    port: LanceDatasetPort, table: pa.Table, policy: Policy
) -> tuple[Callable[[], None], Committer]:
    committer = Committer(port, "bench", Checkpoint("/checkpoint"), policy)
    committer.prepare()
    committer.identify(Driver("run", "checkpoint", "/checkpoint"))
    number = 0

    def epoch() -> None:
        nonlocal number
        started = utc_now()
        dataset = committer.port.dataset  # type: ignore[attr-defined]
        fragments = write_fragments(table, dataset)
        committer.commit(
            Epoch(
                epoch_id=number,
                mode=OutputMode.APPEND,
                fragments=fragments,
                rows=table.num_rows,
                bytes=table.nbytes,
                started_at=started,
            )
        )
        number += 1

    return epoch, committer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--versions", type=int, default=0)
    arguments = parser.parse_args()
    ids = pa.array(range(arguments.rows))
    table = pa.table({"id": ids, "value": pa.array([0.5] * arguments.rows)})
    with tempfile.TemporaryDirectory() as folder:
        ports = [aged(str(Path(folder, n)), table, arguments.versions) for n in ("bare", "ours")]
        bare = bare_append(ports[0], table)
        ours, committer = protocol(ports[1], table, Policy())
        times: dict[str, list[float]] = {"bare": [], "protocol": []}
        for _ in range(arguments.epochs):
            times["bare"].append(timed(bare))
            times["protocol"].append(timed(ours))
        updates = committer.manifest_updates
    last = {name: statistics.median(values[-200:]) for name, values in times.items()}
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(
        json.dumps(
            {
                "epochs": arguments.epochs,
                "rows": arguments.rows,
                "versions_before": arguments.versions,
                "p50_ms": {name: round(value, 3) for name, value in medians.items()},
                "ratio_p50": round(medians["protocol"] / medians["bare"], 3),
                "ratio_p50_last_200": round(last["protocol"] / last["bare"], 3),
                "manifest_updates_per_epoch": round(updates / arguments.epochs, 4),
                "versions_at_end": committer.port.version,
            }
        )
    )


if __name__ == "__main__":
    main()
