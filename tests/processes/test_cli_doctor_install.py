"""The doctor's repair line installs into the Python that the doctor looked at."""

from __future__ import annotations

import os
import shlex
import subprocess
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PRINT = "from airflow_provider_lance.cli import doctor_machine; print(doctor_machine._REPAIR)"


@pytest.mark.parametrize(
    ("has_pip", "is_active", "line"),
    [
        (True, True, "pip install"),
        (True, False, "{python} -m pip install"),
        (False, True, "uv pip install --python {python}"),
        (False, False, "uv pip install --python {python}"),
    ],
)
def test_repair_line_installs_into_the_python_that_runs_the_doctor(
    tmp_path: Path, has_pip: bool, is_active: bool, line: str
) -> None:
    venv.create(tmp_path / "its own", symlinks=True)
    own, other = tmp_path / "its own" / "bin", tmp_path / "other"
    other.mkdir()
    modules = tmp_path / "modules"
    modules.mkdir()
    for folder in [own, other] if has_pip else [other]:
        (folder / "pip").write_text("#!/bin/sh\n")
        (folder / "pip").chmod(0o755)
    if has_pip:
        (modules / "pip").mkdir()
    ran = subprocess.run(
        [own / "python", "-c", PRINT],
        env={
            "PATH": f"{own}:{other}" if is_active else f"{other}:{own}",
            "PYTHONPATH": f"{modules}{os.pathsep}{REPOSITORY}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    repair = " --force-reinstall --no-deps pyspark==4.2.0 pyspark-client==4.2.0"
    assert ran.stdout.strip() == line.format(python=shlex.quote(f"{own}/python")) + repair
