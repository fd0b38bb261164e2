"""What Spark holds in memory of a running query, against the files that it wrote."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.spark.active_query import ActiveQuery, find_active_query
from tests.support.sparkstream import Stream, orders

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
OFFSET_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    for epoch in range(3):
        stream.add(orders(epoch * 10, 10))
    return stream


def query_of(df: DataFrame) -> ActiveQuery:
    context = df.sparkSession.sparkContext
    found = find_active_query(
        df.sparkSession, context.getLocalProperty("sql.streaming.queryId") or ""
    )
    assert found is not None
    return found


def written(checkpoint: str, epoch_id: int) -> tuple[str, ...]:
    text = Path(checkpoint, "offsets", str(epoch_id)).read_text(encoding="utf-8")
    return tuple(text.split("\n")[2:])


def run(
    df: DataFrame,
    checkpoint: str,
    look: Callable[[DataFrame, int], Any],
    *,
    mode: str = "append",
    enough: int | None = None,
) -> None:
    """Call ``look`` in each epoch, of all that is available or of so many."""
    seen: list[int] = []

    def batch(batch: DataFrame, epoch_id: int) -> None:
        look(batch, epoch_id)
        batch.count()
        seen.append(epoch_id)

    writer = df.writeStream.foreachBatch(batch).outputMode(mode)
    writer = writer.option("checkpointLocation", checkpoint)
    if enough is None:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        while len(seen) < enough and not query.awaitTermination(0.1):
            pass
    finally:
        query.stop()


def compare(stream: Stream, df: DataFrame, *, enough: int | None = None) -> list[tuple[str, ...]]:
    """Return the end offsets of each epoch, which agree with Spark's file."""
    seen: list[tuple[str, ...]] = []

    def look(batch: DataFrame, epoch_id: int) -> None:
        ends = query_of(batch).end_offsets(epoch_id)
        assert ends == written(stream.checkpoint, epoch_id)
        seen.append(ends)

    run(df, stream.checkpoint, look, enough=enough)
    return seen


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("value AS id")


def test_end_offsets_of_a_file_source_are_the_lines_of_its_log(stream: Stream) -> None:
    assert compare(stream, stream.read()) == [
        ('{"logOffset":0}',),
        ('{"logOffset":1}',),
        ('{"logOffset":2}',),
    ]


def test_end_offsets_of_a_rate_source_are_the_lines_of_its_log(stream: Stream) -> None:
    seen = compare(stream, rate(stream.spark), enough=2)
    assert [len(ends) for ends in seen[:2]] == [1, 1]
    assert seen[0] != seen[1]


def test_end_offsets_of_two_sources_stand_in_the_order_of_the_log(stream: Stream) -> None:
    both = stream.read().select("id").union(rate(stream.spark))
    seen = compare(stream, both, enough=3)
    assert [len(ends) for ends in seen[:3]] == [2, 2, 2]
    assert [ends[0] for ends in seen[:3]] == [f'{{"logOffset":{n}}}' for n in range(3)]


def test_end_offsets_show_a_dash_for_a_source_without_an_offset(
    spark: SparkSession, stream: Stream
) -> None:
    empty = stream.root / "nothing"
    empty.mkdir()
    nothing = spark.readStream.schema(stream.ddl).parquet(str(empty))
    seen = compare(stream, stream.read().union(nothing))
    assert seen[0] == ('{"logOffset":0}', "-")


def test_end_offsets_of_named_sources_carry_the_names(spark: SparkSession, stream: Stream) -> None:
    spark.conf.set(EVOLUTION, "true")
    spark.conf.set(OFFSET_FORMAT, "2")  # newer Sparks choose it by themselves
    try:
        files = (
            spark.readStream.name("files")
            .schema(stream.ddl)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(stream.source))
        )
        ticks = spark.readStream.name("ticks").format("rate").load().selectExpr("value AS id")
        seen = compare(stream, files.select("id").union(ticks), enough=2)
    finally:
        spark.conf.unset(EVOLUTION)
        spark.conf.unset(OFFSET_FORMAT)
    assert Path(stream.checkpoint, "offsets", "0").read_text().startswith("v2\n")
    assert 'files:{"logOffset":1}' in seen[1]
    assert {line.split(":", 1)[0] for line in seen[1]} == {"files", "ticks"}


