"""A driver's restart without Spark, up to its first commit.

Belongs to :mod:`benchmarks.restart`, and imports little: it runs in interpreters of its own, too.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pyarrow as pa
from lance.fragment import write_fragments

from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession

WHOLE = "restart"
PARTS = ("open", "prepare", "claim", "epoch")


def first_commit(
    uri: str, checkpoint: str, query_id: str, epoch_id: int, rows: pa.Table
) -> dict[str, float]:
    """Start as a driver does and commit one epoch; return milliseconds by part, and the sum.

    ``prepare`` reads checkpoint and watermark, ``claim`` is all until nothing of an older driver
    can land, ``epoch`` writes and commits. No handle and no session is there before.
    """
    times = [time.perf_counter()]
    port = open_dataset(uri)
    times.append(time.perf_counter())
    found = read_checkpoint(checkpoint, open_files(checkpoint))
    committer = DriverSession(port, query_id, found)
    committer.prepare()
    times.append(time.perf_counter())
    driver = Driver("restart", found.id or "", checkpoint)
    committer.take_over(driver)
    committer.identify(driver)
    if committer.owner is None:
        committer.claim(epoch_id)
    times.append(time.perf_counter())
    started = utc_now()
    held: Any = committer.port
    files = write_fragments(rows, held.dataset)
    committer.begin(epoch_id).commit(
        Epoch(epoch_id, OutputMode.APPEND, files, rows.num_rows, rows.nbytes, started)
    )
    times.append(time.perf_counter())
    taken = [(later - earlier) * 1000 for earlier, later in pairwise(times)]
    return {WHOLE: sum(taken), **dict(zip(PARTS, taken, strict=True))}


def main(uri: str, checkpoint: str, query_id: str, epoch_id: str) -> None:
    """Do it once; prints the milliseconds as JSON, imports not counted."""
    rows = pa.table({"id": pa.array(range(500)), "value": pa.array([0.5] * 500)})
    print(json.dumps(first_commit(uri, checkpoint, query_id, int(epoch_id), rows)))
