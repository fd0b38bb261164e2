"""Datasets that are restored, dropped or recreated: real streams say so, and how they go on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.exceptions import (
    CheckpointMismatchError,
    DatasetNotFoundError,
    DatasetRestoredError,
    LanceStreamError,
    TerminalError,
)
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason
from tests.support.cli import typed
from tests.support.maintenance import age
from tests.support.processes import wait_for
from tests.support.sparkstream import ORDERS, Stream, orders, spec

EPOCHS, ROWS = 6, 10
BACK = 5
"""The version that is brought back: the claim is 2, epoch 0 is 3, epoch 2 is 5."""
CHECKED = {Code.COMMIT_LOG_AHEAD}
BUSY = {"processingTime": "100 milliseconds"}


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    made = Stream(spark, tmp_path)
    made.create()
    return made


@pytest.fixture
def restored(stream: Stream) -> Stream:
    """A finished query of six epochs, the newest three undone, and two more files to read."""
    for number in range(EPOCHS):
        add(stream, number)
    stream.run()
    lance.dataset(stream.uri, version=BACK).restore()
    for number in range(EPOCHS, EPOCHS + 2):
        add(stream, number)
    return stream


def add(stream: Stream, number: int) -> None:
    stream.add(orders(number * ROWS, ROWS))


def ids(*epochs: int) -> Counter[int]:
    return Counter(number for n in epochs for number in range(n * ROWS, (n + 1) * ROWS))


def found(stream: Stream) -> Counter[int]:
    return Counter(stream.table()["id"].to_pylist())


def codes(stream: Stream) -> set[Code]:
    return {each.code for each in check(open_dataset(stream.uri), ["q"]).findings}


def committed(stream: Stream) -> int:
    names = os.listdir(Path(stream.checkpoint, "commits"))
    return max(int(name) for name in names if name.isdigit())


def refused(stream: Stream, **options: str) -> DatasetRestoredError:
    """Start, which must name what is gone; nothing may be committed, or told as done."""
    before = stream.dataset.version, committed(stream), found(stream)
    with pytest.raises(DatasetRestoredError) as caught:
        stream.run(**options)
    assert (stream.dataset.version, committed(stream), found(stream)) == before
    return caught.value


# ----------------------------------------------------------------------------------- 1: restored


def test_a_restored_dataset_is_refused_and_bringing_it_back_gives_every_row_once(
    restored: Stream,
) -> None:
    said = str(refused(restored))
    assert f"version 10 of {restored.uri} restored version {BACK}" in said
    assert "epochs 3 to 5" in said
    assert "(30 rows)" in said
    command = re.search(r"(lance-stream resolve restore .*? --yes); or, ", said)
    assert command, said
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    subprocess.run(command[1], shell=True, check=True, env=environment, timeout=120)
    assert found(restored) == ids(*range(EPOCHS))
    restored.run()
    assert found(restored) == ids(*range(EPOCHS + 2))
    assert not codes(restored) & CHECKED


def test_a_restored_dataset_goes_on_without_the_rows_that_are_accepted_as_gone(
    restored: Stream,
) -> None:
    option = re.search(r"onRestore=(accept:\d+-\d+)", str(refused(restored)))
    assert option
    (seen,) = [
        each
        for each in check(open_dataset(restored.uri), ["q"]).findings
        if each.code is Code.COMMIT_LOG_AHEAD
    ]
    typed = [step.command for step in seen.steps]
    assert f"lance-stream resolve restore {restored.uri} q --bring-back --yes" in typed
    assert f"lance-stream resolve restore {restored.uri} q --accept 3-5 --yes" in typed
    refused(restored, onRestore="accept:4-5")
    restored.run(onRestore=option[1])
    assert found(restored) == ids(0, 1, 2, 6, 7)
    assert not codes(restored) & CHECKED
    add(restored, 8)
    restored.run()
    assert found(restored) == ids(0, 1, 2, 6, 7, 8)
    assert [each.epoch_id for each in restored.epochs()] == list(range(9))


def test_a_job_on_a_restored_dataset_fails_and_says_why(
    spark: SparkSession, restored: Stream
) -> None:
    summary = run(spark, JobSpec.parse(spec(restored)))
    assert (summary.reason, summary.error) == (EndReason.FAILED, "DatasetRestoredError")
    assert "epochs 3 to 5" in str(summary.message)
    assert "onRestore=accept:3-5" in str(summary.message)
    assert (summary.epochs, summary.rows) == (0, 0)
    assert found(restored) == ids(0, 1, 2)


def test_cleanup_keeps_the_only_copies_of_undone_epochs(restored: Stream) -> None:
    assert codes(restored) >= CHECKED
    age(restored.uri, 7200)
    asked = ("--older-than", "1s", "--retain-versions", "1", "--min-old-versions", "1", "--yes")
    ran = typed("cleanup", restored.uri, *asked)
    assert ran.status == 0, ran.err
    assert lance.dataset(restored.uri, version=9).count_rows() == EPOCHS * ROWS
    assert codes(restored) >= CHECKED
    assert "(30 rows)" in str(refused(restored))
    lance.dataset(restored.uri, version=9).restore()
    restored.run()
    assert found(restored) == ids(*range(EPOCHS + 2))


def test_a_foreign_cleanup_of_everything_old_does_not_make_a_restored_dataset_healthy(
    restored: Stream,
) -> None:
    restored.dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    seen = codes(restored)
    assert Code.HEALTHY not in seen
    assert seen & {Code.COMMIT_LOG_AHEAD, Code.HISTORY_GAP}
    said = str(refused(restored))
    assert "python -c" not in said, "no version to restore is left"
    option = re.search(r"onRestore=(accept:\d+-\d+)", said)
    assert option, said
    restored.run(onRestore=option[1])
    assert found(restored) == ids(0, 1, 2, 6, 7)
    assert Code.HEALTHY in codes(restored)


def test_a_restore_to_what_an_earlier_run_released_is_refused(stream: Stream) -> None:
    for number in range(3):
        add(stream, number)
    stream.run()
    released = stream.dataset.version
    state = decode_query(stream.dataset.config(), "q", released)
    assert state.owner
    assert state.owner.state is OwnerState.RELEASED
    for number in range(3, EPOCHS):
        add(stream, number)
    stream.run()
    lance.dataset(stream.uri, version=released).restore()
    assert codes(stream) >= CHECKED
    said = str(refused(stream))
    assert "epochs 3 to 5" in said
    assert "(30 rows)" in said


class Busy:
    """A query that runs, and gets a new file whenever it has read the one before."""

    def __init__(self, stream: Stream, **options: int) -> None:
        self.stream = stream
        self.sink: LanceSink = stream.sink(**options)
        self.next = 0
        self.feed()
        self.query = self.sink.start(stream.read(), **BUSY)

    def feed(self) -> None:
        add(self.stream, self.next)
        self.next += 1

    def reach(self, epochs: int) -> None:
        """Read on until so many epochs are done."""
        while self.next < epochs:
            self.wait_until_read()
            self.feed()
        self.wait_until_read()

    def wait_until_read(self) -> None:
        wait_for("an epoch", lambda: self.ended or self.sink.totals.epochs >= self.next)

    @property
    def ended(self) -> bool:
        return not self.query.isActive

    def goes_on_for(self, most: int) -> int:
        """Feed it until it ends; return how many more epochs it took for done."""
        before = self.sink.totals.epochs
        for _ in range(most + 1):
            self.feed()
            self.wait_until_read()
            if self.ended:
                break
        return self.sink.totals.epochs - before

    def end(self) -> None:
        with suppress(StreamingQueryException):
            self.query.stop()
        self.sink.release()

    def dies(self) -> BaseException:
        """Return what ended it; Spark must know it as well, and nothing may be released."""
        wait_for("the end of the query", lambda: self.ended)
        told = self.query.exception()
        assert told is not None
        assert isinstance(self.sink.error, TerminalError), self.sink.error
        assert type(self.sink.error).__name__ in str(told)
        assert self.sink.release() is False
        return self.sink.error


def test_a_running_driver_ends_within_a_fold_of_a_restore(stream: Stream) -> None:
    busy = Busy(stream, watermarkEvery=4)
    try:
        busy.reach(EPOCHS)
        lance.dataset(stream.uri, version=BACK).restore()
        more = busy.goes_on_for(4)
        assert more <= 4
        error = busy.dies()
        assert isinstance(error, DatasetRestoredError)
    finally:
        busy.end()
    assert codes(stream) >= CHECKED
    said = str(refused(stream))
    option = re.search(r"onRestore=accept:(\d+)-(\d+)", said)
    assert option, said
    gone = range(int(option[1]), int(option[2]) + 1)
    stream.run(onRestore=f"accept:{gone[0]}-{gone[-1]}")
    kept = [number for number in range(busy.next) if number not in gone]
    assert found(stream) == ids(*kept)
    assert not set(kept) & {3, 4, 5}


# ------------------------------------------------------------------------- 2: dropped, recreated

STRANGER = pa.table({"id": [-1], "grp": ["somebody"], "amount": [0.5]}, schema=ORDERS)


def drop(stream: Stream) -> None:
    shutil.rmtree(stream.uri)


def recreate(stream: Stream, versions: int, *, rows: bool) -> None:
    drop(stream)
    stream.create()
    for _ in range(versions):
        if rows:
            lance.write_dataset(STRANGER, stream.uri, mode="append")
        else:
            stream.dataset.update_config({"somebody's": str(time.time_ns())})


@pytest.mark.parametrize(
    ("versions", "rows"),
    [(None, False), (0, False), (2, True), (6, True), (40, False), (40, True)],
    ids=["dropped", "empty", "lower", "about as high", "higher and empty", "higher"],
)
def test_a_dataset_dropped_or_recreated_under_a_busy_driver_ends_it_by_name(
    stream: Stream, versions: int | None, rows: bool
) -> None:
    busy = Busy(stream, watermarkEvery=4)
    try:
        busy.reach(4)
        if versions is None:
            drop(stream)
        else:
            recreate(stream, versions, rows=rows)
        assert busy.goes_on_for(5) <= 5
        error = busy.dies()
        assert isinstance(error, DatasetNotFoundError | DatasetRestoredError), error
    finally:
        busy.end()
    with pytest.raises(LanceStreamError) as caught:
        stream.run()
    assert isinstance(caught.value, DatasetNotFoundError | CheckpointMismatchError), caught.value
    if versions is not None and rows:
        assert Code.HEALTHY not in codes(stream)
