"""What Spark's plan says of a Lance source: a loop, and the columns that a query needs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spark.source import register_source
from airflow_provider_lance.spark.streaming_plan import needed_columns, read_less
from airflow_provider_lance.spec.job import JobSpec

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("a b", pa.string()),
    ]
)
ROWS = [
    {
        "id": number,
        "amount": None if number == 3 else number / 2,
        "at": datetime(2026, 1, 1, number, tzinfo=UTC),
        "place": {"city": f"c{number}", "zip": "1"},
        "tags": ["x", "y"],
        "a b": f"t{number}",
    }
    for number in range(5)
]

Read = Callable[..., DataFrame]


@pytest.fixture
def source(tmp_path: Path) -> str:
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(pa.Table.from_pylist(ROWS, SCHEMA), uri, enable_stable_row_ids=True)
    return uri


@pytest.fixture
def read(spark: SparkSession, source: str) -> Read:
    """Read the dataset as a stream; it is the view `source` then."""
    register_source(spark)

    def stream(name: str = "lance", **options: str) -> DataFrame:
        df = spark.readStream.format(name).options(path=source, **options).load()
        df.createOrReplaceTempView("source")
        return df

    return stream


@pytest.mark.parametrize(
    ("sql", "needed"),
    [
        ("SELECT amount * 2 AS twice, upper(`a b`) FROM source", ["amount", "a b"]),
        ("SELECT * FROM source", None),
        ("SELECT * FROM source WHERE amount > 1", None),
        ("SELECT * EXCEPT (tags) FROM source", ["id", "amount", "at", "place", "a b"]),
        ("SELECT id FROM source WHERE amount > 1", ["id", "amount"]),
        ("SELECT id FROM (SELECT * FROM source WHERE at > '2020-01-01') s", ["id", "at"]),
        ("SELECT place.city FROM source", ["place"]),
        ("SELECT sum(amount) AS total FROM source GROUP BY window(at, '1 hour')", ["amount", "at"]),
        ("SELECT count(*) AS n FROM source", []),
        ("SELECT id, tag FROM source LATERAL VIEW explode(tags) t AS tag", ["id", "tags"]),
        ("SELECT max_by(struct(*), at) AS latest FROM source GROUP BY id", None),
        (
            "SELECT a.id FROM source a JOIN dim d ON a.id = d.id WHERE a.amount > 1",
            ["id", "amount"],
        ),
        ("SELECT id FROM source UNION ALL SELECT 1 FROM source WHERE amount > 1", ["id", "amount"]),
        ("SELECT id FROM source UNION ALL SELECT id FROM (SELECT * FROM source)", ["id"]),
        ("SELECT b FROM source AS s(a, b, c, d, e, f)", ["amount"]),
        ("SELECT struct(*) AS everything FROM source", None),
    ],
)
def test_the_columns_that_sql_needs(
    spark: SparkSession, read: Read, sql: str, needed: list[str] | None
) -> None:
    read()
    spark.range(3).createOrReplaceTempView("dim")
    found = needed_columns(spark.sql(sql))
    assert found == needed or (needed is None and found == SCHEMA.names)


def test_the_columns_of_an_aggregation_with_a_watermark(read: Read) -> None:
    hours = F.window("at", "1 hour")
    df = read().withWatermark("at", "1 hour").groupBy(hours).agg(F.sum("amount"))
    assert needed_columns(df) == ["amount", "at"]
    assert needed_columns(read().withWatermark("at", "1 hour").dropDuplicates(["id"])) is None


def test_the_columns_of_the_change_feed_are_always_read(spark: SparkSession, read: Read) -> None:
    df = read(readChangeFeed="true")
    found = needed_columns(spark.sql("SELECT _change_type, amount FROM source"))
    assert found == ["amount", "_change_type"]
    reader = spark.readStream.format("lance").options(path=_path(df), readChangeFeed="true")
    less = read_less(df, found, reader)
    assert less is not None
    assert _read(less) == ["id", "amount"]  # no null takes the place of a column without nulls
    assert less.schema.names == df.schema.names
    only = read_less(df, ["_change_type"], reader)
    assert only is not None
    assert _read(only) == ["id"]
    assert read_less(df, SCHEMA.names, reader) is None


def _relation(df: DataFrame) -> Any:
    java: Any = df._jdf
    return java.queryExecution().analyzed().collectLeaves().apply(0)


def _path(df: DataFrame) -> str:
    return str(_relation(df).extraOptions().get("path"))


def _read(df: DataFrame) -> list[str]:
    return str(_relation(df).extraOptions().get("columns")).split(",")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, amount FROM source WHERE amount IS NOT NULL",
        "SELECT * EXCEPT (tags) FROM source",
        "SELECT count(*) AS n, count(id) AS ids, count(amount) AS amounts FROM source",
        "SELECT b AS amount FROM source AS s(a, b, c, d, e, f) WHERE coalesce(d.city, '') != 'c1'",
        "SELECT 1 AS one FROM source",
    ],
)
def test_a_job_that_reads_less_writes_the_same_rows(
    spark: SparkSession, source: str, tmp_path: Path, sql: str
) -> None:
    def rows(**options: str) -> pa.Table:
        name = f"out-{len(options)}"
        spec = {
            "launchId": name,
            "source": {"format": "lance", "options": {"path": source, **options}},
            "sql": sql,
            "sink": {
                "uri": str(tmp_path / f"{name}.lance"),
                "queryId": "q",
                "checkpointLocation": str(tmp_path / f"checkpoint-{name}"),
                "createIfMissing": True,
                "outputMode": "complete" if "count" in sql else "append",
            },
        }
        summary = run(spark, JobSpec.parse(spec))
        assert summary.error is None, summary.message
        return lance.dataset(str(tmp_path / f"{name}.lance")).to_table()

    every = rows(columns=",".join(SCHEMA.names))
    assert every.num_rows
    assert rows().equals(every)


@pytest.mark.parametrize("name", ["lance", "lance_stream"])
@pytest.mark.parametrize("place", ["{0}", "file://{0}", "{0}/data", "{1}", "{2}/../orders.lance"])
def test_a_sink_refuses_its_own_dataset_as_the_source(
    read: Read, source: str, tmp_path: Path, name: str, place: str
) -> None:
    link = tmp_path / "link.lance"
    link.symlink_to(source)
    uri = place.format(source, link, tmp_path / "x")
    sink = LanceSink(uri=uri, queryId="q", checkpointLocation=str(tmp_path / "checkpoint"))
    before = lance.dataset(source).version
    with pytest.raises(SpecError, match="would read its own rows for ever"):
        sink.start(read(name).select("id").where("id > 1"), availableNow=True)
    assert lance.dataset(source).version == before
    assert not (tmp_path / "checkpoint").exists()


def test_a_sink_finds_its_own_dataset_beside_another_source(
    spark: SparkSession, read: Read, source: str, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate").load().select(F.col("value").alias("id"))
    both = rate.unionByName(read().select("id"))
    sink = LanceSink(uri=source, queryId="q", checkpointLocation=str(tmp_path / "checkpoint"))
    with pytest.raises(SpecError, match="would read its own rows for ever"):
        sink.start(both, availableNow=True)
