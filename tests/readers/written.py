"""A dataset of all types that the sink writes, and what a batch of Spark says its rows are.

All values come from a row's number, so each stage of the dataset is known without reading it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests.support.sparkstream import Stream

VALUES = {
    "flag": "n % 3 = 0",
    "tiny": "CAST(n % 100 - 50 AS TINYINT)",
    "small": "CAST(n % 60000 - 30000 AS SMALLINT)",
    "whole": "CAST(n AS INT)",
    "big": "IF(n = 1, 9223372036854775807, n * 900719925474099)",
    "real": "CAST(n / 7 AS FLOAT)",
    "precise": "CASE n % 5 WHEN 0 THEN double('NaN') WHEN 1 THEN double('-Infinity') "
    "WHEN 2 THEN double('-0.0') ELSE n / 3D END",
    "money": "CAST(n / 100 AS DECIMAL(9, 2))",
    "exact": "CAST(concat('1234567890123456789012345', n % 10, '.0123456789') AS DECIMAL(38, 10))",
    "label": "concat('ünïcode ', n, if(n % 4 = 0, '', repeat('x', int(n % 50))))",
    "kind": "element_at(array('red', 'green', ''), int(n % 3) + 1)",
    "raw": "unhex(concat('00FF', lpad(hex(n), 8, '0')))",
    "day": "date_add(DATE'1969-12-01', int(n))",
    "at": "TIMESTAMP'1969-12-31 23:59:59.123456+00:00' + make_dt_interval(0, int(n))",
    "local": "TIMESTAMP_NTZ'2026-03-29 02:30:00.000001' + make_dt_interval(0, int(n))",
    "span": "make_dt_interval(int(n), 0, 0, 0.000001)",
    # Spark cannot collect a null struct that has a field which is never null.
    "nested": "named_struct('a', n, 'b', IF(n % 11 = 10, NULL, named_struct('c', IF(n % 5 = 4, "
    "NULL, concat('c', n)), 'tags', IF(n % 13 = 12, NULL, array(named_struct('k', IF(n % 2 = 0, "
    "'x', NULL), 'v', CAST(n AS FLOAT)), NULL)))))",
    "words": "array('one', NULL, concat('w', n))",
    "pairs": "map('one', n, 'none', CAST(NULL AS BIGINT))",
    "vector": "transform(sequence(0, 7), i -> CAST((n * 7919 + i * 104729) % 1000 AS FLOAT))",
}
ADDED = {"added": "concat('new ', n)"}
DDL = "id BIGINT, n BIGINT, op STRING"
STAGES = ("appended", "upserted", "compacted", "evolved")
"""Each is the dataset after one more step."""


@dataclass(frozen=True)
class Written:
    """The datasets by stage, and the rows of each as a batch of Spark computes them."""

    uris: Mapping[str, str]
    rows: Mapping[str, pa.Table]


def columns(df: DataFrame, *more: str, values: Mapping[str, str] = VALUES) -> DataFrame:
    """Return the columns for each row's number ``n``; every seventh row has nulls."""
    made = (f"IF(n % 7 = 6, NULL, {value}) AS `{name}`" for name, value in values.items())
    return df.selectExpr("id", *made, *more)


def write(spark: SparkSession, folder: Path) -> Written:
    """Write the dataset in four steps, and keep a copy after each."""
    uri, known = str(folder / "table.lance"), {n: n for n in range(300)}
    uris, rows = {}, {}

    def keep(stage: str, values: Mapping[str, str] = VALUES) -> None:
        uris[stage] = shutil.copytree(uri, folder / f"{stage}.lance").as_posix()
        numbers = spark.createDataFrame(sorted(known.items()), "id BIGINT, n BIGINT")
        rows[stage] = columns(numbers, values=values).toArrow()

    vectors = {"createIfMissing": True, "vectorSizes": {"vector": 8}}
    files = [[(n, n, "I") for n in range(first, first + 100)] for first in (0, 100, 200)]
    _stream(spark, folder / "append", uri, files, **vectors)
    keep("appended")

    changes = [(n, n + 1000, "D" if n % 10 == 0 else "U") for n in range(50, 250)]
    upsert = {"outputMode": "update", "mergeKeys": "id", "deleteWhen": "op = 'D'"}
    _stream(spark, folder / "upsert", uri, [changes[:150], changes[150:]], "op", **upsert)
    known |= {row: number for row, number, _ in changes}
    known = {row: n for row, n in known.items() if not (50 <= row < 250 and row % 10 == 0)}
    keep("upserted")

    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=100)
    keep("compacted")

    values = VALUES | ADDED
    more = [[(n, n, "I") for n in range(300, 350)]]
    grow = {"schemaEvolution": "addColumns"}
    _stream(spark, folder / "evolve", uri, more, values=values, **grow)
    fewer = [[(n, n + 5000, "D" if n % 2 else "U") for n in range(290, 310)]]
    _stream(spark, folder / "again", uri, fewer, "op", values=values, **upsert)
    known |= {n: n for n in range(310, 350)} | {n: n + 5000 for n in range(290, 310, 2)}
    known = {row: n for row, n in known.items() if not (290 <= row < 310 and row % 2)}
    grown = {row for row in known if row >= 290 and (row >= 310 or row % 2 == 0)}
    in_column = ", ".join(map(str, sorted(grown)))
    keep("evolved", VALUES | {"added": f"IF(id IN ({in_column}), {ADDED['added']}, NULL)"})
    return Written(uris, rows)


def _stream(
    spark: SparkSession,
    folder: Path,
    uri: str,
    files: list[list[tuple[int, int, str]]],
    *more: str,
    values: Mapping[str, str] = VALUES,
    **options: Any,
) -> None:
    stream = Stream(spark, folder, ddl=DDL)
    for file in files:
        ids, numbers, ops = zip(*file, strict=True)
        stream.add(pa.table({"id": ids, "n": numbers, "op": ops}))
    rows = columns(stream.read(), *more, values=values)
    stream.run(rows, **{"uri": uri, "queryId": folder.name, **options})
