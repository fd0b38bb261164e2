"""The doctor's checks of this machine: Python, its packages (none is imported), Java, Spark."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_lance import __version__
from airflow_provider_lance.protocol.json_codec import JsonRecord

__all__ = [
    "Diagnosis",
    "Level",
    "diagnose_packages",
    "diagnose_spark",
    "numbers",
    "spark_folder",
]


class Level(StrEnum):
    """The result of one check."""

    OK = "ok"
    NOTE = "note"
    """For information: something is not available here, and need not be."""
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"
    """It could not be checked."""


@dataclass(frozen=True, slots=True)
class Diagnosis(JsonRecord):
    """What was checked, the result, what was seen, and what to do about it."""

    name: str
    level: Level
    seen: str
    advice: str = ""


_PYTHON = (3, 11)
_JAVA = 17
_TIMEOUT_SECONDS = 30
_TRIED = {
    "pylance": ((14,), (15,)),
    "pyarrow": ((20,), None),
    "apache-airflow-core": ((3, 1), (4,)),
    "apache-airflow-providers-apache-spark": ((6, 1), None),
    "pyspark": ((4,), (5,)),
    "pandas": ((2, 2), (3,)),
}
"""The lowest version, and the first one too new, as in the package's own dependencies."""

_PAIR = "4.2.0"
"""The version that the extra ``pyspark`` pins: the newest of both pyspark and pyspark-client."""


def _installer() -> str:
    """Return the command that installs into this Python.

    An environment that uv made has no pip: the ``pip`` on the PATH is then another Python's.
    """
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python}"
    found = shutil.which("pip")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "pip install"
    return f"{python} -m pip install"


_INSTALLER = _installer()
_INSTALL = f"{_INSTALLER} 'airflow-provider-lance[pyspark]'"
"""The command that installs everything a stream needs on a worker, except Java."""
_REPAIR = f"{_INSTALLER} --force-reinstall --no-deps pyspark=={_PAIR} pyspark-client=={_PAIR}"


def diagnose_packages() -> Iterator[Diagnosis]:
    """Check Python and the packages installed for it."""
    seen = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < _PYTHON:
        yield Diagnosis("Python", Level.ERROR, seen, "use Python 3.11 or later")
    else:
        yield Diagnosis("Python", Level.OK, seen)
    yield Diagnosis("airflow-provider-lance", Level.OK, __version__)
    yield _package("pylance")
    yield _package("pyarrow")
    airflow = "apache-airflow-core"
    yield _package(airflow, Level.NOTE, "needed only for operators and for --conn-id")
    if version_of(airflow):
        yield _package("apache-airflow-providers-apache-spark")
    yield from _pyspark()


def version_of(name: str) -> str | None:
    """Return a distribution's version, ``None`` if it is not installed."""
    found = _distribution(name)
    return found.version if found else None


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _package(name: str, absent: Level = Level.ERROR, advice: str = "") -> Diagnosis:
    """Check one package: too old is an error, newer than what was tested is a warning."""
    version = version_of(name)
    least, below = _TRIED[name]
    wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
    install = f"{_INSTALLER} '{name}{wanted}'"
    if version is None:
        return Diagnosis(name, absent, "not installed", advice or install)
    if numbers(version) < least:
        return Diagnosis(name, Level.ERROR, f"{version}, too old", install)
    if below and numbers(version) >= below:
        return Diagnosis(name, Level.WARNING, f"{version}, newer than what was tested", install)
    return Diagnosis(name, Level.OK, version)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _pyspark() -> Iterator[Diagnosis]:
    whole, client = version_of("pyspark"), version_of("pyspark-client")
    if whole is None:
        # The check of spark-submit finds out whether there is another Spark.
        seen = "not installed"
        if client is not None:
            seen = f"only pyspark-client {client}, which has neither Spark nor spark-submit"
        yield Diagnosis("pyspark", Level.NOTE, seen, f"for a Spark of this Python: {_INSTALL}")
        return
    yield _package("pyspark")
    if wrong := _wrong_files(whole, client):
        yield Diagnosis("pyspark-client", Level.ERROR, wrong, _REPAIR)
    elif client is not None:
        yield Diagnosis("pyspark-client", Level.OK, f"{client}, the version of pyspark")
    yield _package("pandas")


def _wrong_files(whole: str, client: str | None) -> str:
    """Return what is wrong with the files of pyspark, empty if nothing is.

    pyspark and pyspark-client write into one folder, and no installer compares them. The Spark
    provider requires the client. With equal versions, its files are those of pyspark. With
    different versions, the files of the last installed one remain.
    """
    folder, there = _pyspark_folder(), _version_there()
    if client not in (None, whole):
        return (
            f"pyspark {whole} and pyspark-client {client} are both installed into {folder}, where "
            f"the files now are those of {there or 'an unknown version'}"
        )
    if there is None:
        return f"files of pyspark {whole} are missing from {folder}"
    if there != whole:
        return f"pyspark {whole} is installed, and the files in {folder} are of {there}"
    return ""


