"""Where a stream over a Lance dataset begins stays fixed, however often epoch 0 is replayed."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.spark.source import register_source


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


class Reader:
    """Runs a query over a dataset until it has read all, and keeps what each epoch returned."""

    def __init__(self, spark: SparkSession, root: Path, **options: str) -> None:
        self.uri, self.checkpoint = str(root / "orders.lance"), root / "checkpoint"
        self.spark, self.options = spark, options
        self.epochs: dict[int, list[int]] = {}
        register_source(spark)

    def run(self) -> None:
        df = self.spark.readStream.format("lance").options(**self.options).load(self.uri)
        query = (
            df.writeStream.foreachBatch(self._note)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _note(self, df: DataFrame, epoch_id: int) -> None:
        self.epochs[epoch_id] = sorted(df.toArrow()["id"].to_pylist())

    def forget_commit(self, epoch_id: int) -> None:
        """Leave the checkpoint as a driver does that is killed before Spark's commit."""
        for log in ("commits", "offsets"):
            for file in (self.checkpoint / log).glob("*"):
                name = file.name.strip(".").removesuffix(".crc")
                if name.isdigit() and int(name) >= epoch_id + (log == "offsets"):
                    file.unlink()

    def rows(self) -> list[int]:
        return sorted(row for epoch in self.epochs.values() for row in epoch)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(15)),
        ({"startingVersion": "latest"}, range(10, 15)),
        ({"startingVersion": "1", "maxRowsPerTrigger": "3"}, range(15)),
    ],
    ids=["snapshot", "latest", "version"],
)
def test_replayed_epoch_0_begins_where_it_began_first(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], expected: range
) -> None:
    reader = Reader(spark, tmp_path, **options)
    lance.write_dataset(numbers(0, 10), reader.uri)
    reader.run()
    reader.forget_commit(0)
    reader.epochs.clear()
    lance.write_dataset(numbers(10, 5), reader.uri, mode="append")

    reader.run()

    assert reader.rows() == list(expected)


def test_position_left_in_the_dataset_does_not_move_the_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    reader = Reader(spark, tmp_path, maxRowsPerTrigger="4", consumerId="reader")
    lance.write_dataset(numbers(0, 10), reader.uri)

    reader.run()

    assert reader.rows() == list(range(10))
    assert any("consumer.reader" in key for key in lance.dataset(reader.uri).config())
    shutil.rmtree(reader.checkpoint)
