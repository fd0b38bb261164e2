"""The sink of a driver in the laboratory: the real one, with a point before and one after it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from airflow_provider_lance.spark.sink import LanceSink
from tests.chaos.plan import SparkPoint


class ChaosSink(LanceSink):
    """Calls ``reach`` where Spark hands an epoch over, and where it gets it back."""

    reach: Callable[[str], None]

    def __call__(self, df: DataFrame, epoch_id: int) -> None:
        self.reach(SparkPoint.PLANNED)
        self.write(df, epoch_id)
        self.reach(SparkPoint.SUNK)

    def write(self, df: DataFrame, epoch_id: int) -> None:
        """Do what the sink does with an epoch."""
        super().__call__(df, epoch_id)
