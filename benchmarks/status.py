"""What `lance-stream status` takes, beside `import lance` alone: `python -m benchmarks.status`.

Two datasets with the same 2,000 fragments and the same stream, one with 100 versions and one with
10,000. The command is run on both, and `import lance` alone, each in a process of its own, by
turns. Prints one JSON object. What the command adds is told by the difference of medians, what the
versions cost by the ratio of the same look in this process, at a handle opened anew. Opening is
told apart: on a local disk Lance lists the names of all versions for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.diagnostics.status import take_status
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.supervision.driver_reports import (
    new_launch_id,
    report_location,
    write_heartbeat,
)
from airflow_provider_lance.supervision.process import ProcessIdentity

QUERY, CHECKPOINT_ID = "orders", "11111111-aaaa"
EPOCHS = 80
LOOKS = 15


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def build(folder: Path, versions: int, fragments: int) -> str:
    """Make a dataset with so many versions, whose last ones are a live stream's epochs."""
    uri, checkpoint = str(folder / "orders.lance"), folder / "checkpoint"
    table = pa.table({"id": pa.array(range(fragments // EPOCHS), pa.int64())})
    port = LanceDatasetPort(lance.write_dataset(table.slice(0, 0), uri))
    stream = EPOCHS + EPOCHS // 10 + 1  # epochs, folds, the claim
    for number in range(versions - 1 - stream):
        port = port.commit(Configure({"bench.age": str(number)}))
    process = ProcessIdentity.of(os.getpid())
    launch_id = new_launch_id()
    committer = DriverSession(port, QUERY, Checkpoint(str(checkpoint), CHECKPOINT_ID))
    committer.prepare()
    committer.identify(
        Driver(
            "run",
            CHECKPOINT_ID,
            str(checkpoint),
            host=process.host,
            pid=process.pid,
            start=process.start,
            launch_id=launch_id,
        )
    )
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": CHECKPOINT_ID}))
    for epoch_id in range(EPOCHS):
        port = committer.port  # type: ignore[assignment]
        files = write_fragments(table, port.dataset, max_rows_per_file=1)
        meta = json.dumps({"batchTimestampMs": int(time.time() * 1000)})
        (checkpoint / "offsets" / str(epoch_id)).write_text(
            f'v1\n{meta}\n{{"logOffset":{epoch_id}}}'
        )
        rows, size = table.num_rows, table.nbytes
        committer.begin(epoch_id).commit(
            Epoch(epoch_id, OutputMode.APPEND, files, rows, size, utc_now())
        )
        (checkpoint / "commits" / str(epoch_id)).write_text("v1\n{}")
    newest = open_dataset(uri)
    assert (newest.version, len(newest.dataset.get_fragments())) == (versions, fragments)
    beat = {
        "launchId": launch_id,
        "queryId": QUERY,
        "time": utc_now(),
        "state": "running",
        "busySince": utc_now(),
        "driver": {**process.to_json(), "token": 1, "uiAddress": "", "launchedBy": "dag:stream"},
        "sink": {
            "epoch": EPOCHS - 1,
            "version": newest.version - 1,
            "rows": table.num_rows,
            "watermark": EPOCHS - 1,
            "committedAt": utc_now(),
        },
    }
    write_heartbeat(open_files(report_location(str(checkpoint))), launch_id, beat)
    return uri


def command(*words: str) -> Callable[[], object]:
    """Return what runs Python with some words, and refuses a failure."""

    def run() -> None:
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{words} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")

    return run


def milliseconds(times: dict[str, list[float]]) -> dict[str, float]:
    """Return medians, without the first, which warms up."""
    return {name: statistics.median(values[1:]) * 1000 for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        sizes = {"few": arguments.few, "many": arguments.versions}
        uris = {}
        for name, versions in sizes.items():
            (folder / name).mkdir()
            uris[name] = build(folder / name, versions, arguments.fragments)
        status = ("-m", "airflow_provider_lance.cli", "status")
        commands = {
            "import": command("-c", "import lance"),
            **{name: command(*status, uri, QUERY) for name, uri in uris.items()},
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        opens: dict[str, list[float]] = {name: [] for name in uris}
        looks: dict[str, list[float]] = {name: [] for name in uris}
        for _ in range(arguments.repeats):
            for name, run in commands.items():
                seconds[name].append(timed(run))
        for _ in range(LOOKS):
            for name, uri in uris.items():
                began = time.perf_counter()
                port = open_dataset(uri)
                opened = time.perf_counter()
                take_status(port, QUERY)
                opens[name].append(opened - began)
                looks[name].append(time.perf_counter() - opened)
    finally:
        shutil.rmtree(folder)
    p50 = {name: statistics.median(values) for name, values in seconds.items()}
    look, opening = milliseconds(looks), milliseconds(opens)
    print(
        json.dumps(
            {
                "fragments": arguments.fragments,
                "versions": sizes,
                "p50_seconds": {name: round(value, 3) for name, value in p50.items()},
                "status_minus_import_seconds": {
                    name: round(p50[name] - p50["import"], 3) for name in uris
                },
                "open_p50_ms": {name: round(value, 1) for name, value in opening.items()},
                "look_p50_ms": {name: round(value, 1) for name, value in look.items()},
                "look_many_over_few": round(look["many"] / look["few"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
