from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.desk.desk import TASK, Desk
from tests.support.recovery import Scene


@pytest.fixture(scope="session")
def kept(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Scene, Callable[[], None], Path]:
    """Run two launches of two epochs each; keep a copy of all after the first, and at the end."""
    root = tmp_path_factory.mktemp("desk")
    scene = Scene(spark, root / "stream", 2)
    scene.launch(launched_by=TASK)
    shutil.copytree(scene.stream.root, root / "older")
    scene.add(2)
    scene.launch(launched_by=TASK)
    return scene, scene.keep(), root / "older"


@pytest.fixture
def older(kept: tuple[Scene, Callable[[], None], Path]) -> Path:
    """Return a copy of `table.lance` and `checkpoint` after two of the desk's four epochs."""
    return kept[2]


@pytest.fixture
def desk(request: pytest.FixtureRequest, kept: tuple[Scene, Callable[[], None], Path]) -> Desk:
    """Return the desk over a stream of four epochs that ended in order."""
    kept[1]()
    return Desk(kept[0], request.function.kind)
