"""Datasets that need maintenance, and a run of it with somebody who gets in the way.

As a program, `maintenance.py FOLDER MODE SEED`, it is a driver that may be killed at any moment: it
does what Spark does around the sink, until there is a file `stop`. With a file `upkeep` it also
looks after the dataset, as the sink does by default, only sooner.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.maintenance import upkeep
from airflow_provider_lance.maintenance.compaction import Execute, execute_here
from airflow_provider_lance.maintenance.dataset_metrics import list_versions
from airflow_provider_lance.maintenance.options import MaintenanceOptions
from airflow_provider_lance.maintenance.run import Report, maintain
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.spark.autocompact import AutoCompaction
from tests.support.drivers import QUERY, QUICK, SCHEMA, SparkLike, epoch_rows, lance_world

PER_FRAGMENT = 10
HUNDRED = {"target_rows_per_fragment": 100}
"""Ten fragments of :func:`make` become one."""


def rows(first: int, count: int) -> pa.Table:
    """Return rows with ids from ``first``."""
    ids = range(first, first + count)
    return pa.table({"id": ids, "epoch": [0] * count}, schema=SCHEMA)


def make(folder: Path, fragments: int, *, name: str = "t.lance", **kwargs: Any) -> str:
    """Make a dataset of small fragments, each in a version of its own; return its URI."""
    uri = str(folder / name)
    for number in range(fragments):
        mode = "append" if number else "create"
        table = rows(number * PER_FRAGMENT, PER_FRAGMENT)
        lance.write_dataset(table, uri, mode=mode, **kwargs)
    return uri


def append(uri: str, first: int, count: int = PER_FRAGMENT) -> None:
    """Add one small fragment."""
    lance.write_dataset(rows(first, count), uri, mode="append")


def ids(uri: str) -> Counter[int]:
    """Return the ids that a reader who knows nothing finds."""
    return Counter(lance.dataset(uri).to_table().column("id").to_pylist())


def sizes(uri: str) -> list[int]:
    """Return the rows of each fragment, in order."""
    return [fragment.count_rows() for fragment in lance.dataset(uri).get_fragments()]


def numbers(uri: str) -> list[int]:
    """Return the versions that are there."""
    return [version.number for version in list_versions(open_dataset(uri))]


def files(uri: str) -> dict[str, int]:
    """Return every file of a dataset with its size."""
    found = (path for path in Path(uri).rglob("*") if path.is_file())
    return {str(path.relative_to(uri)): path.stat().st_size for path in found}


def manifest(uri: str, version: int) -> Path:
    """Return a version's manifest, in whichever scheme it is named."""
    folder = Path(uri, "_versions")
    names = (f"{2**64 - 1 - version:020}.manifest", f"{version}.manifest")
    return next(folder / name for name in names if (folder / name).exists())


def age(uri: str, seconds: float, versions: Sequence[int] | None = None) -> None:
    """Make versions, by default all, as old for the store's clock."""
    then = time.time() - seconds
    for version in numbers(uri) if versions is None else versions:
        os.utime(manifest(uri, version), (then, then))


def options(**given: Any) -> MaintenanceOptions:
    """Read options by the names of the job's JSON."""
    return MaintenanceOptions.parse(given)


def run(uri: str, *, execute: Execute = execute_here, **given: Any) -> Report:
    """Do one maintenance run."""
    return maintain(open_dataset(uri), options(**given), execute=execute)


def compacting(uri: str, *, execute: Execute = execute_here, **given: Any) -> Report:
    """Do one run that only compacts, to fragments of a hundred rows."""
    return run(uri, execute=execute, **{"steps": ["compact"], "compaction": HUNDRED, **given})


def meanwhile(*happenings: Callable[[], Any]) -> Execute:
    """Execute tasks here, and let one thing happen after each round of them."""
    left = list(happenings)

    def execute(port: LanceDatasetPort, tasks: Sequence[Any]) -> Iterator[Any]:
        results = list(execute_here(port, tasks))
        if left:
            left.pop(0)()
        yield from results

    return execute


def stream(
    uri: str,
    *,
    mode: OutputMode = OutputMode.APPEND,
    query_id: str = QUERY,
    log: dict[str, int] | None = None,
    every: int = 10,
    **kwargs: Any,
) -> SparkLike:
    """Start a driver on a dataset; it owns its query from its first epoch on."""
    policy = kwargs.pop("policy", CommitPolicy(watermark_every=every, backoff=QUICK))
    known = {} if log is None else log
    return SparkLike(lance_world(uri), known, mode=mode, query_id=query_id, policy=policy, **kwargs)


def rows_beside(epoch_id: int, mode: OutputMode) -> list[dict[str, int]]:
    """Return an epoch's rows: those of an upsert have keys below 0, many of them old ones."""
    if mode is OutputMode.APPEND:
        return epoch_rows(epoch_id)
    keys = {-1 - epoch_id % 40, -1 - epoch_id * 7 % 40, -100 - epoch_id}
    return [{"id": key, "epoch": epoch_id} for key in sorted(keys)]


def checkpoint_of(folder: str, mode: OutputMode) -> Path:
    """Return the checkpoint of the stream in one mode."""
    return Path(folder, f"checkpoint-{mode}")


def drive(folder: str, mode: OutputMode, dice: random.Random) -> None:
    """Run one driver until it is asked to stop, and end in order."""
    place, world = checkpoint_of(folder, mode), lance_world(f"{folder}/t.lance")
    reader = open_files(str(place))

    def look() -> Checkpoint:
        return read_checkpoint(str(place), reader)

    seen = look()
    committer = DriverSession(world.open(), str(mode), seen, CommitPolicy(), look=look)
    committer.prepare()
    committer.identify(Driver(f"run-{os.getpid()}", f"id-{mode}", str(place), pid=os.getpid()))
    epoch_id = seen.in_flight if seen.in_flight is not None else seen.committed + 1
    upsert = mode is OutputMode.UPDATE
    keeper = AutoCompaction(None if Path(folder, "upkeep").exists() else 0, str(mode))
    keeper.use_interval(1)
    while seen.in_flight == epoch_id or not Path(folder, "stop").exists():
        (place / "offsets" / str(epoch_id)).write_text("v1\n{}\n-")
        plan = committer.begin(epoch_id)
        if plan.decision is Decision.FULL_COMMIT:
            new = rows_beside(epoch_id, mode)
            written = world.fragments(plan.port, new)
            time.sleep(dice.random() * 0.02)
            keys, names = (world.keys(new), ("id",)) if upsert else (None, ())
            if upsert:
                keeper.give_way()
            plan.commit(
                Epoch(epoch_id, mode, written, len(new), 0, utc_now(), keys, merge_keys=names)
            )
            port: Any = committer.port
            keeper.epoch_done(epoch_id, port, committer.owner)
        time.sleep(dice.random() * 0.02)
        (place / "commits" / str(epoch_id)).write_text("v1\n{}")
        epoch_id += 1
    keeper.end(10)
    committer.release()


def look_after_sooner(keep: int) -> None:
    """Make a driver's turns due after few epochs, and keep versions for so many seconds only."""
    upkeep._FRAGMENTS, upkeep._VERSIONS = 8, 20
    upkeep.MOST_VERSIONS, upkeep.LEAST_KEPT_SECONDS = 10, keep


if __name__ == "__main__":
    look_after_sooner(keep=4)
    try:
        drive(sys.argv[1], OutputMode(sys.argv[2]), random.Random(sys.argv[3]))
    except LanceStreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
