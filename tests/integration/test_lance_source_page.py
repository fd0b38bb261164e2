"""What the page about the Lance source tells to type, typed as it is: real Spark, real Lance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.protocol.consumers import read_consumers
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spec.job import JobSpec

DOCS = Path(__file__).parents[2] / "docs/how-to"

Stream = Callable[..., dict[str, Any]]


def python_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Run the stream of one example of the page once, in this process; return its summary."""
    extra = {"base_uri": str(tmp_path), "checkpoint_root": str(tmp_path / "checkpoints")}
    connection = json.dumps({"conn_type": "lance", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_LANCE_DEFAULT", connection)

    def once(uri: str) -> dict[str, Any]:
        (text,) = (each for each in python_of("lance-source.md") if f'uri="{uri}"' in each)
        names = {"LanceStreamOperator": LanceStreamOperator}
        task: LanceStreamOperator = eval(text.replace("/data/landing", f"{tmp_path}/in"), names)
        summary = run(spark, JobSpec.loads(task.job_spec("a/test").dumps()))
        assert summary.error is None, summary.message
        return summary.to_json()

    return once


def rows(uri: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = lance.dataset(str(uri)).to_table(columns=list(columns))
    return sorted(tuple(each.values()) for each in table.to_pylist())


def test_one_dataset_feeds_another(stream: Stream, tmp_path: Path) -> None:
    source = tmp_path / "orders.lance"
    for first in (0, 3):
        orders = {"id": [first, first + 1, first + 2], "amount": [50.0, 150.0, 250.0]}
        lance.write_dataset(pa.table(orders), source, mode="append" if first else "create")
    assert stream("large_orders.lance")["rows"] == 4
    assert rows(tmp_path / "large_orders.lance", "id") == [(1,), (2,), (4,), (5,)]
    lance.write_dataset(pa.table({"id": [6], "amount": [101.0]}), source, mode="append")
    assert stream("large_orders.lance")["rows"] == 1
    assert stream("large_orders.lance")["rows"] == 0


def test_a_copy_follows_every_change(stream: Stream, tmp_path: Path) -> None:
    landing = tmp_path / "in" / "customers"
    landing.mkdir(parents=True)
    changes = [
        [(1, "Oslo", False), (2, "Bergen", False), (3, "Bodø", False)],
        [(1, "Tromsø", False), (2, "Bergen", True), (4, "Hamar", False)],
        [(3, "Bodø", True), (2, "Voss", False)],
    ]
    for number, epoch in enumerate(changes):
        lines = [dict(zip(("id", "city", "deleted"), each, strict=True)) for each in epoch]
        text = "\n".join(json.dumps(each) for each in lines)
        (landing / f"{number}.json").write_text(text)
        stream("customers.lance")
        if number != 1:  # two versions in one run
            stream("customers_copy.lance")
    expected = [(1, "Tromsø"), (2, "Voss"), (4, "Hamar")]
    assert rows(tmp_path / "customers.lance", "id", "city") == expected
    assert rows(tmp_path / "customers_copy.lance", "id", "city") == expected


def test_three_lines_of_plain_spark(spark: SparkSession, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": range(100)}), tmp_path / "orders.lance")
    (text,) = (each for each in python_of("spark-without-airflow.md") if "register_source" in each)
    names: dict[str, Any] = {"spark": spark}
    exec(text.replace("/data/lance", str(tmp_path)), names)
    sink = LanceSink(
        uri=str(tmp_path / "copy.lance"),
        queryId="copy",
        checkpointLocation=str(tmp_path / "checkpoint"),
        createIfMissing=True,
    )
    sink.start(names["orders"], availableNow=True).awaitTermination()
    assert sink.release()
    assert rows(tmp_path / "copy.lance", "id") == [(number,) for number in range(100)]


def test_a_users_function_reads_lance_and_leaves_its_position(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "orders.lance"
    lance.write_dataset(pa.table({"id": range(10)}), source)
    (tmp_path / "reads_lance.py").write_text(
        "def rows(spark, arguments):\n"
        "    reader = spark.readStream.format('lance').options(**arguments)\n"
        "    return reader.load().where('id > 3')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = {
        "launchId": "launch",
        "dataframe": "reads_lance:rows",
        "arguments": {"path": str(source), "consumerId": "mine"},
        "sink": {
            "uri": str(tmp_path / "copy.lance"),
            "queryId": "copy",
            "checkpointLocation": str(tmp_path / "checkpoint"),
            "createIfMissing": True,
        },
    }
    summary = run(spark, JobSpec.parse(spec))
    assert (summary.error, summary.rows) == (None, 6), summary.message
    (left,) = read_consumers(lance.dataset(str(source)).config(), 2).readable
    assert (left.consumer_id, left.uri) == ("mine", str(tmp_path / "copy.lance"))
    assert str(left.offset) == "version 1"
