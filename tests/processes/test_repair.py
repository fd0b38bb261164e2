"""Repair beside the real process of a driver."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_lance.exceptions import DriverAliveError
from airflow_provider_lance.repair.actions import release_owner
from airflow_provider_lance.repair.result import RepairResult
from airflow_provider_lance.supervision.process import ProcessIdentity
from tests.support.drivers import QUERY, QUICK
from tests.support.repairing import CheckpointDriver, Scene, lance_scene, twin_scene


def release_by_hand(scene: Scene, *, proven_dead: bool = False) -> RepairResult:
    port = scene.world.open()
    return release_owner(port, QUERY, by="anna", backoff=QUICK, proven_dead=proven_dead)


@pytest.mark.parametrize("make", [twin_scene, lance_scene])
def test_release_is_refused_while_the_owners_process_lives(
    make: Callable[[Path], Scene], tmp_path: Path
) -> None:
    scene = make(tmp_path)
    with subprocess.Popen(["sleep", "600"]) as process:
        CheckpointDriver(scene, process=ProcessIdentity.of(process.pid)).step()
        for proven_dead in (False, True):
            with pytest.raises(DriverAliveError, match=str(process.pid)):
                release_by_hand(scene, proven_dead=proven_dead)
        process.kill()
        process.wait()
        assert release_by_hand(scene).changed
