"""A second driver starts while the first is busy: it takes the query over at its first try."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.spark.sink import LanceSink
from tests.support.processes import end, finish, python, wait_for
from tests.support.sparkstream import Stream, orders, spec, write_spec

EPOCHS, ROWS = 30, 5


def test_second_driver_fences_a_busy_one_before_spark_plans_an_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without that, Spark ends the newcomer: the busy driver is always ahead of it in the log."""
    stream = Stream(spark, tmp_path)
    stream.create()
    for n in range(EPOCHS):
        stream.add(orders(n * ROWS, ROWS))
    busy = spec(stream, trigger="0 seconds")
    busy_path = write_spec(tmp_path / "spec.json", busy)
    old = python("-m", "tests.support.killed_job", str(busy_path), "never", "1")
    try:
        wait_for("the first epochs", lambda: len(stream.epochs()) >= 3)
        stream.run()
        status, output = finish(old)
    finally:
        end(old)
    assert status == 0, output
    assert "FencedError" in output
    stamps = stream.epochs()
    assert Counter(stamp.epoch_id for stamp in stamps) == Counter(range(EPOCHS))
    ids = stream.table().column("id").to_pylist()
    assert Counter(ids) == Counter(range(EPOCHS * ROWS))
    by_run = [stamp.run_id for stamp in stamps]
    assert len(set(by_run)) == 2, "each epoch names the run that wrote it"
    assert "" not in by_run
    assert by_run == sorted(by_run, key=by_run.index), "one after the other"


def test_start_after_a_crash_releases_the_query_when_there_is_no_new_data(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    stream.add(orders(0, ROWS))
    crashed = stream.sink()
    crashed.start(stream.read(), availableNow=True).awaitTermination()  # and never released
    assert owner_of(stream) == (1, OwnerState.ACTIVE)
    assert updates(stream.run()) == 3, "claim, barrier, release"
    assert owner_of(stream) == (2, OwnerState.RELEASED)
    assert updates(stream.run()) == 0, "nothing to take over, nothing to read"


def owner_of(stream: Stream) -> tuple[int, OwnerState]:
    port = open_dataset(stream.uri)
    owner = decode_query(port.config, "q", port.version).owner
    assert owner is not None
    return owner.token, owner.state


def updates(sink: LanceSink) -> int:
    assert sink.session is not None
    return sink.session.manifest_updates
