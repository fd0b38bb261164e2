"""A stream over a Lance dataset, and the cleanup of that dataset while the stream is down."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SourceDataLossError
from airflow_provider_lance.maintenance.cleanup import Cleaned, Retention, clean_up
from airflow_provider_lance.protocol.consumers import (
    CONSUMER_RETENTION,
    leave_position,
    read_consumer,
)
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.spark.failures import named_failure
from airflow_provider_lance.spark.source import register_source

CONSUMER = "hourly"


class Consumer:
    """A query that reads the change feed of a table of numbers and keeps their state."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.uri = spark, str(root / "orders.lance")
        self.checkpoint = root / "checkpoint"
        self.held: set[int] = set()
        register_source(spark)

    def run(self) -> None:
        df = (
            self.spark.readStream.format("lance")
            .option("readChangeFeed", "true")
            .option("consumerId", CONSUMER)
            .option("maxVersionsPerTrigger", "1")
            .load(self.uri)
        )
        query = (
            df.writeStream.foreachBatch(self._apply)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _apply(self, df: DataFrame, epoch_id: int) -> None:
        for change in df.toArrow().to_pylist():
            if change["_change_type"] == "delete":
                self.held.remove(change["id"])
            else:
                self.held.add(change["id"])


def change(uri: str) -> None:
    lance.write_dataset(pa.table({"id": range(10, 20)}), uri, mode="append")
    lance.dataset(uri).delete("id < 5")
    lance.write_dataset(pa.table({"id": range(20, 30)}), uri, mode="append")


def clean(uri: str) -> Cleaned:
    lance.dataset(uri).optimize.compact_files()
    return clean_up(open_dataset(uri), Retention(older_than=0))


@pytest.fixture
def consumer(spark: SparkSession, tmp_path: Path) -> Consumer:
    consumer = Consumer(spark, tmp_path)
    lance.write_dataset(pa.table({"id": range(10)}), consumer.uri, enable_stable_row_ids=True)
    consumer.run()
    assert consumer.held == set(range(10))
    return consumer


def test_cleanup_keeps_the_versions_that_a_stopped_consumer_needs(consumer: Consumer) -> None:
    change(consumer.uri)

    cleaned = clean(consumer.uri)

    assert cleaned.held[CONSUMER] > 0
    consumer.run()
    assert consumer.held == set(range(5, 30))


def test_consumer_stops_by_name_once_its_versions_are_gone(consumer: Consumer) -> None:
    port = open_dataset(consumer.uri)
    record = read_consumer(port.config, CONSUMER, port.version)
    assert record
    forgotten = datetime.now(UTC) - timedelta(seconds=CONSUMER_RETENTION + 1)
    leave_position(port, replace(record, at=forgotten))
    change(consumer.uri)
    cleaned = clean(consumer.uri)
    assert CONSUMER in " ".join(cleaned.warnings)

    with pytest.raises(StreamingQueryException) as stopped:
        consumer.run()

    error = named_failure(stopped.value)
    assert isinstance(error, SourceDataLossError)
    assert f"version {record.offset.version}" in str(error)
    assert consumer.held == set(range(10))
