"""What unit tests stand on serves here too, where processes and sockets are allowed."""

from __future__ import annotations

from tests.unit.conftest import (
    ROWS,
    SECRET,
    AddConnection,
    Shown,
    SparkOn,
    SparkSubmit,
    Stream,
    TaskInstance,
    add_connection,
    dataset,
    shown,
    spark_on,
    spark_submit,
    supervised,
    ti,
)

__all__ = [
    "ROWS",
    "SECRET",
    "AddConnection",
    "Shown",
    "SparkOn",
    "SparkSubmit",
    "Stream",
    "TaskInstance",
    "add_connection",
    "dataset",
    "shown",
    "spark_on",
    "spark_submit",
    "supervised",
    "ti",
]
