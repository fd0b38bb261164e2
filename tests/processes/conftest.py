"""What unit tests stand on serves here too, where processes and sockets are allowed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cli
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


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that plays a driver's, and end it after the test."""
    with cli.sleeper() as started:
        yield started


@pytest.fixture
def stream(tmp_path: Path, process: subprocess.Popen[bytes]) -> cli.Stream:
    """Return a query with epochs 0 to 3, whose driver is ``process``."""
    made = cli.Stream(tmp_path, pid=process.pid)
    made.step(4)
    return made
