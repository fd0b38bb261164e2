from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Each worker of pytest-xdist has an Airflow of its own: its first import writes a configuration.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    home = os.environ.get("AIRFLOW_HOME") or tempfile.mkdtemp(prefix="airflow-home-")
    os.environ["AIRFLOW_HOME"] = os.path.join(home, worker)

import pytest
from hypothesis import HealthCheck, settings
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.support import class_archive
from tests.support.temporary import remove, use_own_temporary_folder

# Here, not in a hook: other conftest modules make temporary folders while they are imported.
TEMPORARY = use_own_temporary_folder()
class_archive.use()

# The same examples on every run, and no verdict that depends on how fast the machine is.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


LONGEST_FOLDERS = ("system", "chaos", "recovery", "desk", "integration", "processes", "fuzz")
"""Folders by the seconds of their files, longest first: the others' files take seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first: the last file that a worker begins is then a short one."""
    items.sort(key=lambda item: _place(item.path))


def _place(path: Path) -> int:
    folder = path.parent.name
    last = len(LONGEST_FOLDERS)
    return LONGEST_FOLDERS.index(folder) if folder in LONGEST_FOLDERS else last


def pytest_unconfigure() -> None:
    remove(TEMPORARY)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # It says good-bye at INFO when the interpreter has closed its streams already.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # PySpark starts its JVM with a fork hook, which Lance warns of; the child only execs Java.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        session = local_session()
    yield session
    session.stop()
    _end_jvm()


def _end_jvm() -> None:
    """Let the JVM remove its temporary files, which it does when it ends."""
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


def local_session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
