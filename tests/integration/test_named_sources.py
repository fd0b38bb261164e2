"""Named sources: one query whose sources are added and removed under one checkpoint; real Spark.

Spark 4.3 has it (`spark.sql.streaming.queryEvolution.enableSourceEvolution`, `.name()`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from airflow_provider_lance.cli.main import main
from airflow_provider_lance.diagnostics.epochs import read_epochs
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.files import open_files
from tests.support.sparkstream import Stream, orders

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
OFFSET_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"

pytestmark = pytest.mark.skipif(
    not hasattr(DataStreamReader, "name"), reason="this PySpark has no named sources"
)


@pytest.fixture(autouse=True)
def evolution(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(EVOLUTION, "true")
    spark.conf.set(OFFSET_FORMAT, "2")
    yield
    spark.conf.unset(EVOLUTION)
    spark.conf.unset(OFFSET_FORMAT)


def source(stream: Stream, name: str) -> DataFrame:
    folder = stream.root / name
    folder.mkdir(exist_ok=True)
    reader = stream.spark.readStream.name(name).schema(stream.ddl)
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))


def add(stream: Stream, name: str, rows: pa.Table) -> None:
    other = Stream(stream.spark, stream.root)
    other.source = stream.root / name
    other.source.mkdir(exist_ok=True)
    other.add(rows)


def ids(stream: Stream) -> list[int]:
    found: list[int] = stream.table().column("id").sort().to_pylist()
    return found


def test_sources_are_added_and_removed_under_one_checkpoint(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(spark, tmp_path)
    stream.create()
    add(stream, "eu", orders(0, 10))
    stream.run(source(stream, "eu"))
    add(stream, "us", orders(100, 10))
    add(stream, "eu", orders(10, 10))
    stream.run(source(stream, "eu").union(source(stream, "us")))
    assert ids(stream) == [*range(20), *range(100, 110)]
    add(stream, "us", orders(110, 10))
    add(stream, "eu", orders(20, 10))  # not read any more
    stream.run(source(stream, "us"))
    assert ids(stream) == [*range(20), *range(100, 120)]
    assert Path(stream.checkpoint, "offsets", "2").read_text().startswith("v2\n")
    # What is stamped, what the checkpoint says, and what people see agree, by name.
    stamped = [stamp.ends.lines for stamp in stream.epochs() if stamp.ends]
    assert [{line.split(":")[0] for line in lines or ()} for lines in stamped] == [
        {"eu"},
        {"eu", "us"},
        {"us"},
    ]
    seen = read_checkpoint(stream.checkpoint, open_files(stream.checkpoint), with_ends=True)
    assert seen.ends[2] == stamped[2]
    newest, middle, _ = read_epochs(open_dataset(stream.uri), "q").rows
    assert middle.start_offsets == ('eu:{"logOffset":0}', "us:-")
    assert newest.start_offsets == ('us:{"logOffset":0}',)
    assert newest.end_offsets == ('us:{"logOffset":1}',)
    assert main(["epochs", stream.uri, "q", "--offsets"]) == 0
    shown = capsys.readouterr().out
    assert "us:" in shown
    assert "eu:" in shown
    # A replay of the newest epoch is recognised, with its names.
    stream.forget_last_commit()
    stream.run(source(stream, "us"))
    assert ids(stream) == [*range(20), *range(100, 120)]
