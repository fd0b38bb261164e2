"""Two races of the laboratory: a replaced entry of Spark's log is refused, and repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.spark import start
from tests.chaos.interposer import compile_interposer
from tests.log_races.driver import LAUNCHED
from tests.log_races.race import Case, Rival, race

CASES = (
    Case("gaps", "offsets", before="left", end="released", further=0, kill=False),
    Case("files", "sources/0", before="released", end="left", further=1, kill=False),
)


@pytest.mark.slow
def test_what_a_late_driver_replaced_is_refused_and_after_the_repair_each_row_is_there_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_PATIENCE_SECONDS", 0.0)
    rival = Rival(compile_interposer(tmp_path), LAUNCHED)
    try:
        for number, case in enumerate(CASES):
            root = tmp_path / str(number)
            root.mkdir()
            outcome = race(spark, rival, root, case)
            assert outcome.wrong == "", case
            assert outcome.replaced, case
            assert outcome.refused, case
    finally:
        rival.kill()
