"""Datasets with a long history and a query whose driver has ended, to be started again and again.

Belongs to :mod:`benchmarks.restart`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
from lance.fragment import write_fragments
from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.port import Append, Configure
from airflow_provider_lance.spark.sink import LanceSink
from benchmarks.contestants.lance_table import lance_uri
from benchmarks.contestants.words import LOOK_BACK
from benchmarks.harness.spark import SCHEMA, read_files, rows

QUERY = "bench"
EPOCHS = 15
"""Epochs before the restart; the watermark is folded after ten, so five are in history only."""
_STREAM = EPOCHS + 2
"""Versions that they make: the claim and the fold come on top."""


@dataclass(frozen=True)
class Size:
    """How many versions a dataset has, and how many fragments the newest of them."""

    versions: int
    fragments: int

    def __str__(self) -> str:
        return f"{self.versions:,} versions, {self.fragments:,} fragments"


class Scene:
    """A dataset and a checkpoint as a driver left them."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.size, self.folder = size, folder
        self.uri, self.checkpoint = lance_uri(str(folder)), folder / "checkpoint"
        self._kept = folder / "kept"
        self._known: set[str] = set()
        self._hint = b""

    def keep(self) -> None:
        """Remember what is there now."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.checkpoint, self._kept)
        self._known = set(self._files())
        self._hint = self._newest.read_bytes()

    def back(self) -> None:
        """Take away whatever has come since."""
        for path in set(self._files()) - self._known:
            os.unlink(path)
        # Lance trusts it: with one that names a version which is gone, every commit searches.
        self._newest.write_bytes(self._hint)
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self._kept, self.checkpoint)

    @property
    def _newest(self) -> Path:
        return Path(self.uri, "_versions", "latest_version_hint.json")

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.uri):
            yield from (os.path.join(folder, name) for name in names)


def aged(folder: Path, versions: int) -> Path:
    """Make the first part of a history, from before there are rows: config changes."""
    port = LanceDatasetPort(lance.write_dataset(SCHEMA.empty_table(), lance_uri(str(folder))))
    # All versions that the classic design looks back at get the fragments; older ones do without.
    for number in range(versions - LOOK_BACK - 1):
        port = port.commit(Configure({"bench.age": str(number)}))
    return folder


def streamed(
    spark: SparkSession, source: Path, empty: Path, folder: Path, size: Size
) -> tuple[Scene, LanceSink]:
    """Copy an aged dataset, add fragments and more config changes, then a stream's epochs.

    :param source: a folder with one file for each epoch.
    :returns: the scene, and the sink, which has not released its query.
    """
    shutil.copytree(empty, folder)
    scene = Scene(folder, size)
    port = open_dataset(scene.uri)
    files = write_fragments(rows(0, size.fragments - EPOCHS), port.dataset, max_rows_per_file=1)
    port = port.commit(Append(files))
    for number in range(size.versions - port.version - _STREAM):
        port = port.commit(Configure({"bench.age": str(number)}))
    sink = sink_for(scene)
    sink.start(read_files(spark, source), availableNow=True).awaitTermination()
    seen = open_dataset(scene.uri)
    made = Size(seen.version, len(seen.dataset.get_fragments()))
    if made != size:
        raise AssertionError(f"{scene.uri} has {made}, and not {size}")
    return scene, sink


def sink_for(scene: Scene, on_step: Callable[[Failpoint], None] = lambda step: None) -> LanceSink:
    """Return a sink for one run of the scene's query, whose upkeep adds nothing to the history."""
    return LanceSink(
        on_step=on_step,
        uri=scene.uri,
        queryId=QUERY,
        checkpointLocation=str(scene.checkpoint),
        autoCompactEvery=0,
    )
