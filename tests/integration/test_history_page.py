"""What the page about history tells to type, typed as it is: real Spark, Lance and DuckDB."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec

PAGE = Path(__file__).parents[2] / "docs/how-to/cdc.md"

CHANGES = {
    "id": [1, 1, 2, 2, 3],
    "city": ["Lyon", "Nice", "Bonn", None, "Graz"],
    "op": ["U", "U", "U", "D", "U"],
    "lsn": [300, 100, 200, 260, 400],
}
NOW, THEN = [(1, "Lyon"), (3, "Graz")], [(1, "Nice"), (2, "Bonn")]


def typed(word: str, tmp_path: Path) -> str:
    section = PAGE.read_text().split("\n## History\n")[1].split("\n## ")[0]
    found = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    (text,) = (each for each in found if word in each)
    return str(text).replace("/data/", f"{tmp_path}/")


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the page's stream over a few changes."""
    extra = {"base_uri": str(tmp_path), "checkpoint_root": str(tmp_path / "checkpoints")}
    connection = json.dumps({"conn_type": "lance", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_LANCE_DEFAULT", connection)
    (tmp_path / "changes").mkdir()
    pq.write_table(pa.table(CHANGES), tmp_path / "changes/1.parquet")
    text = typed("LanceStreamOperator", tmp_path)
    task: LanceStreamOperator = eval(text, {"LanceStreamOperator": LanceStreamOperator})
    summary = run(spark, JobSpec.loads(task.job_spec("a/test").dumps()))
    assert summary.error is None, summary.message
    return tmp_path


def test_now_and_as_of_with_pylance_and_spark(spark: SparkSession, history: Path) -> None:
    names: dict[str, Any] = {"spark": spark}
    exec(typed("versions.to_table(filter", history), names)
    for name, expected in (("now", NOW), ("then", THEN)):
        rows = [(row["id"], row["city"]) for row in names[name].to_pylist()]
        assert sorted(rows) == expected
    exec(typed("spark.sql", history), names)
    for name, expected in (("now", NOW), ("then", THEN)):
        assert sorted(tuple(row) for row in names[name].collect()) == expected


def test_now_and_as_of_with_duckdb(history: Path) -> None:
    pytest.importorskip("duckdb")
    names: dict[str, Any] = {}
    exec(typed("duckdb", history), names)
    assert (names["now"], names["then"]) == (NOW, THEN)
