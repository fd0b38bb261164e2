"""What the doctor sees of this machine's Python and its packages; none of them is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from airflow_provider_lance import __version__
from airflow_provider_lance.cli.diagnosis import Diagnosis, Level

__all__ = ["look_at_packages", "numbers", "pyspark_folder", "version_of"]

_PYTHON = (3, 11)
_TRIED = {
    "pylance": ((14,), (15,)),
    "pyarrow": ((20,), None),
    "apache-airflow-core": ((3, 3), (4,)),
    "apache-airflow-providers-apache-spark": ((6, 3, 4), None),
    "pyspark": ((4,), (5,)),
    "pandas": ((1,), (3,)),
}
"""From which version on and below which one, as the package's own dependencies say."""


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


def look_at_packages() -> Iterator[Diagnosis]:
    """Look at Python and at what is installed for it."""
    seen = f"{sys.version.split()[0]} at {sys.executable}"
    old = sys.version_info < _PYTHON
    yield Diagnosis(
        "Python", Level.ERROR if old else Level.OK, seen, "use Python 3.11 or later" if old else ""
    )
    yield Diagnosis("airflow-provider-lance", Level.OK, __version__)
    yield _package("pylance", Level.ERROR, "pip install 'pylance>=14,<15'")
    yield _package("pyarrow", Level.ERROR, "pip install 'pyarrow>=20'")
    yield _package("apache-airflow-core", Level.NOTE, "needed for operators and for --conn-id only")
    if version_of("apache-airflow-core"):
        provider = "apache-airflow-providers-apache-spark"
        yield _package(
            provider, Level.WARNING, f"the stream operator needs it: pip install {provider}"
        )
    yield from _pyspark()


def _package(name: str, absent: Level, advice: str) -> Diagnosis:
    version = version_of(name)
    if version is None:
        return Diagnosis(name, absent, "not installed", advice)
    least, below = _TRIED[name]
    if numbers(version) < least or (below and numbers(version) >= below):
        wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
        return Diagnosis(name, Level.WARNING, version, f"use {name}{wanted}")
    return Diagnosis(name, Level.OK, version)


def _pyspark() -> Iterator[Diagnosis]:
    whole, client = version_of("pyspark"), version_of("pyspark-client")
    needed = "needed only where spark-submit runs, unless SPARK_HOME has a Spark of its own"
    if whole is None and client is not None:
        seen = f"only pyspark-client {client}, which has neither Spark nor spark-submit"
        yield Diagnosis("pyspark", Level.NOTE, seen, needed)
        return
    yield _package("pyspark", Level.NOTE, needed)
    if whole is None:
        return
    if conflict := _conflict(whole, client):
        yield conflict
    yield _package("pandas", Level.WARNING, "PySpark asks for it: pip install 'pandas<3'")


def _conflict(whole: str, client: str | None) -> Diagnosis | None:
    """Tell whether two distributions have written into one folder; no resolver notices that.

    The Spark provider asks for ``pyspark-client``, whose files are other versions of pyspark's.
    """
    name, folder = "pyspark-client", pyspark_folder()
    mend = (
        "pip uninstall -y pyspark-client pyspark && pip install 'pyspark==" + whole + "', and keep "
        "pyspark-client out, with uv by the override \"pyspark-client ; python_version < '0'\""
    )
    there = _version_there(folder)
    if client is not None and client != whole:
        seen = (
            f"pyspark {whole} and pyspark-client {client} are both installed into {folder}, where "
            f"the files now are those of {there or 'an unknown version'}"
        )
        return Diagnosis(name, Level.ERROR, seen, mend)
    if there is not None and there != whole:
        seen = f"pyspark {whole} is installed, and the files in {folder} are those of {there}"
        return Diagnosis(name, Level.ERROR, seen, mend)
    if client is not None:
        seen = f"installed beside pyspark, both {whole}, into the same folder"
        return Diagnosis(name, Level.WARNING, seen, f"uninstalling one breaks the other: {mend}")
    return None


def _version_there(folder: Path | None) -> str | None:
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
