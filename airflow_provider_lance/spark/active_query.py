"""A running query, found inside Spark by its id: its output mode, checkpoint and end offsets.

A `foreachBatch` call has no public access to them, so this reads Spark's internals, and no file.
The names are those of PySpark 4.0 to 4.3; where another version differs, the answer is ``None``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.checkpoint import VOID_OFFSET, read_checkpoint
from airflow_provider_lance.protocol.checkpoint_files import log_offset
from airflow_provider_lance.spark.compat import OTHER_INTERNALS, offsets_of, source_names
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spec.sink_options import SinkOptions

__all__ = ["ActiveQuery", "find_active_query", "refuse_another_query", "same_location"]

_S3 = ("s3", "s3a", "s3n")
"""Schemes of one store: ``s3`` is Lance's, ``s3a`` Hadoop's."""

_HEADER_LINES = 2
"""The version (``v1``, ``v2``) and the metadata, before the offsets in a file of Spark's log."""


class ActiveQuery:
    """One query that runs in this driver.

    :param execution: Spark's ``MicroBatchExecution``.
    """

    def __init__(self, session: SparkSession, execution: Any) -> None:
        jvm: Any = session.sparkContext._jvm
        self._execution = execution
        self._buffer_class = jvm.java.io.ByteArrayOutputStream
        self._log: Any = None
        self._ends: dict[int, tuple[str, ...]] = {}
        self._file_leaf: int | None = None  # where a query of one source has its files
        self.output_mode = str(execution.outputMode().toString()).lower()
        """``append``, ``complete`` or ``update``."""
        self.checkpoint_root = str(execution.resolvedCheckpointRoot())
        """The checkpoint's location, made absolute by Spark: ``file:/data/checkpoint``."""

    def end_offsets(self, epoch_id: int) -> tuple[str, ...] | None:
        """Return where the epoch in progress ends, one text for each source.

        They are the lines of the checkpoint's ``offsets/<epoch_id>`` from the third on, written by
        Spark's own serializer from the plan in its memory: ``{"logOffset":0}``, or ``-`` for a
        source without an offset. With source evolution (``v2``) each begins with the source's name,
        ``orders:{"logOffset":0}``, and they are sorted. Reads no file; takes 0.2 to 0.7 ms.

        :return: ``None`` if Spark is at another epoch, or has other internals.
        """
        if epoch_id not in self._ends:
            lines = self._lines(epoch_id, "endOffsets")
            if lines is None:
                return None
            # Those of the epoch before are where this one begins.
            self._ends = {
                number: self._ends[number] for number in self._ends if number == epoch_id - 1
            }
            self._ends[epoch_id] = lines
        return self._ends[epoch_id]

    def start_offsets(self, epoch_id: int) -> tuple[str, ...] | None:
        """Return where the epoch in progress begins, as :meth:`end_offsets`.

        A source that has read nothing yet says where it begins.
        """
        lines = self._lines(epoch_id, "startOffsets")
        if lines is None:
            return None
        try:
            return tuple(
                str(self._sources.apply(place).initialOffset().json())
                if line == VOID_OFFSET
                else line
                for place, line in enumerate(lines)
            )
        except OTHER_INTERNALS:
            return None

    def entries(self, epoch_id: int) -> dict[str, range]:
        """Return the entries of file sources' logs that the epoch in progress reads.

        By the source's folder in the checkpoint: ``{"sources/0": range(12, 13)}``. Empty if no
        source has such a log, or nothing of it is new.
        """
        ends = self._sources_of(self.end_offsets(epoch_id))
        if not ends:
            return {}
        before = self._ends.get(epoch_id - 1)
        starts = self._sources_of(before or self._lines(epoch_id, "startOffsets"))
        found = {
            f"sources/{source}": range(starts.get(source, -1) + 1, end + 1)
            for source, end in ends.items()
        }
        return {folder: numbers for folder, numbers in found.items() if numbers}

    def files_read(self) -> set[str] | None:
        """Return the files that streaming file sources read in the epoch in progress.

        As Spark writes them into its log: ``file:///data/a%20b.json``. ``None`` if Spark has other
        internals.
        """
        try:
            leaves = self._execution.lastExecution().analyzed().collectLeaves()
            if self._file_leaf is not None:
                with suppress(*OTHER_INTERNALS):  # the source has nothing new, and no files
                    return _files_of(leaves.apply(self._file_leaf))
            places = [place for place in range(leaves.size()) if _reads_files(leaves.apply(place))]
            if len(places) == 1 and all(len(lines) == 1 for lines in self._ends.values()):
                self._file_leaf = places[0]
            return set[str]().union(*(_files_of(leaves.apply(place)) for place in places))
        except OTHER_INTERNALS:
            return None

    def _sources_of(self, lines: tuple[str, ...] | None) -> dict[str, int]:
        """Return the newest entry of each file source's log, of lines of the offset log."""
        found = {}
        for place, line in enumerate(lines or ()):
            name, entry = str(place), log_offset(line)
            if entry is None:  # it may begin with the source's name
                name, _, offset = line.partition(":")
                entry = log_offset(offset)
            if entry is not None:
                found[name] = entry
        return found

    def _lines(self, epoch_id: int, which: str) -> tuple[str, ...] | None:
        try:
            context = self._execution.getLatestExecutionContext()
            if int(context.batchId()) != epoch_id:
                return None
            if self._log is None:
                self._log = self._execution.offsetLog()
                self._sources = self._execution.sources()
                self._names = source_names(self._execution)
                self._metadata = context.offsetSeqMetadata()
            offsets = getattr(context, which)()
            offsets = offsets_of(offsets, self._sources, self._names, self._metadata)
            buffer = self._buffer_class()
            self._log.serialize(offsets, buffer)
            text = str(buffer.toString("UTF-8"))
        except OTHER_INTERNALS:
            return None
        version, *lines = text.split("\n")
        ends = lines[_HEADER_LINES - 1 :]
        return tuple(sorted(ends) if version == "v2" else ends)


