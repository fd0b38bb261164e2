"""What the sink wrote, read by the tools of the lock; `python -m tests.readers` has more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.readers.compare import compared
from tests.readers.read import TOOLS, checksum, checksums
from tests.readers.spark import with_spark
from tests.readers.written import STAGES, Written, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(spark.newSession(), tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("tool", ["pylance", "pandas"])
def test_every_value_of_every_stage_is_read_by(tool: str, written: Written) -> None:
    for stage in STAGES:
        said = {"version": "", "columns": checksums(written.uris[stage], TOOLS[tool])}
        assert compared(tool, stage, said, written).wrong == {}, stage


def test_every_value_of_every_stage_is_read_by_spark(
    spark: SparkSession, tmp_path: Path, written: Written
) -> None:
    for stage in STAGES:
        said = with_spark(spark, written.uris[stage], tmp_path / stage)
        assert compared("spark", stage, said, written).wrong == {}, stage


def test_a_value_that_changed_a_lost_row_and_a_column_without_an_answer_are_found(
    written: Written,
) -> None:
    stage = STAGES[0]
    rows = written.rows[stage]
    good = {name: checksum(rows, name) for name in rows.column_names}
    for name in rows.column_names[1:]:
        swapped = pa.table({"id": rows["id"], name: rows[name].take([1, 0, *range(2, len(rows))])})
        said = {"version": "", "columns": good | {name: checksum(swapped, name)}}
        assert set(compared("x", stage, said, written).wrong) == {name}
    lost = {"version": "", "columns": {"id": checksum(rows.slice(1), "id")}}
    wrong = compared("x", stage, lost, written).wrong
    assert wrong["vector"] == "missing"
    assert set(wrong) == set(good)