def test_end_offsets_come_from_memory_and_not_from_the_file(stream: Stream) -> None:
    seen = []

    def look(batch: DataFrame, epoch_id: int) -> None:
        before = written(stream.checkpoint, epoch_id)
        offsets = Path(stream.checkpoint, "offsets")
        away = offsets.with_name("away")
        offsets.rename(away)
        try:
            assert not (offsets / str(epoch_id)).exists()
            seen.append(query_of(batch).end_offsets(epoch_id) == before)
        finally:
            away.rename(offsets)

    run(stream.read(), stream.checkpoint, look)
    assert seen == [True, True, True]


def test_end_offsets_of_a_replayed_epoch_come_from_memory_too(stream: Stream) -> None:
    run(stream.read(), stream.checkpoint, lambda batch, epoch_id: None)
    replayed = stream.forget_last_commit()
    expected = written(stream.checkpoint, replayed)
    seen = {}

    def look(batch: DataFrame, epoch_id: int) -> None:
        file = Path(stream.checkpoint, "offsets", str(epoch_id))
        whole = file.read_bytes()
        file.write_bytes(b'v1\n{}\n{"logOffset":77}')
        try:
            seen[epoch_id] = query_of(batch).end_offsets(epoch_id)
        finally:
            file.write_bytes(whole)

    run(stream.read(), stream.checkpoint, look)
    assert seen == {replayed: expected}


def test_end_offsets_of_another_epoch_are_unknown(stream: Stream) -> None:
    seen = []
    run(
        stream.read(),
        stream.checkpoint,
        lambda batch, epoch_id: seen.append(query_of(batch).end_offsets(epoch_id + 1)),
    )
    assert seen == [None, None, None]


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_query_shows_its_output_mode_and_checkpoint(stream: Stream, mode: str) -> None:
    seen = set()

    def look(batch: DataFrame, epoch_id: int) -> None:
        query = query_of(batch)
        seen.add((query.output_mode, query.checkpoint_root))

    df = stream.read() if mode == "append" else stream.read().groupBy("grp").count()
    run(df, stream.checkpoint + "/", look, mode=mode)
    assert seen == {(mode, f"file:{stream.checkpoint}")}


def test_query_is_found_from_outside_its_epoch_and_gone_after_its_end(
    spark: SparkSession, stream: Stream
) -> None:
    query = (
        rate(spark)
        .writeStream.foreachBatch(lambda batch, epoch_id: None)
        .option("checkpointLocation", stream.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        found = find_active_query(spark.newSession(), query.id)
        assert found is not None
        assert found.output_mode == "append"
    finally:
        query.stop()
    assert find_active_query(spark, query.id) is None
    shutil.rmtree(stream.checkpoint)


@pytest.mark.parametrize("query_id", ["", "no-uuid", str(uuid.UUID(int=4711))])
def test_query_with_an_unknown_id_is_not_found(spark: SparkSession, query_id: str) -> None:
    assert find_active_query(spark, query_id) is None


class OtherInternals:
    """A query of a Spark that has none of the names, as py4j shows it."""

    def __init__(self, spark: SparkSession) -> None:
        self._object = spark.sparkContext._jvm.java.lang.Object()

    def outputMode(self) -> Any:
        return self._object

    def resolvedCheckpointRoot(self) -> str:
        return "file:/x"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object, name)


def test_end_offsets_are_unknown_where_spark_has_other_internals(spark: SparkSession) -> None:
    assert ActiveQuery(spark, OtherInternals(spark)).end_offsets(0) is None
