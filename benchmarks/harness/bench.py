"""What an experiment is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.harness.scale import Scale


@dataclass(frozen=True)
class Bench:
    """One run of one experiment."""

    scale: Scale
    work: Path
    """An empty folder of the experiment's own; removed when it has ended."""
    out: Path
    """Where plots go."""
    spark: Callable[[], SparkSession]
    """Starts the session that all experiments share, at the first call."""
