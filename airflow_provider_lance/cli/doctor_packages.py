"""The doctor's checks of this machine's Python and its packages; none of them is imported."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_lance import __version__
from airflow_provider_lance.cli.diagnosis import Diagnosis, Level

__all__ = ["INSTALL", "diagnose_packages", "numbers", "pyspark_folder", "version_of"]

_PYTHON = (3, 11)
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

INSTALL = f"{_INSTALLER} 'airflow-provider-lance[pyspark]'"
"""The command that installs everything a stream needs on a worker, except Java."""

_REPAIR = f"{_INSTALLER} --force-reinstall --no-deps pyspark=={_PAIR} pyspark-client=={_PAIR}"


def version_of(name: str) -> str | None:
    """Return a distribution's version, ``None`` if it is not installed."""
    found = _distribution(name)
    return found.version if found else None


def pyspark_folder() -> Path | None:
    """Return the folder of the installed pyspark, ``None`` if there is none."""
    found = _distribution("pyspark") or _distribution("pyspark-client")
    return Path(str(found.locate_file("pyspark"))) if found else None


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def diagnose_packages() -> Iterator[Diagnosis]:
    """Check Python and the packages installed for it."""
    seen = f"{sys.version.split()[0]} at {sys.executable}"
    old = sys.version_info < _PYTHON
    yield Diagnosis(
        "Python", Level.ERROR if old else Level.OK, seen, "use Python 3.11 or later" if old else ""
    )
    yield Diagnosis("airflow-provider-lance", Level.OK, __version__)
    yield _package("pylance", Level.ERROR)
    yield _package("pyarrow", Level.ERROR)
    yield _package("apache-airflow-core", Level.NOTE, "needed for operators and for --conn-id only")
    if version_of("apache-airflow-core"):
        provider = "apache-airflow-providers-apache-spark"
        yield _package(provider, Level.ERROR)
    yield from _pyspark()


def _package(name: str, absent: Level, advice: str = "") -> Diagnosis:
    """Check one package: too old is an error, newer than what was tested is a warning."""
    version = version_of(name)
    least, below = _TRIED[name]
    wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
    mend = f"{_INSTALLER} '{name}{wanted}'"
    if version is None:
        return Diagnosis(name, absent, "not installed", advice or mend)
    if numbers(version) < least:
        return Diagnosis(name, Level.ERROR, f"{version}, too old", mend)
    if below and numbers(version) >= below:
        return Diagnosis(name, Level.WARNING, f"{version}, newer than what was tested", mend)
    return Diagnosis(name, Level.OK, version)


def _pyspark() -> Iterator[Diagnosis]:
    whole, client = version_of("pyspark"), version_of("pyspark-client")
    if whole is None:
        # The check of spark-submit finds out whether there is another Spark.
        seen = "not installed"
        if client is not None:
            seen = f"only pyspark-client {client}, which has neither Spark nor spark-submit"
        yield Diagnosis("pyspark", Level.NOTE, seen, f"for a Spark of this Python: {INSTALL}")
        return
    yield _package("pyspark", Level.ERROR, INSTALL)
    if client is not None:
        yield _pair(whole, client)
    elif wrong := _wrong_files(whole):
        yield Diagnosis("pyspark-client", Level.ERROR, wrong, _REPAIR)
    yield _package("pandas", Level.ERROR)


def _pair(whole: str, client: str) -> Diagnosis:
    """Check two distributions that write into one folder; no installer compares them.

    The Spark provider requires ``pyspark-client``. With equal versions, its files are those of
    ``pyspark``. With different versions, the files of the last installed one remain.
    """
    name = "pyspark-client"
    if client != whole:
        there = _version_there() or "an unknown version"
        seen = (
            f"pyspark {whole} and pyspark-client {client} are both installed into "
            f"{pyspark_folder()}, where the files now are those of {there}"
        )
        return Diagnosis(name, Level.ERROR, seen, _REPAIR)
    if wrong := _wrong_files(whole):
        return Diagnosis(name, Level.ERROR, wrong, _REPAIR)
    return Diagnosis(name, Level.OK, f"{client}, the version of pyspark")


def _wrong_files(whole: str) -> str:
    """Return what is wrong with the files of pyspark, empty if nothing is."""
    there = _version_there()
    if there is None:
        return f"files of pyspark {whole} are missing from {pyspark_folder()}"
    if there != whole:
        return f"pyspark {whole} is installed, and the files in {pyspark_folder()} are of {there}"
    return ""


def _version_there() -> str | None:
    folder = pyspark_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    found = re.search(r"__version__[^=]*=\s*['\"]([^'\"]+)['\"]", text)
    return found[1] if found else None


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
