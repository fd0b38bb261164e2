"""A temporary folder for everything that tests start: a process that was killed removes nothing.

Python and most programs take ``TMPDIR``. A JVM takes no variable: Spark's get an option.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_JAVA = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""What Spark's scripts add to the command line of a driver, and of a master or worker."""


def temporary_variables(
    folder: str | Path, given: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables that let processes use a folder for what is temporary."""
    option = f"-Djava.io.tmpdir={folder}"
    java = {name: f"{given.get(name, '')} {option}".strip() for name in _JAVA}
    return {"TMPDIR": str(folder), **java}


def use_own_temporary_folder() -> Path:
    """Make a temporary folder, for this process and all that it starts; return it.

    The folders of tests stay where pytest makes them.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="lance-tests-"))
    os.environ.update(temporary_variables(folder))
    tempfile.tempdir = str(folder)
    return folder


def remove(folder: Path) -> None:
    """Remove a folder, as far as no process adds to it meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
