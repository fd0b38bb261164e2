"""`schemaEvolution=addColumns` and `missingColumns=null`: real Spark, real Lance."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.optimize import Compaction
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.exceptions import FencedError, SchemaMismatchError
from airflow_provider_lance.protocol.added_columns import AddedColumns, decode_added
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import Driver, Epoch, OutputMode, utc_now
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.sparkstream import ORDERS, Stream, orders

ADD = {"schemaEvolution": "addColumns"}
FILL = {"missingColumns": "null"}


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.create()
    stream.add(orders(0, 10))
    return stream


def added(uri: str) -> list[AddedColumns]:
    """Return what was added in each version, oldest first."""
    port = open_dataset(uri)
    found = (decode_added(port.properties(n) or {}) for n in range(1, port.version + 1))
    return [each for each in found if each]


def refused(stream: Stream, df: DataFrame, **options: Any) -> str:
    """Start a query that must be refused before anything is touched; return what was said."""
    version = stream.dataset.version
    with pytest.raises(SchemaMismatchError) as caught:
        stream.run(df, **options)
    assert stream.dataset.version == version
    return str(caught.value)


def by_hand(stream: Stream, sink: LanceSink, shape: Callable[[DataFrame, int], DataFrame]) -> None:
    """Run a query whose function gives the sink another DataFrame in each epoch."""

    def each(df: DataFrame, epoch_id: int) -> None:
        sink(shape(df, epoch_id), epoch_id)

    query = (
        stream.read()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", stream.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def rows(stream: Stream, *names: str) -> list[tuple[Any, ...]]:
    table = stream.table().sort_by("id")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_new_column_is_added_with_the_first_epoch_that_has_it(stream: Stream) -> None:
    stream.run(stream.read(), **ADD)
    stream.add(orders(10, 10))
    stream.run(stream.read().withColumn("twice", F.col("id") * 2), **ADD)
    assert rows(stream, "id", "twice") == [(n, n * 2 if n >= 10 else None) for n in range(20)]
    assert stream.dataset.schema.field("twice").nullable
    (seen,) = added(stream.uri)
    assert (seen.query_id, seen.epoch_id, seen.columns) == ("q", 1, {"twice": "int64"})
    assert seen.token == stream.epochs()[-1].token
    assert str(seen) == "epoch 1 added column twice (int64)"


def test_new_column_is_refused_by_default_and_the_option_is_named(stream: Stream) -> None:
    said = refused(stream, stream.read().withColumn("twice", F.col("id") * 2))
    assert "'twice' (int64) is not in the dataset" in said
    assert "schemaEvolution=addColumns" in said


def test_new_columns_of_executors_and_of_nested_types_are_read_back(stream: Stream) -> None:
    stream.run(
        stream.read()
        .withColumn("v", F.array(F.col("amount").cast("float"), F.lit(1.0).cast("float")))
        .withColumn("s", F.struct(F.col("id").alias("a"), F.array("grp").alias("names"))),
        smallEpochRows=0,
        vectorSizes={"v": 2},
        **ADD,
    )
    assert stream.dataset.schema.field("v").type == pa.list_(pa.float32(), 2)
    first = stream.table().sort_by("id").to_pylist()[1]
    assert (first["v"], first["s"]) == ([0.5, 1.0], {"a": 1, "names": ["g1"]})


def test_new_field_of_a_struct_is_added(stream: Stream) -> None:
    narrow = stream.read().withColumn("s", F.struct(F.col("id").alias("a")))
    stream.run(narrow, **ADD)
    stream.add(orders(10, 10))
    wide = stream.read().withColumn("s", F.struct(F.col("grp").alias("b"), F.col("id").alias("a")))
    stream.run(wide, **ADD)
    assert rows(stream, "s") == [
        ({"a": n, "b": f"g{n % 3}" if n >= 10 else None},) for n in range(20)
    ]
    assert [each.columns for each in added(stream.uri)] == [
        {"s": "struct<a: int64>"},
        {"s.b": "string"},
    ]
    stream.add(orders(20, 10))
    said = refused(stream, narrow, **ADD)
    assert "['b'] are on one side only" in said
    assert "missingColumns=null" in said
    stream.run(narrow, **FILL)
    assert rows(stream, "s")[20:] == [({"a": n, "b": None},) for n in range(20, 30)]


def test_columns_change_between_epochs_of_one_run(stream: Stream) -> None:
    for epoch in range(1, 4):
        stream.add(orders(epoch * 10, 10))

    def shape(df: DataFrame, epoch_id: int) -> DataFrame:
        return {
            0: df,
            1: df.withColumn("x", F.col("id") + 1),
            2: df.withColumn("x", F.col("id") + 1).withColumn("y", F.lit("y")),
            3: df.select("amount", "id"),
        }[epoch_id]

    sink = stream.sink(**ADD, **FILL)
    by_hand(stream, sink, shape)
    assert sink.release()
    expected = [
        (
            n,
            f"g{n % 3}" if n < 30 else None,
            n / 2,
            n + 1 if 10 <= n < 30 else None,
            "y" if 20 <= n < 30 else None,
        )
        for n in range(40)
    ]
    assert rows(stream, "id", "grp", "amount", "x", "y") == expected
    assert [(each.epoch_id, *each.columns) for each in added(stream.uri)] == [(1, "x"), (2, "y")]
    assert [stamp.epoch_id for stamp in stream.epochs()] == [0, 1, 2, 3]


@pytest.mark.parametrize("small", [20_000, 0])
def test_a_column_that_is_lost_or_new_between_epochs_is_refused_by_name(
    stream: Stream, small: int
) -> None:
    stream.add(orders(10, 10))
    sink = stream.sink(smallEpochRows=small)
    with pytest.raises(StreamingQueryException):
        by_hand(stream, sink, lambda df, epoch_id: df.drop("grp") if epoch_id else df)
    assert isinstance(sink.error, SchemaMismatchError)
    assert "'grp' (string) is missing from the stream" in str(sink.error)
    again = stream.sink(smallEpochRows=small)
    with pytest.raises(StreamingQueryException):
        by_hand(stream, again, lambda df, epoch_id: df.withColumn("new", F.lit(1)))
    assert isinstance(again.error, SchemaMismatchError)
    assert "'new' (int32) is not in the dataset" in str(again.error)
    assert stream.table().num_rows == 10


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (lambda df: df.withColumn("Amount ", F.lit(1)).withColumnRenamed("grp", "GRP"), "in case"),
        (lambda df: df.withColumn("nothing", F.lit(None)), "'nothing' has no type"),
        (lambda df: df.withColumn("__lance_mine", F.lit("x")), "begins with __lance_"),
        (lambda df: df.withColumn("_rowid", F.lit(1)), "Lance reserves"),
        (lambda df: df.withColumn("amount", F.lit("x")), "string in the stream and double in the"),
    ],
)
def test_a_column_that_cannot_be_added_is_refused(
    stream: Stream, shape: Callable[[DataFrame], DataFrame], why: str
) -> None:
    assert why in refused(stream, shape(stream.read()), **ADD, **FILL)


def test_an_incompatible_type_names_both_types_and_both_ways_out(stream: Stream) -> None:
    stream.run()
    stream.add(orders(10, 10))
    said = refused(stream, stream.read().withColumn("id", F.col("id").cast("string")), **ADD)
    assert "'id' is string in the stream and int64 in the dataset" in said
    assert "CAST(… AS int64)" in said
    assert "dataset.alter_columns" in said


def test_a_missing_merge_key_is_never_filled_with_null(stream: Stream) -> None:
    given = {"outputMode": "update", "mergeKeys": "id", **FILL}
    said = refused(stream, stream.read().drop("id"), **given)
    assert "'id' (int64)" in said
    assert "may not be null" in said
    missing = refused(stream, stream.read(), **given | ADD | {"mergeKeys": "code"})
    assert "mergeKeys ['code'] are not columns of" in missing


def test_a_column_that_only_delete_when_reads_is_not_added(stream: Stream) -> None:
    given = {"outputMode": "update", "mergeKeys": "id", "deleteWhen": "op = 'd'", **ADD}
    df = stream.read().withColumn("op", F.when(F.col("id") < 3, "d").otherwise("u"))
    stream.run(df.withColumn("x", F.col("id")), **given)
    assert stream.dataset.schema.names == [*ORDERS.names, "x"]
    assert rows(stream, "id", "x") == [(n, n) for n in range(3, 10)]


def test_an_upsert_adds_a_column_and_complete_mode_too(stream: Stream) -> None:
    upsert = {"outputMode": "update", "mergeKeys": "id"}
    stream.run(**upsert)
    stream.add(orders(5, 10))
    stream.run(stream.read().withColumn("x", F.col("id")), **upsert, **ADD)
    assert rows(stream, "id", "x") == [(n, n if n >= 5 else None) for n in range(15)]


def test_another_query_of_the_dataset_stops_by_name_and_its_next_start_continues(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    other = Stream(spark, tmp_path / "other")
    other.add(orders(100, 10))
    second = stream.sink(queryId="second", checkpointLocation=other.checkpoint, **FILL)
    for_all = {"queryId": "second", "checkpointLocation": other.checkpoint}

    def between(df: DataFrame, epoch_id: int) -> None:
        if epoch_id:  # the first query adds a column while the second one is between two epochs
            stream.run(stream.read().withColumn("x", F.col("id") + 1), **ADD)
        second(df, epoch_id)

    other.add(orders(110, 10))
    query = (
        other.read()
        .writeStream.foreachBatch(between)
        .option("checkpointLocation", other.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert isinstance(second.error, SchemaMismatchError)
    assert "was changed while query 'second' was running" in str(second.error)
    assert "missingColumns=null" in str(second.error)
    second.release()
    said = refused(stream, other.read(), **for_all)
    assert "column 'x' (int64) is missing from the stream" in said
    stream.run(other.read(), **for_all, **FILL)
    ids = [*range(10), *range(100, 120)]
    assert rows(stream, "id", "x") == [(n, n + 1 if n < 10 else None) for n in ids]


def test_what_was_begun_before_the_column_lands_after_it_or_not_at_all(stream: Stream) -> None:
    stream.run()
    for first in (50, 60):  # small fragments, to be compacted
        lance.write_dataset(orders(first, 10), stream.uri, mode="append")
    files = open_files(stream.checkpoint)

    def look() -> Checkpoint:
        return read_checkpoint(stream.checkpoint, files)

    # A driver, a plain writer and a compaction begin, and are held up.
    checkpoint, process = look(), ProcessIdentity.of(os.getpid())
    stale = DriverSession(open_dataset(stream.uri), "q", checkpoint, look=look)
    stale.prepare()
    place = (process.host, process.pid, process.start)
    stale.identify(Driver("stale", checkpoint.id or "", stream.checkpoint, "", "", *place))
    stale.claim(1)
    plan: Any = stale.begin(1)
    held = write_fragments(orders(10, 10), plan.port.dataset)
    before = stream.dataset
    plain = write_fragments(orders(70, 10), before)
    tasks = [each.execute(before) for each in Compaction.plan(before, {}).tasks]
    assert tasks
    # The next driver adds a column with the epoch that the stale one has in hand.
    stream.add(orders(10, 10))
    stream.run(stream.read().withColumn("x", F.col("id") + 1), **ADD)
    with pytest.raises(FencedError):
        plan.commit(Epoch(1, OutputMode.APPEND, list(held), 10, 0, utc_now()))
    append = lance.LanceOperation.Append(plain)
    with pytest.raises(CommitConflictError):
        lance.LanceDataset.commit(before, append, read_version=before.version)
    Compaction.commit(lance.dataset(stream.uri), tasks)
    append = lance.LanceOperation.Append(write_fragments(orders(70, 10), stream.dataset))
    lance.LanceDataset.commit(stream.uri, append, read_version=stream.dataset.version)
    ids = [*range(20), *range(50, 80)]
    assert rows(stream, "id", "x") == [(n, n + 1 if 10 <= n < 20 else None) for n in ids]
    lance.dataset(stream.uri).optimize.compact_files()
    assert rows(stream, "id", "x") == [(n, n + 1 if 10 <= n < 20 else None) for n in ids]


def test_a_replayed_epoch_adds_nothing_twice(stream: Stream) -> None:
    df = stream.read().withColumn("x", F.col("id"))
    stream.run(df, **ADD)
    stream.forget_last_commit()
    stream.run(df, **ADD)
    assert len(added(stream.uri)) == 1
    assert rows(stream, "id", "x") == [(n, n) for n in range(10)]


def test_a_dropped_columns_values_never_come_back_in_an_added_one(stream: Stream) -> None:
    stream.run(stream.read().withColumn("x", F.col("id")), **ADD)
    lance.dataset(stream.uri).drop_columns(["x"])
    stream.add(orders(10, 10))
    stream.run(stream.read().withColumn("x", F.col("id")), **ADD)
    assert rows(stream, "id", "x") == [(n, n if n >= 10 else None) for n in range(20)]


def test_what_the_page_types_works_as_typed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/schema-evolution.md").read_text()
    page = page.replace("/data/lance/orders.lance", stream.uri)
    page = page.replace("/data/checkpoints/orders", stream.checkpoint).replace("< 100", "< 1")
    start, function, rewrite = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^```bash\n(.*?)\n```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"LanceSink": LanceSink, "df": stream.read(), "F": F}
    exec(start, names)
    names["query"].awaitTermination()
    names["sink"].release()
    stream.add(orders(10, 10))
    names["sink"] = stream.sink(queryId="orders", **ADD)
    exec(function.replace(".start()", ".trigger(availableNow=True).start()"), names)
    names["query"].awaitTermination()
    names["sink"].release()
    assert rows(stream, "note") == [("new" if n >= 10 else None,) for n in range(20)]
    assert main(shlex.split(command)[1:]) == 0
    assert "epoch 1 added column note (string), query orders" in capsys.readouterr().out
    lance.dataset(stream.uri).add_columns({"quantity": "CAST(id AS INT)"})
    exec(rewrite, {"lance": lance, "pa": pa})
    assert stream.dataset.schema.field("quantity").type == pa.int64()


def test_a_wider_type_is_refused_at_the_first_value_that_does_not_fit(stream: Stream) -> None:
    lance.dataset(stream.uri).add_columns({"quantity": "CAST(id AS INT)"})
    wide = stream.read().withColumn("quantity", F.col("id") + (1 << 31) - 10)
    stream.run(wide, **ADD)
    stream.add(orders(10, 10))
    with pytest.raises(StreamingQueryException):
        stream.run(wide, **ADD)
    sink = stream.sink(**ADD)
    with pytest.raises(StreamingQueryException):
        sink.start(wide, availableNow=True).awaitTermination()
    said = str(sink.error)
    assert "'quantity' does not fit the dataset's int32 (the stream has int64)" in said
    assert "alter_columns" in said
    lance.dataset(stream.uri).alter_columns({"path": "quantity", "data_type": pa.int64()})
    stream.run(wide, **ADD)
    assert rows(stream, "quantity")[-1] == (19 + (1 << 31) - 10,)