def _reads_files(leaf: Any) -> bool:
    return bool(leaf.isStreaming()) and leaf.getClass().getSimpleName() == "LogicalRelation"


def _files_of(leaf: Any) -> set[str]:
    return set(map(str, leaf.relation().location().inputFiles()))


def find_active_query(session: SparkSession, query_id: str) -> ActiveQuery | None:
    """Find a query by its id, which is its checkpoint's id.

    :param session: any session of the application, also the clone that a query runs in.
    :return: ``None`` if no such query runs, or Spark has other internals.
    """
    try:
        jvm: Any = session.sparkContext._jvm
        running: Any = session._jsparkSession.sharedState().activeStreamingQueries()
        found = running.get(jvm.java.util.UUID.fromString(query_id))
        return ActiveQuery(session, found) if found is not None else None
    except OTHER_INTERNALS:
        return None


def refuse_another_query(session: SparkSession, options: SinkOptions, epoch_id: int) -> None:
    """Refuse the query that runs in this thread if the sink was made for another one.

    :raises SpecError: it has another output mode, or another checkpoint.
    :raises StorageUnavailableError: the sink's checkpoint location cannot be read.
    """
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
    query = find_active_query(session, query_id)
    if query is None:
        return
    wanted = options.output_mode.effect.of_spark
    if query.output_mode != wanted:
        raise SpecError(
            f"the query runs in output mode {query.output_mode} and the sink was made for {wanted},"
            f" so rows would be duplicated or missing. Write outputMode={query.output_mode!r} in "
            f"the sink's options or .outputMode({wanted!r}) at the query, or start it with "
            "sink.start(df), which sets both"
        )
    files = HadoopFiles(session, options.checkpoint_location)
    if not _is_same(query.checkpoint_root, files, query_id, epoch_id):
        raise SpecError(
            f"the query's checkpoint is {query.checkpoint_root} and the sink was made for "
            f"{options.checkpoint_location}. Restarts, checks and reports would look at the wrong "
            "one. Set the same location in both, or start the query with sink.start(df), which "
            "sets both"
        )


def _is_same(checkpoint: str, files: HadoopFiles, query_id: str, epoch_id: int) -> bool:
    if same_location(checkpoint, files.location):
        return True
    if {_scheme(checkpoint), _scheme(files.location)} == {"file"}:
        return False
    # Two paths to one store, such as a mount and its origin, show the same plan. A copy lacks the
    # newest one.
    there = read_checkpoint(files.location, files)
    return there.id == query_id and there.planned >= epoch_id


def same_location(one: str, other: str) -> bool:
    """Return whether two locations are spellings of one, as far as their text shows.

    Links are followed on this host's disks, where Hadoop does not follow them.
    """
    return _plain(one) == _plain(other)


def _scheme(location: str) -> str:
    return urlsplit(location).scheme or "file"


def _plain(location: str) -> tuple[str, str, str]:
    scheme, parts = _scheme(location), urlsplit(location)
    if scheme == "file":
        return scheme, "", os.path.realpath(location.removeprefix("file:"))
    return "s3" if scheme in _S3 else scheme, parts.netloc, location.split(":", 1)[1].rstrip("/")
