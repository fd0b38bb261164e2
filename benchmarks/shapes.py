"""Rows of many forms for the experiments on throughput, made by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Shape:
    """Rows of one form: how to read them back, how to make them, how many in an epoch.

    ``of`` names the class of rows in a claim, ``limit`` is that claim's: rows per second in
    multiples of the parquet sink's.
    """

    ddl: str
    columns: tuple[str, ...]
    rows: int
    of: str = "narrow rows and vectors"
    limit: float = 1.4


_WORDS = (
    "the order of a customer was paid by card and left our house on time but came back damaged so "
    "we sent another one which arrived late because its parcel had been lost between two depots"
)
_WORD = f"element_at(split('{_WORDS}', ' '), 1 + abs(hash(id, i)) % {len(_WORDS.split())})"
"""An expression of Spark's: one of few words, as texts repeat theirs."""


def _text(words: int) -> str:
    return f"concat_ws(' ', transform(sequence(1, {words}), i -> {_WORD}))"


SHAPES: Mapping[str, Shape] = {
    "narrow": Shape(
        "id BIGINT, value DOUBLE, label STRING, at TIMESTAMP",
        (
            "id",
            "rand(7) AS value",
            "concat('label-', id % 1000) AS label",
            "timestamp_seconds(1700000000 + id % 86400) AS at",
        ),
        2_000_000,
    ),
    "doubles": Shape(
        "a DOUBLE, b DOUBLE, c DOUBLE, d DOUBLE",
        ("rand(1) AS a", "rand(2) AS b", "randn(3) AS c", "randn(4) * 1e9 AS d"),
        2_000_000,
    ),
    "sorted ids": Shape(
        "id BIGINT, at TIMESTAMP",
        ("id", "timestamp_seconds(1700000000 + id / 100) AS at"),
        4_000_000,
    ),
    "few strings": Shape(
        "country STRING, state STRING, kind STRING, count BIGINT",
        (
            "concat('country-', hash(id) % 200) AS country",
            "element_at(array('new', 'open', 'paid', 'sent', 'lost'), 1 + abs(hash(id, 1)) % 5) "
            "AS state",
            "concat('kind-', hash(id, 2) % 40) AS kind",
            "abs(hash(id, 3)) % 100 AS count",
        ),
        2_000_000,
    ),
    "vectors": Shape(
        "id BIGINT, vector ARRAY<FLOAT>",
        ("id", "transform(sequence(1, 768), i -> CAST(sin(id * i) AS FLOAT)) AS vector"),
        30_000,
    ),
    "wide": Shape(
        ", ".join(f"c{i} {'BIGINT' if i % 2 else 'DOUBLE'}" for i in range(200)),
        tuple(
            f"CAST(hash(id, {i}) AS {'BIGINT' if i % 2 else 'DOUBLE'}) AS c{i}" for i in range(200)
        ),
        100_000,
    ),
    "text": Shape(
        "id BIGINT, text STRING", ("id", f"{_text(40)} AS text"), 1_500_000, "texts", 1.0
    ),
    "long text": Shape(
        "id BIGINT, text STRING", ("id", f"{_text(1500)} AS text"), 30_000, "texts", 1.0
    ),
    "json": Shape(
        "id BIGINT, body STRING",
        (
            "id",
            "to_json(struct(id, uuid() AS event, concat('user-', id % 5000) AS user, "
            "round(rand(5) * 1000, 2) AS price, id % 7 AS kind)) AS body",
        ),
        1_000_000,
        "texts",
        1.0,
    ),
    "nested": Shape(
        "id BIGINT, who STRUCT<name: STRING, age: INT>, "
        "items ARRAY<STRUCT<sku: STRING, count: INT>>",
        (
            "id",
            "named_struct('name', concat('user-', hash(id) % 10000), 'age', "
            "CAST(id % 90 AS INT)) AS who",
            "transform(sequence(1, 1 + CAST(id % 4 AS INT)), i -> named_struct('sku', "
            "concat('sku-', hash(id, i) % 3000), 'count', i)) AS items",
        ),
        600_000,
        "texts",
        1.0,
    ),
}


def make_input(spark: SparkSession, folder: Path, shape: Shape, rows: int, files: int) -> None:
    """Write the source files of one shape."""
    spark.range(rows, numPartitions=files).selectExpr(*shape.columns).write.parquet(str(folder))
