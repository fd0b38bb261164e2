"""An interpreter with pyspark, pylance and pyarrow and nothing else: a cluster without Airflow."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOTS = ("pyspark", "pylance", "pyarrow", "pandas")
"""pandas only because PySpark's mapInArrow asks for it."""


def bare_python(folder: Path) -> Path:
    """Make the interpreter in a folder; return the path of its executable."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (target,) = folder.glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    for name in _closure(*ROOTS):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top != ".." and not (target / top).exists():
                (target / top).symlink_to(installed / top)
    return folder / "bin" / "python"


def _closure(*names: str) -> set[str]:
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found
