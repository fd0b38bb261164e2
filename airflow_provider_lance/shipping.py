"""The code that is shipped to the cluster: an application file, and one zip of what it imports.

A Spark cluster has no Airflow and need not have this package: spark-submit ships the shared rooms
with ``--py-files``. Nothing here imports the applications; they are shipped by their path, so that
no Airflow process ever imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

__all__ = ["application_path", "build_zip"]

_PACKAGE = Path(__file__).parent
_SHIPPED = ("protocol", "supervision", "spec", "source", "maintenance", "spark")
"""The rooms that a Spark job imports; an import contract keeps the others out of them."""


def application_path(name: str = "job") -> Path:
    """Return a spark-submit application, a file of the installed package.

    :param name: ``job`` for a stream, ``maintain`` for maintenance.
    """
    return _PACKAGE / "spark" / f"{name}.py"


def build_zip(folder: Path, modules: Mapping[str, bytes] | None = None) -> Path:
    """Write the zip for ``--py-files`` into a folder and return its path.

    :param modules: further files by their names in the zip, such as a user's own module.

    The same sources give the same bytes, so that a cluster's caches and a reviewer's checksum hold:
    names are sorted, times are fixed, and nothing is compressed, since zlib versions differ.
    """
    target = folder / f"{_PACKAGE.name}.zip"
    with ZipFile(target, "w", ZIP_STORED) as archive:
        for path in sorted(_sources()):
            name = path.relative_to(_PACKAGE.parent).as_posix()
            archive.writestr(_entry(name), path.read_bytes())
        for name, content in sorted((modules or {}).items()):
            archive.writestr(_entry(name), content)
    return target


def _sources() -> Iterator[Path]:
    yield _PACKAGE / "__init__.py"
    yield _PACKAGE / "exceptions.py"
    for room in _SHIPPED:
        yield from (_PACKAGE / room).glob("*.py")


def _entry(name: str) -> ZipInfo:
    entry = ZipInfo(name)  # dated 1980-01-01, the zip format's zero
    entry.create_system = 3  # Unix, wherever it is built
    entry.external_attr = 0o100644 << 16
    return entry
