"""`refreshIndices` on real local Spark: vectors that have arrived are found by the index alone."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.maintenance.dataset_metrics import read_indices
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.sparkstream import Stream

SIZE, ROWS, EPOCHS = 16, 50, 6
SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), SIZE))])


def vectors(epoch: int, rows: int = ROWS) -> pa.Table:
    made = np.random.default_rng(epoch).standard_normal((rows, SIZE), dtype=np.float32)
    ids = range(epoch * rows, (epoch + 1) * rows)
    return pa.table({"id": ids, "vector": list(made)}, schema=SCHEMA)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """A stream into a table with an index on each column, and some epochs to come."""
    stream = Stream(spark, tmp_path, "id BIGINT, vector ARRAY<FLOAT>")
    dataset = lance.write_dataset(vectors(100, 500), stream.uri)
    dataset.create_index("vector", "IVF_FLAT", num_partitions=2, metric="l2")
    lance.dataset(stream.uri).create_scalar_index("id", "BTREE")
    for epoch in range(EPOCHS):
        stream.add(vectors(epoch))
    return stream


def found_by_the_index(stream: Stream) -> int:
    """Return how many of the epochs' first vectors a search of the index alone finds."""
    firsts = [vectors(epoch).slice(0, 1) for epoch in range(EPOCHS)]
    return sum(
        first["id"].to_pylist()
        == stream.dataset.to_table(
            columns=["id", "_distance"],
            nearest={"column": "vector", "q": first["vector"][0].values, "k": 1, "nprobes": 2},
            fast_search=True,
        )["id"].to_pylist()
        for first in firsts
    )


def test_arrived_vectors_are_found_by_the_index_and_its_parts_are_few(stream: Stream) -> None:
    stream.run()
    assert found_by_the_index(stream) == EPOCHS
    assert stream.dataset.count_rows() == 500 + EPOCHS * ROWS
    for index in read_indices(open_dataset(stream.uri)).values():
        assert index.uncovered == 0
        assert len(index.parts) <= 4


def test_without_the_refresh_only_a_search_of_all_rows_finds_them(stream: Stream) -> None:
    stream.run(refreshIndices=False)
    assert found_by_the_index(stream) == 0
    uncovered = {index.uncovered for index in read_indices(open_dataset(stream.uri)).values()}
    assert uncovered == {EPOCHS * ROWS}
