"""What a run was made on: figures of another machine, or of other versions, are other figures."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_PACKAGES = ("pylance", "pyspark", "pyarrow", "deltalake", "pyiceberg", "apache-airflow-core")


def about(work: Path) -> dict[str, Any]:
    """Return what is true of a whole run: date, commit, machine and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(work),
        "versions": versions(),
    }


def machine(work: Path) -> dict[str, str | int | float]:
    """Return cores, memory, kernel, and the file system that a folder is on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": " ".join([platform.system(), platform.release().split("-")[0]]),
        "file_system": _file_system(work),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, Java and of the packages that are measured."""
    told = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "java": _java(), **told}


def commit() -> str:
    """Return the checkout's commit, marked if files differ from it; empty without git."""
    words = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    try:
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ran.stdout.strip()


def _file_system(folder: Path) -> str:
    """Return the type of the mount that holds a folder; empty where the kernel does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    lines = (line.split() for line in mounts.read_text(encoding="utf-8").splitlines())
    holding = {words[1]: words[2] for words in lines if folder.resolve().is_relative_to(words[1])}
    return holding[max(holding, key=len)]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.search(r'"([^"]+)"', ran.stderr)
    return found[1] if found else ""