def _pyspark_folder() -> Path | None:
    """Return the folder of the installed pyspark, ``None`` if there is none."""
    found = _distribution("pyspark") or _distribution("pyspark-client")
    return Path(str(found.locate_file("pyspark"))) if found else None


def _version_there() -> str | None:
    """Return the version that the files in pyspark's folder say."""
    folder = _pyspark_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    found = re.search(r"__version__[^=]*=\s*['\"]([^'\"]+)['\"]", text)
    return found[1] if found else None


def diagnose_spark(environment: Mapping[str, str] = os.environ) -> Iterator[Diagnosis]:
    """Check Java, ``SPARK_HOME``, ``spark-submit`` and ``PYSPARK_PYTHON``."""
    yield _spark_home(environment)
    yield _spark_submit(environment)
    yield _java(environment)
    yield _workers_python("PYSPARK_PYTHON", environment)
    if "PYSPARK_DRIVER_PYTHON" in environment:
        yield _workers_python("PYSPARK_DRIVER_PYTHON", environment)


def spark_folder(given: Mapping[str, str]) -> Path | None:
    """Return the folder of the Spark that ``spark-submit`` runs, ``None`` if there is none."""
    home = given.get("SPARK_HOME")
    return Path(home) if home else _pyspark_folder()


def _spark_home(given: Mapping[str, str]) -> Diagnosis:
    name, home, folder = "SPARK_HOME", given.get("SPARK_HOME"), _pyspark_folder()
    installed = version_of("pyspark")
    if not home:
        seen = f"not set; Spark is that of {folder}" if installed else "not set"
        return Diagnosis(name, Level.OK, seen)
    if installed and folder and Path(home).resolve() == folder.resolve():
        return Diagnosis(name, Level.OK, f"{home}, the installed pyspark")
    jar = next((Path(home) / "jars").glob("spark-core_*.jar"), None)
    if jar is None:
        advice = "unset SPARK_HOME, or set it to a Spark installation"
        return Diagnosis(name, Level.ERROR, f"{home} holds no Spark", advice)
    version = jar.stem.rpartition("-")[2]
    seen = f"{home} with Spark {version}"
    if installed and numbers(version)[:2] != numbers(installed)[:2]:
        advice = "unset SPARK_HOME, or install the pyspark of the same version"
        return Diagnosis(name, Level.WARNING, f"{seen}, pyspark is {installed}", advice)
    return Diagnosis(name, Level.NOTE, f"{seen}, not the installed pyspark")


def _spark_submit(given: Mapping[str, str]) -> Diagnosis:
    if path := shutil.which("spark-submit", path=given.get("PATH")):
        return Diagnosis("spark-submit", Level.OK, path)
    home = given.get("SPARK_HOME")
    places = [Path(home) / "bin"] if home else []
    places.append(Path(sys.executable).parent)
    folder = next((each for each in places if (each / "spark-submit").is_file()), None)
    advice = f"export PATH={folder}:$PATH" if folder else _INSTALL
    return Diagnosis("spark-submit", Level.ERROR, "not on the PATH", advice)


def _java(given: Mapping[str, str]) -> Diagnosis:
    home = given.get("JAVA_HOME")
    binary = f"{home}/bin/java" if home else shutil.which("java", path=given.get("PATH"))
    advice = (
        f"Spark 4 needs Java {_JAVA} or later. On Debian: apt-get install openjdk-17-jre-headless; "
        "elsewhere install it, and set JAVA_HOME to its folder"
    )
    if not binary:
        seen = "JAVA_HOME is not set and java is not on the PATH"
        return Diagnosis("Java", Level.ERROR, seen, advice)
    where = f"JAVA_HOME={home}" if home else binary
    said = _run(binary, "-XshowSettings:properties", "-version") or ""
    version = re.search(r"java\.version = (\S+)", said)
    if version is None:
        return Diagnosis("Java", Level.ERROR, f"{where}: does not run", advice)
    place = re.search(r"java\.home = (.+)", said)
    seen = f"{version[1]} at {place[1].strip() if place else binary} ({where})"
    if numbers(version[1])[0] < _JAVA:
        return Diagnosis("Java", Level.ERROR, seen, advice)
    return Diagnosis("Java", Level.OK, seen)


def _workers_python(name: str, given: Mapping[str, str]) -> Diagnosis:
    chosen = given.get(name)
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    ourselves = f"export {name}={sys.executable}"
    if chosen is None:
        first = shutil.which("python3", path=given.get("PATH"))
        if first is None or Path(first).resolve() == Path(sys.executable).resolve():
            return Diagnosis(name, Level.OK, f"not set; the first python3 on the PATH is {first}")
        level = Level.WARNING if version_of("pyspark") else Level.NOTE
        advice = f"on a local or standalone master: {ourselves}"
        return Diagnosis(name, level, f"not set: Spark's workers run {first}", advice)
    said = _run(chosen, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if said is None:
        return Diagnosis(name, Level.ERROR, f"{chosen} does not run", f"set {name} to a Python")
    if said.strip() != ours:
        advice = f"driver and workers need the same Python: {ourselves}"
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
            timeout=_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout + ran.stderr
