"""Launches of small commands in the place of drivers; what still runs ends with the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_lance.drivers.launch_request import StopSettings
from airflow_provider_lance.drivers.local import LocalDriver, launch
from airflow_provider_lance.drivers.run_directory import RunDirectory
from tests.support.processes import wait_for


class Launches:
    """Starts drivers below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._started: list[LocalDriver] = []

    def folder(self, launch_id: str = "launch") -> RunDirectory:
        return RunDirectory(self.root, "flights", launch_id)

    def start(
        self,
        *command: str,
        launch_id: str = "launch",
        redact: Sequence[str] = (),
        grace: float = 30,
        stop: StopSettings | None = None,
        seconds: float = 30,
        **environment: str,
    ) -> LocalDriver:
        driver = launch(
            self.folder(launch_id),
            command=command,
            environment={**os.environ, **environment},
            redact=redact,
            grace=grace,
            stop=stop,
            seconds=seconds,
        )
        self._started.append(driver)
        return driver

    def python(self, code: str, **further: object) -> LocalDriver:
        return self.start(sys.executable, "-c", code, **further)  # type: ignore[arg-type]

    def shell(self, script: str, **further: object) -> LocalDriver:
        return self.start("sh", "-c", script, **further)  # type: ignore[arg-type]

    def end(self) -> None:
        for driver in self._started:
            driver.kill()
            wait_for("the keeper's end", lambda driver=driver: not driver.keeper.alive(), 30)


def end_of(driver: LocalDriver, seconds: float = 30) -> int:
    """Wait for a driver's end and its keeper's; return the driver's status."""
    wait_for("the keeper's end", lambda: driver.keeper.alive() is False, seconds)
    status = driver.exit_status()
    assert status is not None
    assert driver.alive() is False
    return status


def output(driver: LocalDriver) -> str:
    """Return the driver's log; its keeper makes it a moment after the launch."""
    log = RunDirectory.at(driver.folder).driver_log
    return log.read_text() if log.exists() else ""


def keeper_said(driver: LocalDriver) -> str:
    return RunDirectory.at(driver.folder).keeper_log.read_text()
