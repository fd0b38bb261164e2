"""`scdType=2` through the sink against a plain history: real Spark, real Lance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import SchemaMismatchError, SpecError
from tests.support.history import DELETE, TRUNCATE, UPSERT, Record, history
from tests.support.sparkstream import Stream

DDL = "id BIGINT, name STRING, note STRING, op STRING, lsn BIGINT, part INT"
SCD2 = {
    "outputMode": "update",
    "mergeKeys": ["id"],
    "sequenceBy": ["lsn"],
    "scdType": 2,
    "deleteWhen": "op = 'D'",
    "truncateWhen": "op = 'T'",
    "exceptColumns": ["op", "lsn", "part"],
    "createIfMissing": True,
}
BOTH_WAYS = pytest.mark.parametrize("small", [20_000, 0], ids=["by the driver", "by executors"])


def epoch(records: list[Record]) -> pa.Table:
    values = [each.values or (None, None) for each in records]
    columns = {
        "id": pa.array([each.key for each in records], pa.int64()),
        "name": pa.array([name for name, _ in values], pa.string()),
        "note": pa.array([note for _, note in values], pa.string()),
        "op": ["UDT"[each.operation] for each in records],
        "lsn": pa.array([each.sequence for each in records], pa.int64()),
        "part": pa.array([each.sequence % 3 for each in records], pa.int32()),
    }
    return pa.table(columns)


def drawn(seed: int, count: int, *, truncates: bool = True) -> list[list[Record]]:
    """Draw records of some keys, some twice, shuffled, in epochs."""
    draw = random.Random(seed)
    records = []
    for sequence in range(count):
        key, kind = draw.randrange(count // 8 + 1), draw.random()
        if truncates and kind < 0.02:
            records.append(Record(TRUNCATE, sequence))
        elif kind < 0.2:
            records.append(Record(DELETE, sequence, key))
        else:
            values = (draw.choice("xyz"), str(draw.randrange(3)))
            records.append(Record(UPSERT, sequence, key, values))
    records += draw.sample(records, count // 10)
    draw.shuffle(records)
    cuts = sorted(draw.sample(range(1, len(records)), 4))
    return [records[a:b] for a, b in zip([0, *cuts], [*cuts, len(records)], strict=True)]


def stored(uri: str) -> dict[Any, Any]:
    rows = lance.dataset(uri).to_table().to_pylist()
    found = {
        (row["id"], plain(row["__start_at"])): (plain(row["__end_at"]), (row["name"], row["note"]))
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def plain(sequence: Any) -> Any:
    return sequence["lsn"] if isinstance(sequence, dict) else sequence


@BOTH_WAYS
@pytest.mark.parametrize("tracked", [(), ("name",)], ids=["all", "tracked"])
def test_the_table_is_the_plain_history(
    spark: SparkSession, tmp_path: Path, small: int, tracked: tuple[str, ...]
) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    epochs = drawn(seed=small + len(tracked), count=400)
    for number, each in enumerate(epochs):
        stream.add(epoch(each))
        if number in (1, 3):  # two runs; the first two epochs of a run are always by executors
            stream.run(**SCD2, smallEpochRows=small, trackHistoryColumns=tracked)
    stream.run(**SCD2, smallEpochRows=small, trackHistoryColumns=tracked)
    positions = [0] if tracked else []
    assert stored(stream.uri) == history(epochs, positions)


def test_a_sequence_of_several_columns_is_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    epochs = drawn(seed=7, count=150)
    for each in epochs:
        stream.add(epoch(each))
    stream.run(**SCD2 | {"sequenceBy": ["lsn", "part"]})
    table = lance.dataset(stream.uri).to_table()
    assert table.schema.field("__end_at").type == pa.struct(
        [pa.field("lsn", pa.int64()), pa.field("part", pa.int32())]
    )
    assert stored(stream.uri) == history(epochs)


def test_an_existing_dataset_without_validity_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    stream.create(pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())]))
    with pytest.raises(SchemaMismatchError, match=r"no columns \['__start_at', '__end_at'\]"):
        stream.run(**SCD2)


def test_a_stream_column_with_the_name_of_one_of_validity_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    df = stream.read().withColumnRenamed("note", "__END_at")
    with pytest.raises(SchemaMismatchError, match="'__END_at' of the stream has a name"):
        stream.run(df, **SCD2)


def test_unknown_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    with pytest.raises(SchemaMismatchError, match=r"trackHistoryColumns \['nme'\] are not"):
        stream.run(**SCD2, trackHistoryColumns=["nme"])
    with pytest.raises(SchemaMismatchError, match=r"sequenceBy \['lsm'\] are not"):
        stream.run(**SCD2 | {"sequenceBy": ["lsm"]})


def test_stable_row_ids_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    stream.run(**SCD2 | {"changeFeed": False})
    lance.write_dataset(
        lance.dataset(stream.uri).schema.empty_table(),
        str(tmp_path / "other.lance"),
        enable_stable_row_ids=True,
    )
    with pytest.raises(SpecError, match="whose row ids are stable"):
        stream.run(**SCD2 | {"uri": str(tmp_path / "other.lance")})


def test_a_new_column_of_the_stream_is_added_to_the_history(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, ddl=DDL)
    stream.add(epoch([Record(UPSERT, 1, 1, ("x", "a")), Record(UPSERT, 5, 1, ("y", "b"))]))
    stream.run(**SCD2)
    stream.ddl += ", city STRING"
    late = epoch([Record(UPSERT, 3, 1, ("z", "c"))])
    stream.add(late.append_column("city", pa.array(["Graz"])))
    stream.run(**SCD2, schemaEvolution="addColumns")
    rows = lance.dataset(stream.uri).to_table().sort_by("__start_at").to_pylist()
    assert [(r["__start_at"], r["__end_at"], r["name"], r["city"]) for r in rows] == [
        (1, 3, "x", None),
        (3, 5, "z", "Graz"),
        (5, None, "y", None),
    ]
