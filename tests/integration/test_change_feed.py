"""Upserts through the sink, as a change feed of the dataset shows them: real Spark, real Lance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import SpecError
from tests.support.feeds import Feed, feed, lineage
from tests.support.sparkstream import Stream, orders

DDL = "id BIGINT, name STRING, op STRING"
UPSERT = {
    "outputMode": "update",
    "mergeKeys": ["id"],
    "deleteWhen": "op = 'D'",
    "createIfMissing": True,
    "changeFeed": True,
}
BOTH_WAYS = pytest.mark.parametrize("small", [20_000, 0], ids=["by the driver", "by executors"])


def changes(name: str, *, upserts: range, deletes: range = range(0)) -> pa.Table:
    ids = [*reversed(upserts), *deletes]
    ops = ["U"] * len(upserts) + ["D"] * len(deletes)
    return pa.table({"id": ids, "name": [f"{name}{n}" for n in ids], "op": ops})


def upsert(stream: Stream, *epochs: pa.Table, **options: Any) -> list[int]:
    """Write each table as one epoch, in three tasks; return the versions that hold the epochs."""
    for each in epochs:
        stream.add(each)
    done = len(stream.epochs()) if Path(stream.uri).exists() else 0
    stream.run(stream.read().repartition(3), **UPSERT | options)
    return [stamp.version for stamp in stream.epochs()][done:]


def rows(name: str, ids: range) -> dict[int, dict[str, Any]]:
    return {n: {"id": n, "name": f"{name}{n}", "op": "U"} for n in ids}


@BOTH_WAYS
def test_upserts_appear_as_inserts_updates_and_deletes(
    spark: SparkSession, tmp_path: Path, small: int
) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    first, second, third = upsert(
        stream,
        changes("a", upserts=range(100)),
        changes("b", upserts=range(50, 120), deletes=range(10, 20)),
        changes("c", upserts=range(110, 115), deletes=range(1000, 1005)),
        smallEpochRows=small,
        targetRowsPerFragment=20,
    )
    born = lineage(stream.uri, first)
    assert feed(stream.uri, first) == Feed(rows("a", range(100)), {}, set())
    assert feed(stream.uri, second) == Feed(
        inserted=rows("b", range(100, 120)),
        updated=rows("b", range(50, 100)),
        deleted={born[n].row_id for n in range(10, 20)},
    )
    assert feed(stream.uri, third) == Feed({}, rows("c", range(110, 115)), set())
    stream.dataset.optimize.compact_files()
    (fourth,) = upsert(stream, changes("d", upserts=range(95, 130)), smallEpochRows=small)
    assert feed(stream.uri, fourth) == Feed(
        rows("d", range(120, 130)), rows("d", range(95, 120)), set()
    )
    now = lineage(stream.uri)
    assert sorted(now) == [*range(10), *range(20, 130)]
    for n in range(20, 100):
        assert (now[n].row_id, now[n].created) == (born[n].row_id, first)
    assert {now[n].updated for n in range(95, 130)} == {fourth}
    assert {now[n].created for n in range(100, 120)} == {second}


@BOTH_WAYS
def test_a_replayed_epoch_changes_nothing(spark: SparkSession, tmp_path: Path, small: int) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    upsert(stream, changes("a", upserts=range(10)), smallEpochRows=small)
    (second,) = upsert(stream, changes("b", upserts=range(5, 15)), smallEpochRows=small)
    before = lineage(stream.uri)
    stream.forget_last_commit()
    assert upsert(stream, smallEpochRows=small) == []
    assert lineage(stream.uri) == before
    assert feed(stream.uri, second).updated == rows("b", range(5, 10))


@BOTH_WAYS
def test_several_keys_under_an_index_keep_row_ids(
    spark: SparkSession, tmp_path: Path, small: int
) -> None:
    stream = Stream(spark, tmp_path)
    options = {"mergeKeys": ["grp", "id"], "deleteWhen": None, "smallEpochRows": small}
    (first,) = upsert(stream, orders(0, 300), **options)
    stream.dataset.create_scalar_index("id", "BTREE")
    born = lineage(stream.uri, first)
    # Another group makes another row: half of these keys are new.
    groups = pa.array(["new"] * 10 + [f"g{n % 3}" for n in range(10, 20)])
    moved = orders(0, 20).set_column(1, "grp", groups)
    (second,) = upsert(stream, moved, **options)
    seen = feed(stream.uri, second)
    assert (sorted(seen.inserted), sorted(seen.updated)) == (list(range(10)), list(range(10, 20)))
    assert seen.deleted == set()
    stream.dataset.optimize.optimize_indices()
    (third,) = upsert(stream, orders(15, 2), **options)
    assert sorted(feed(stream.uri, third).updated) == [15, 16]
    now = stream.dataset.to_table(filter="id = 15", with_row_id=True)["_rowid"].to_pylist()
    assert now == [born[15].row_id]


def test_complete_mode_appears_as_deletes_and_inserts(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    options = {"outputMode": "complete", "mergeKeys": (), "deleteWhen": None}
    counts = stream.read().groupBy("grp").count()
    for n in range(2):
        stream.add(orders(n * 3, 3))
    stream.run(counts, **UPSERT | options)
    first, second = (stamp.version for stamp in stream.epochs())
    born = lineage(stream.uri, first, "grp")
    seen = feed(stream.uri, second, "grp")
    assert (sorted(seen.inserted), seen.updated) == (["g0", "g1", "g2"], {})
    assert seen.deleted == {each.row_id for each in born.values()}


def test_a_dataset_without_stable_row_ids_is_refused_untouched(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    stream.add(orders(0, 3))
    with pytest.raises(
        SpecError,
        match=rf"changeFeed=true needs .* and {stream.uri} \(version 1\) was created without them",
    ):
        stream.run(changeFeed=True)
    assert stream.dataset.version == 1
    assert not Path(stream.checkpoint).exists()
    stream.run()
    assert stream.dataset.count_rows() == 3
