"""Delta Lake in Spark, from its jars: in a session of its own, so that no other is changed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tests.support.jars import JarsUnavailableError, fetched_jars

_DELTA = {"4.2": "delta-spark_4.2_2.13:4.4.0"}
"""The newest release for each line of Spark."""

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def delta_session(spark: SparkSession) -> SparkSession | None:
    """Return a session with Delta's extension and catalog beside one without; ``None`` without jar.

    Both share a JVM and its executors. Delta's classes are added to the JVM's class loader, and
    its rules to the new session only.
    """
    line = ".".join(pyspark.__version__.split(".")[:2])
    try:
        if line not in _DELTA:
            raise JarsUnavailableError(f"no release of Delta is known for Spark {line}")
        jars = fetched_jars("io.delta", _DELTA[line])
    except JarsUnavailableError as error:
        print(f"without Delta: {error}", file=sys.stderr)
        return None
    java: Any = spark.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in sorted(jars.glob("*.jar")):
        loader.addURL(java.java.io.File(str(jar)).toURI().toURL())
    extension = getattr(java, _EXTENSION)()
    builder = java.org.apache.spark.sql.classic.SparkSession.builder()
    made = builder.withExtensions(extension).config("spark.sql.catalog.spark_catalog", _CATALOG)
    return SparkSession(spark.sparkContext, made.create())


def convert(delta: SparkSession, files: Path, folder: Path) -> None:
    """Make a table of copies of parquet files: the same files, with a log."""
    shutil.copytree(files, folder)
    delta.sql(f"CONVERT TO DELTA parquet.`{folder}` NO STATISTICS")
