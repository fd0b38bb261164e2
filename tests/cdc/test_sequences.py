"""A short run of the laboratory of change streams."""

from __future__ import annotations

from functools import partial

import pytest
from pyspark.sql import SparkSession

from tests.cdc.sequences import runs
from tests.cdc.spark_sequences import SparkRun


@pytest.mark.parametrize("scd", [1, 2])
def test_the_table_is_the_plain_one_whatever_happens_to_drivers(scd: int) -> None:
    assert [right for _, right in runs(scd, 6, seed=5)] == [True] * 6


def test_without_the_records_order_the_laboratory_finds_differences() -> None:
    assert not all(right for _, right in runs(1, 6, seed=5, arrival=True))


@pytest.mark.parametrize("scd", [1, 2])
def test_the_table_is_the_plain_one_on_real_spark(spark: SparkSession, scd: int) -> None:
    make = partial(SparkRun, spark)
    assert [right for _, right in runs(scd, 2, seed=3, make=make)] == [True] * 2
