"""Settings that decide how long an epoch takes; each only if the user has not set it.

Two decide the throughput of rows sent to Python as Arrow batches, and are set in the query's own
session. One decides how Spark writes a checkpoint on a local disk. The last one is Hadoop's, and
is changed for such a checkpoint only: no `.crc` files, while a launched job's query runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from airflow_provider_lance.protocol.offset_notes import local_folder
from airflow_provider_lance.spark.compat import OTHER_INTERNALS
from airflow_provider_lance.spark.files import HadoopFiles

__all__ = ["BatchRows", "spare_size_checks", "spared_checksums", "spared_forks", "wait_for_sources"]

log = logging.getLogger(__name__)

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_USUAL, _MOST = 10_000, 100_000
"""Rows of a batch: Spark's default, and the number above which more rows do not help."""
_FEWEST = 256
_BATCH_BYTES = 4 * 1024 * 1024

_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
_NONE = str(2**31 - 1)


_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
)
"""Since PySpark 4.1, and in 4.0."""
_SOURCES_MS = 10_000
_KNOWN = ("4.0.", "4.1.", "4.2.", "4.3.")
"""The versions in which :mod:`.active_query` finds what is noted of an epoch."""


@contextmanager
def spared_forks(session: SparkSession, location: str) -> Iterator[None]:
    """Let a query that starts meanwhile write a local checkpoint without a process for each look.

    Spark's default manager asks `readlink` several times a file, since the pip package has no
    native Hadoop library: more than half of an epoch of 500 rows into the noop sink. The
    one by `FileSystem` does not. Neither is exclusive, and with this one two drivers are likelier
    to write one file; :mod:`.offset_notes` tells what one of them replaced. Elsewhere the default
    stays: on HDFS its rename is exclusive.

    A query copies its session's settings when it starts, and its sources read the session's own
    settings a moment later: call :func:`wait_for_sources` before this ends.
    """
    name = _other_manager(session, location)
    if name is None:
        yield
        return
    session.conf.set(_MANAGER, name)
    try:
        yield
    finally:
        session.conf.unset(_MANAGER)


def wait_for_sources(query: StreamingQuery) -> None:
    """Wait until Spark has created the query's sources, for at most 10 s."""
    started: Any = query._jsq
    try:
        started.streamingQuery().awaitInitialization(_SOURCES_MS)
    except OTHER_INTERNALS as error:
        # The query's own failure, which the caller will see, or other internals.
        log.info("Not known whether the sources were created. error=%s", error)


@contextmanager
def spared_checksums(session: SparkSession, location: str) -> Iterator[None]:
    """Switch off `.crc` files for this JVM's writes through Hadoop's `FileSystem` on a local disk.

    Use it only in an application that runs nothing else. A `.crc` is half of a log entry's time: a
    second file, and a process `chmod`. Spark's default manager does not compare them. Existing ones
    are still compared, and replacing a file removes its `.crc`.
    """
    if _other_manager(session, location) is None:
        yield
        return
    files = HadoopFiles(session, location)
    _write_checksums(files, False)
    try:
        yield
    finally:
        _write_checksums(files, True)


def _write_checksums(files: HadoopFiles, on: bool) -> None:
    try:
        files.write_checksums(on)
    except (*OTHER_INTERNALS, OSError) as error:
        # The JVM may be gone, and what ended it is what the caller should see.
        log.warning("Cannot switch checksum files. on=%s error=%s", on, error)


def _other_manager(session: SparkSession, location: str) -> str | None:
    """Return the manager by `FileSystem` for a local checkpoint.

    ``None`` if the user set one, for another checkpoint, and in a Spark that is not known.
    """
    if session.conf.get(_MANAGER, None) is not None:
        return None
    known = session.version.startswith(_KNOWN)
    if not known or local_folder(HadoopFiles(session, location).location) is None:
        return None
    find: Any = session.sparkContext._jvm
    for name in _BY_FILE_SYSTEM:
        with suppress(*OTHER_INTERNALS):
            find.java.lang.Class.forName(name)
            return name
    return None


def spare_size_checks(df: DataFrame) -> None:
    """Let a batch end by its rows alone, unless the user set a size or rows may hold blobs.

    With a size limit, Spark 4.3 sums up the whole batch's size again after every single row: half
    of the driver's and executors' JVM time, measured with Flight Recorder on four narrow columns.
    The limit by rows (``spark.sql.execution.arrow.maxRecordsPerBatch``, 10,000) stays.

    :param df: a micro-batch; its session is the query's own, the user's stays unchanged.
    """
    if not _holds_blobs(df.schema):
        conf = df.sparkSession.conf
        conf.set(_LIMIT, conf.get(_LIMIT, _NONE) or _NONE)


class BatchRows:
    """Lets a batch of Arrow rows hold 4 MiB, judged by the previous epoch, or by the schema before.

    A batch has a fixed cost, some milliseconds in JVM and Python together, and a large one leaves
    the processor's caches: Spark's 10,000 rows of 768 floats (30 MB) take 1.7 times as long as
    batches of 4 MiB.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Store the dataset's schema."""
        self._schema = schema
        self._set: int | None = None

    def fit(self, df: DataFrame, dataset: Any, row_bytes: float | None) -> None:
        """Set the rows of a batch, within 256 and ten times Spark's default.

        :param df: a micro-batch; its session is the query's own, the user's stays unchanged.
        :param dataset: a handle of the dataset; its newest fragment tells how long texts are.
        :param row_bytes: bytes of one row in memory; ``None`` before a run's first epoch.
        """
        conf = df.sparkSession.conf
        expected = row_bytes or self._expected(dataset)
        wanted = min(_MOST, max(_FEWEST, int(_BATCH_BYTES / expected)))
        if wanted == (self._set or _USUAL):
            return
        if self._set is None and conf.get(_ROWS, None) is not None:
            return  # set by the user
        conf.set(_ROWS, wanted)
        self._set = wanted

    def _expected(self, dataset: Any) -> float:
        """Return the bytes of a row: exact where widths are fixed, else no less than are stored.

        A schema does not tell the length of texts and lists; Spark's default then is the most.
        """
        widths = [_width(field.type) for field in self._schema]
        known = sum(width for width in widths if width is not None)
        if None not in widths:
            return max(known, 1.0)
        return max(known, _stored_width(dataset), _BATCH_BYTES / _USUAL)


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of a value in memory, ``None`` if values differ."""
    if pa.types.is_struct(kind):
        widths = [_width(field.type) for field in kind]
        return None if None in widths else sum(width or 0 for width in widths)
    if pa.types.is_fixed_size_list(kind):
        width = _width(kind.value_type)
        return None if width is None else width * kind.list_size
    try:
        return float(kind.bit_width) / 8
    except ValueError:  # its values have no common width
        return None


def _stored_width(dataset: Any) -> float:
    """Return the bytes of a row in the newest fragment's files: encoded, so less than in memory."""
    newest = max(dataset.get_fragments(), key=lambda each: each.fragment_id, default=None)
    if newest is None or not newest.physical_rows:
        return 0.0
    size = sum(each.file_size_bytes or 0 for each in newest.metadata.files)
    return float(size) / float(newest.physical_rows)


def _holds_blobs(kind: DataType) -> bool:
    match kind:
        case BinaryType():
            return True
        case StructType():
            return any(_holds_blobs(field.dataType) for field in kind.fields)
        case ArrayType():
            return _holds_blobs(kind.elementType)
        case MapType():
            return _holds_blobs(kind.keyType) or _holds_blobs(kind.valueType)
    return False
