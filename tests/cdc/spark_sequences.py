"""The laboratory of change streams on real Spark: its epochs are files, its drivers are sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_provider_lance.spark.sink import LanceSink
from tests.cdc.sequences import Killed, Record, Run
from tests.support.history import DELETE, TRUNCATE
from tests.support.sparkstream import Stream

DDL = "id BIGINT, name STRING, note STRING, lsn BIGINT, op STRING"


class SparkRun(Run):
    """A run whose epochs Spark reads and writes, on the driver or on the executors."""

    def __init__(self, spark: SparkSession, root: Path, *values: Any) -> None:
        super().__init__(root, *values)
        self.stream = Stream(spark, root, DDL)
        for records in self.epochs:
            self.stream.add(self.file(records))

    def file(self, records: list[Record]) -> pa.Table:
        """Return an epoch as it lies in the source."""
        rows = self.rows(records).select(["id", "name", "note", "lsn"])
        words = {DELETE: "D", TRUNCATE: "T"}
        operations = [words.get(each.operation, "U") for each in records]
        return rows.append_column("op", pa.array(operations))

    def drive(self) -> None:
        """Run sinks until one has read all files; each may end at any step."""
        options = {
            "outputMode": "update",
            "mergeKeys": "id",
            "sequenceBy": "lsn",
            "deleteWhen": "op = 'D'",
            "truncateWhen": "op = 'T'",
            "exceptColumns": "op",
            "scdType": self.scd,
            "watermarkEvery": 3,
            "trackHistoryColumns": ["name"] if self.tracked else None,
            "smallEpochRows": self.random.choice([0, 20_000]),
        }
        self.happened["on executors"] += options["smallEpochRows"] == 0
        while not self._live(self.stream.sink(on_step=self.step, **options)):
            self.happened["kills"] += 1

    def _live(self, sink: LanceSink) -> bool:
        """Let a driver work; return whether it reached the end."""
        try:
            sink.start(self.stream.read(), availableNow=True).awaitTermination()
            sink.release()
        except Killed:
            return False
        except StreamingQueryException as error:
            if "Killed" not in str(error):
                raise
            return False
        return True
