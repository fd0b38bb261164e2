"""Files through Hadoop's filesystems: in every store where Spark can keep the checkpoint."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import (
    AccessDeniedError,
    ChecksumMismatchError,
    LanceStreamError,
    SpecError,
    StorageUnavailableError,
)
from airflow_provider_lance.spark.failures import access_denied

__all__ = ["HadoopFiles"]

_NO_FILE_SYSTEM = (
    "java.lang.RuntimeException: java.lang.ClassNotFoundException",  # known, but its jar is missing
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
)
"""The beginning of Hadoop's errors for which a retry cannot help."""
_CHECKSUM = "org.apache.hadoop.fs.ChecksumException"


class HadoopFiles:
    """The port of :mod:`airflow_provider_lance.protocol.files` with Spark's own credentials."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._root = self._path_class(location)
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        try:
            self._fs = self._root.getFileSystem(configuration)
        except (Py4JJavaError, PySparkException) as error:
            raise self._unavailable("", error) from None

    @property
    def location(self) -> str:
        """Return the location as Hadoop completes it: ``file:/data/checkpoint``."""
        return str(self._fs.makeQualified(self._root).toString())

    def _path(self, path: str) -> Any:
        return self._path_class(self._root, path) if path else self._root

    def read(self, path: str) -> bytes | None:
        """Return a file's content, ``None`` if there is no such file."""
        try:
            stream = self._fs.open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise self._unavailable(path, error) from None

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        try:
            found = self._fs.listStatus(self._path(path))
        except Py4JJavaError as error:
            if _is_missing(error):
                return []
            raise self._unavailable(path, error) from None
        return sorted(status.getPath().getName() for status in found)

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, with the folders above it; replaces an older one."""
        try:
            stream = self._fs.create(self._path(path), True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._unavailable(path, error) from None

    def remove(self, path: str) -> None:
        """Remove a file, or a folder and its content."""
        try:
            self._fs.delete(self._path(path), True)
        except Py4JJavaError as error:
            raise self._unavailable(path, error) from None

    def write_checksums(self, on: bool) -> None:
        """Set whether a `.crc` is written beside each file; for the whole JVM, on a local disk."""
        self._fs.setWriteChecksum(on)

    def _unavailable(self, path: str, error: Py4JJavaError | PySparkException) -> LanceStreamError:
        # PySpark converts some of the JVM's exceptions, and keeps the original.
        thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        said = str(thrown.toString() if thrown else error)
        if said.startswith(_NO_FILE_SYSTEM):
            return SpecError(
                f"Spark has no file system for {self._root.toString()}: {said}. Add its jars to "
                "the Spark application (for s3a org.apache.hadoop:hadoop-aws of Spark's Hadoop "
                "version, by spark.jars.packages)"
            )
        name, _, message = said.partition(": ")
        if denied := access_denied(name, message or said):
            return AccessDeniedError(f"cannot reach {self._root.toString()}/{path}: {denied}")
        kind = ChecksumMismatchError if said.startswith(_CHECKSUM) else StorageUnavailableError
        return kind(f"cannot reach {self._root.toString()}/{path}: {said}")


def _is_missing(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException"
