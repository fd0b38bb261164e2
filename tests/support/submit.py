"""The real spark-submit, as an Airflow worker or a person would call it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyspark

from airflow_provider_lance import shipping
from tests.support.processes import QUICK_JAVA, finish


@dataclass
class Submitter:
    """spark-submit with the shipped zip, and an interpreter for driver and executors."""

    python: Path
    zip: Path

    def start(self, path: Path, *options: str) -> subprocess.Popen[str]:
        """Send the specification along, as cluster mode wants it."""
        return self._start([*options, "--files", str(path)], [path.name])

    def start_here(self, path: Path, *arguments: str) -> subprocess.Popen[str]:
        """Let the driver read the specification from where it lies."""
        return self._start([], [str(path), *arguments])

    def _start(self, options: list[str], arguments: list[str]) -> subprocess.Popen[str]:
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.log.level=ERROR",
            *options,
            "--py-files",
            str(self.zip),
            str(shipping.application_path()),
            *arguments,
        ]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        return subprocess.Popen(
            command,
            cwd="/",
            env=environment
            | {
                "PYSPARK_PYTHON": str(self.python),
                "PYSPARK_DRIVER_PYTHON": str(self.python),
                "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, path: Path, *options: str) -> tuple[int, str]:
        return finish(self.start(path, *options))

    def shipping(self, module: Path) -> Submitter:
        """Return a submitter that ships a user's module, too."""
        return Submitter(self.python, Path(f"{self.zip},{module}"))


def command_lines(session: int) -> list[str]:
    """Return the command lines of all processes of a session, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                found += [line] if line else []
        except (OSError, ProcessLookupError):
            continue
    return found
