"""A declarative pipeline reads a Lance dataset, with nothing registered: the wheel is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import lance
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

ROOT = Path(__file__).parents[2]

SPECIFICATION = """
name: copies
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def copied():
    return spark.readStream.format("lance").load({uri!r})
"""


@pytest.mark.slow
def test_pipeline_reads_a_dataset_as_a_stream(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(pa.table({"id": range(10)}), uri)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "copies.py").write_text(PIPELINE.format(uri=uri))
    specification = tmp_path / "spark-pipeline.yml"
    specification.write_text(SPECIFICATION.format(storage=(tmp_path / "storage").as_uri()))

    ended = subprocess.run(
        ["spark-pipelines", "run", "--spec", specification, "--conf", "spark.ui.enabled=false"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(tmp_path / "installed"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        check=False,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    copied = pads.dataset(tmp_path / "spark-warehouse" / "copied", format="parquet").to_table()
    assert sorted(copied["id"].to_pylist()) == list(range(10))
