"""A sink given to `foreachBatch` by hand: the query must be the one that it was made for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.spark.active_query import same_location
from airflow_provider_lance.spark.sink import LanceSink
from tests.support.sparkstream import Stream, orders


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    for epoch in range(3):
        stream.add(orders(epoch * 10, 10))
    return stream


def by_hand(
    sink: Callable[[DataFrame, int], None], df: DataFrame, checkpoint: str, mode: str = "append"
) -> None:
    query = (
        df.writeStream.foreachBatch(sink)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def refused(sink: LanceSink, *given: Any) -> str:
    """Run a query that must be refused; return what was said, after a look that nothing is made."""
    with pytest.raises(StreamingQueryException):
        by_hand(sink, *given)
    assert isinstance(sink.error, SpecError)
    assert not Path(sink.options.uri).exists()
    return str(sink.error)


def totals(stream: Stream) -> DataFrame:
    return stream.read().groupBy("grp").count()


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "complete"),
        ({}, "update"),
        ({"outputMode": "complete"}, "update"),
        ({"outputMode": "update", "mergeKeys": "grp"}, "complete"),
        ({"outputMode": "update", "updateAsAppend": True}, "complete"),
    ],
)
def test_query_of_another_output_mode_is_refused_before_anything_is_made(
    stream: Stream, options: dict[str, Any], mode: str
) -> None:
    sink = stream.sink(createIfMissing=True, **options)
    said = refused(sink, totals(stream), stream.checkpoint, mode)
    wanted = sink.options.output_mode.value
    assert re.search(f"mode {mode} .* {wanted}", said)
    assert f"outputMode='{mode}'" in said
    assert "sink.start(df)" in said


@pytest.mark.parametrize("wrapped", [False, True], ids=["sink", "function"])
def test_query_of_the_same_output_mode_replaces_rows_and_adds_none(
    stream: Stream, wrapped: bool
) -> None:
    sink = stream.sink(createIfMissing=True, outputMode="complete")

    def function(batch: DataFrame, epoch_id: int) -> None:
        sink(batch, epoch_id)

    by_hand(function if wrapped else sink, totals(stream), stream.checkpoint, "complete")
    assert sink.release()
    assert stream.table().num_rows == 3
    assert sum(stream.table().column("count").to_pylist()) == 30


def test_query_with_another_checkpoint_is_refused_before_anything_is_made(stream: Stream) -> None:
    elsewhere = f"{stream.root}/elsewhere"
    said = refused(stream.sink(createIfMissing=True), stream.read(), elsewhere)
    assert f"checkpoint is file:{elsewhere} " in said
    assert stream.checkpoint in said


def test_query_on_a_copy_of_the_checkpoint_is_refused(stream: Stream) -> None:
    by_hand(lambda batch, epoch_id: batch.count() and None, stream.read(), stream.checkpoint)
    copy = f"{stream.root}/copy"
    shutil.copytree(stream.checkpoint, copy)
    stream.add(orders(30, 10))
    said = refused(stream.sink(createIfMissing=True), stream.read(), copy)
    assert f"checkpoint is file:{copy}" in said


@pytest.mark.parametrize(
    ("sinks", "queries"),
    [
        ("{0}", "file:{0}"),
        ("file://{0}", "{0}"),
        ("file:{0}/", "file://{0}//"),
        ("{0}", "{0}/../checkpoint with space"),
        ("{0}", "{0}-link"),
        ("file:{0}-link", "{0}"),
    ],
)
def test_other_spellings_of_the_checkpoint_are_the_same(
    stream: Stream, sinks: str, queries: str
) -> None:
    place = Path(stream.root, "checkpoint with space")
    place.mkdir()
    Path(f"{place}-link").symlink_to(place)
    sink = stream.sink(createIfMissing=True, checkpointLocation=sinks.format(place))
    by_hand(sink, stream.read(), queries.format(place))
    assert sink.release()
    assert stream.table().num_rows == 30


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3a://bucket/cp", "s3://bucket/cp/", True),
        ("s3a://bucket/cp", "s3a://bucket/cp2", False),
        ("s3a://bucket/cp", "s3a://other/cp", False),
        ("hdfs://one/cp", "hdfs://two/cp", False),
        ("hdfs://one/cp", "file:/cp", False),
        ("file:///data/cp", "/data/./cp", True),
    ],
)
def test_locations_of_stores_are_compared_by_what_they_name(
    one: str, other: str, same: bool
) -> None:
    assert same_location(one, other) is same
    assert same_location(other, one) is same
