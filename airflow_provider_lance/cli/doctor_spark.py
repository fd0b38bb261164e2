"""The doctor's checks of Java and Spark on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_provider_lance.cli.diagnosis import Diagnosis, Level
from airflow_provider_lance.cli.doctor_packages import INSTALL, numbers, pyspark_folder, version_of

__all__ = ["diagnose_spark"]

_JAVA = 17
_PATIENCE_SECONDS = 30


def diagnose_spark(environment: Mapping[str, str] | None = None) -> Iterator[Diagnosis]:
    """Check Java, ``SPARK_HOME``, ``spark-submit`` and ``PYSPARK_PYTHON``."""
    given = os.environ if environment is None else environment
    yield _spark_home(given)
    yield _spark_submit(given)
    yield _java(given)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if found := _pyspark_python(name, given):
            yield found


def _spark_home(given: Mapping[str, str]) -> Diagnosis:
    home, folder = given.get("SPARK_HOME"), pyspark_folder()
    installed = version_of("pyspark")
    if not home:
        seen = f"not set; Spark is that of {folder}" if installed else "not set"
        return Diagnosis("SPARK_HOME", Level.OK, seen)
    if installed and folder and Path(home).resolve() == folder.resolve():
        return Diagnosis("SPARK_HOME", Level.OK, f"{home}, the installed pyspark")
    version = _spark_version(Path(home))
    if version is None:
        advice = "unset SPARK_HOME, or let it name a Spark installation"
        return Diagnosis("SPARK_HOME", Level.ERROR, f"{home} holds no Spark", advice)
    seen = f"{home} with Spark {version}"
    if installed and numbers(version)[:2] != numbers(installed)[:2]:
        advice = "unset SPARK_HOME, or install the pyspark of the same version"
        return Diagnosis("SPARK_HOME", Level.WARNING, f"{seen}, pyspark is {installed}", advice)
    return Diagnosis("SPARK_HOME", Level.NOTE, f"{seen}, not the installed pyspark")


def _spark_version(home: Path) -> str | None:
    try:
        [jar, *_] = (home / "jars").glob("spark-core_*.jar")
    except ValueError:
        return None
    return jar.stem.rpartition("-")[2]


def _spark_submit(given: Mapping[str, str]) -> Diagnosis:
    path = shutil.which("spark-submit", path=given.get("PATH"))
    if path:
        return Diagnosis("spark-submit", Level.OK, path)
    advice, places = INSTALL, [Path(sys.executable).parent]
    if home := given.get("SPARK_HOME"):
        places.insert(0, Path(home) / "bin")
    for folder in places:
        if (folder / "spark-submit").is_file():
            advice = f"export PATH={folder}:$PATH"
            break
    return Diagnosis("spark-submit", Level.ERROR, "not on the PATH", advice)


def _java(given: Mapping[str, str]) -> Diagnosis:
    home = given.get("JAVA_HOME")
    binary = f"{home}/bin/java" if home else shutil.which("java", path=given.get("PATH"))
    bad = Level.ERROR
    advice = (
        f"Spark 4 needs Java {_JAVA} or later. On Debian: apt-get install openjdk-17-jre-headless; "
        "elsewhere install it, and let JAVA_HOME name its folder"
    )
    if not binary:
        return Diagnosis("Java", bad, "JAVA_HOME is not set and java is not on the PATH", advice)
    where = f"JAVA_HOME={home}" if home else binary
    said = _run(binary, "-XshowSettings:properties", "-version")
    version = re.search(r"java\.version = (\S+)", said or "")
    if version is None:
        return Diagnosis("Java", bad, f"{where}: does not run", advice)
    place = re.search(r"java\.home = (.+)", said or "")
    seen = f"{version[1]} at {place[1].strip() if place else binary} ({where})"
    if numbers(version[1])[0] < _JAVA:
        return Diagnosis("Java", bad, seen, advice)
    return Diagnosis("Java", Level.OK, seen)


def _pyspark_python(name: str, given: Mapping[str, str]) -> Diagnosis | None:
    chosen = given.get(name)
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if chosen is None and name != "PYSPARK_PYTHON":
        return None
    if chosen is None:
        first = shutil.which("python3", path=given.get("PATH"))
        if first is None or Path(first).resolve() == Path(sys.executable).resolve():
            return Diagnosis(name, Level.OK, f"not set; the first python3 on the PATH is {first}")
        advice = f"on a local or standalone master: export {name}={sys.executable}"
        seen = f"not set: Spark's workers run {first}"
        return Diagnosis(name, Level.WARNING if version_of("pyspark") else Level.NOTE, seen, advice)
    said = _run(chosen, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if said is None:
        return Diagnosis(name, Level.ERROR, f"{chosen} does not run", f"let {name} name a Python")
    if said.strip() != ours:
        advice = f"driver and workers need the same Python: export {name}={sys.executable}"
        return Diagnosis(name, Level.WARNING, f"{chosen} is {said.strip()}, this is {ours}", advice)
    return Diagnosis(name, Level.OK, f"{chosen} ({ours})")


def _run(*words: str) -> str | None:
    """Return a program's output, ``None`` if it cannot be run or fails."""
    try:
        ran = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=True,
            timeout=_PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout + ran.stderr
