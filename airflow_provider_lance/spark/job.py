"""The spark-submit application: one specification in, one streaming query, one summary out.

    spark-submit --py-files airflow_provider_lance.zip job.py /private/spec.json [--remove]

The specification is a file, never an argument, because it may hold the store's secrets. In cluster
mode pass it with ``--files`` and name it without its folder. ``--remove`` deletes it once read.
Exit status: 0 finished or stopped in order, 1 failed or ended while an epoch hung, 2 the
specification cannot be read.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
import time
from typing import Any, NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.spark.application import read_spec, start_logging
from airflow_provider_lance.spark.aside import RAW
from airflow_provider_lance.spark.debezium import unpack_debezium
from airflow_provider_lance.spark.driver_loop import DriverLoop
from airflow_provider_lance.spark.failures import message_of, named_failure, named_user_failure
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spark.heartbeat import HeartbeatWriter
from airflow_provider_lance.spark.sieve import REFUSED
from airflow_provider_lance.spark.sink import LanceSink, StoppedOnRequestError
from airflow_provider_lance.spark.source import STREAM_FORMAT, is_supported, register_source
from airflow_provider_lance.spark.streaming_plan import needed_columns, read_less
from airflow_provider_lance.spark.tuning import spared_checksums, spared_forks, wait_for_sources
from airflow_provider_lance.spec.job import AVAILABLE_NOW, JobSpec, Source
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    forget_old_launches,
    report_location,
    write_summary,
)

__all__ = ["main", "run"]

log = logging.getLogger("airflow_provider_lance.spark.job")

_UPKEEP = ("lance-autocompact", "lance-autoindex")
"""The names of the sink's own threads, of which one may outlive its query by some seconds."""


def main(argv: list[str]) -> int:
    """Run the application; see the module's docstring for arguments and exit status."""
    if not argv or argv[1:] not in ([], ["--remove"]):
        print("usage: job.py SPEC.json [--remove]", file=sys.stderr)
        return 2
    start_logging()
    try:
        session = SparkSession.builder.getOrCreate()
    except Exception as error:
        return _no_session(argv[0], error)
    try:
        spec = JobSpec.loads(read_spec(argv[0], remove=len(argv) > 1))
    except (LanceStreamError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    summary, hangs = _run(session, spec, None)
    print(json.dumps(summary.to_json()))
    if hangs:
        _end_process(1)
    session.stop()
    return _without_abort(1 if summary.reason is EndReason.FAILED else 0)


def _without_abort(status: int) -> int:
    """Return the exit status, or exit with it at once while a thread of the sink's own runs.

    A thread that comes back from Lance while the interpreter ends aborts the process: "FATAL:
    exception not rethrown", and status 134 (seen on Python 3.11, pylance 14.0.2).
    """
    if any(each.name in _UPKEEP for each in threading.enumerate()):
        _end_process(status)
    return status


def _no_session(name: str, error: Exception) -> int:
    """Print why there is no Spark session: without one, the summary cannot be written to a file."""
    cause = _cause(error, None)
    if not os.path.exists(name):
        raise error  # in a cluster only Spark ships the specification
    try:
        spec = JobSpec.loads(read_spec(name, remove=False))
    except (LanceStreamError, OSError) as unread:
        print(f"{type(unread).__name__}: {unread}", file=sys.stderr)
        return 2
    print(json.dumps(_summary(spec, LanceSink(spec.sink), error=cause).to_json()))
    return 1


def _end_process(status: int) -> NoReturn:
    """Exit at once; spark-submit sees the status and ends the JVM.

    `session.stop()` and the interpreter's own end would wait for a thread that hangs.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(session: SparkSession, spec: JobSpec, sink: LanceSink | None = None) -> Summary:
    """Run one launch to its end and write its summary beside the checkpoint. Never raises.

    :param sink: the sink to use instead of one made from the specification; for tests.
    """
    return _run(session, spec, sink)[0]


def _run(session: SparkSession, spec: JobSpec, sink: LanceSink | None) -> tuple[Summary, bool]:
    """Do what :func:`run` does; return also whether a query still hangs in this process."""
    began = time.monotonic()
    sink = sink or LanceSink(spec.sink, launch_id=spec.launch_id, launched_by=spec.launched_by)
    query: StreamingQuery | None = None
    heartbeat: HeartbeatWriter | None = None
    supervision: DriverLoop | None = None
    error: BaseException | None = None
    try:
        files = HadoopFiles(session, report_location(spec.sink.checkpoint_location))
        reads = spec.source.options if spec.source and spec.source.is_lance else None
        heartbeat = HeartbeatWriter(files, spec.launch_id, session, sink, reads)
        df = _dataframe(session, spec)
        checkpoint = spec.sink.checkpoint_location
        with spared_checksums(session, checkpoint):
            with spared_forks(session, checkpoint):
                query = sink.start(df, **_trigger(spec.trigger))
                supervision = DriverLoop(session, query, sink, heartbeat, spec.stop_grace)
                wait_for_sources(query)
            supervision.wait()
    except BaseException as caught:  # SystemExit in a user's function gets a summary too
        error = _cause(caught, sink)
        if supervision:
            supervision.end()
    # A release would wait for the epoch that hangs.
    hangs = bool(supervision and supervision.hangs)
    stopped = sink.closed
    released = not hangs and _release(sink)
    if heartbeat:
        heartbeat.beat(query, "ended")
    summary = _summary(
        spec,
        sink,
        query=query,
        supervision=supervision,
        error=error,
        stopped=stopped,
        released=released,
        seconds=time.monotonic() - began,
    )
    if heartbeat is None:
        return summary, hangs
    try:
        write_summary(files, summary)
        forget_old_launches(files)
    except LanceStreamError as unwritten:
        log.error("Summary not written. error=%s", unwritten)
    return summary, hangs


def _trigger(text: str) -> dict[str, Any]:
    return {"availableNow": True} if text == AVAILABLE_NOW else {"processingTime": text}


def _dataframe(session: SparkSession, spec: JobSpec) -> DataFrame:
    """Build the streaming DataFrame that the specification describes.

    :raises SpecError: Spark cannot read the source or the SQL, or the user's function does not
        exist or returns something else.
    """
    if spec.source:
        return _from_source(session, spec, spec.source)
    if is_supported():
        _register(session, spec)
    module, _, name = str(spec.dataframe).partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"dataframe {spec.dataframe!r} cannot be loaded: {error}. Ship the module with py_files"
        ) from error
    except Exception as error:
        raise named_user_failure(error, f"importing dataframe {spec.dataframe!r}") from error
    try:
        df = function(session, dict(spec.arguments))
    except Exception as error:
        raise named_user_failure(error, f"dataframe {spec.dataframe!r}") from error
    if not isinstance(df, DataFrame):
        raise SpecError(f"dataframe {spec.dataframe!r} returned {type(df).__name__}")
    return df


def _register(session: SparkSession, spec: JobSpec) -> None:
    register_source(
        session,
        spec.source_storage_options,
        writes_to=spec.sink.uri,
        checkpoint_location=spec.sink.checkpoint_location,
    )


def _from_source(session: SparkSession, spec: JobSpec, source: Source) -> DataFrame:
    options = dict(source.options)
    if source.is_lance:
        _register(session, spec)
        options = {"consumerId": spec.sink.query_id} | options
    try:
        form = STREAM_FORMAT if source.is_lance else source.format
        reader = session.readStream.format(form).options(**options)
        schema = source.reader_schema
        df = (reader.schema(schema) if schema else reader).load()
        if source.envelope:
            df = unpack_debezium(df, str(source.schema), source.envelope_options)
        if not spec.sql:
            return df
        result = _over(df, spec.sql)
        if source.envelope:
            _refuse_lost_refusals(result, spec.sql)
        if not source.is_lance or "columns" in map(str.lower, options):
            return result
        less = read_less(df, needed_columns(result), reader)
        return result if less is None else _over(less, spec.sql)
    except Exception as error:
        named = named_failure(error)
        if isinstance(named, SpecError):
            raise SpecError(f"the source or its sql cannot be read: {named}") from None
        raise


def _refuse_lost_refusals(result: DataFrame, sql: str) -> None:
    """Refuse SQL that would let records that were not unpacked land as rows of nulls."""
    if REFUSED not in result.columns and REFUSED not in sql:
        raise SpecError(
            f"sql leaves out {REFUSED}, so records that cannot be unpacked would be rows of nulls: "
            f"select {REFUSED} and {RAW} too, and the sink refuses or quarantines these records; "
            f"or say WHERE {REFUSED} IS NULL, which drops them"
        )


def _over(df: DataFrame, sql: str) -> DataFrame:
    df.createOrReplaceTempView("source")
    return df.sparkSession.sql(sql)


def _cause(caught: BaseException, sink: LanceSink | None) -> BaseException | None:
    """Return the error behind Spark's wrapping, ``None`` when it was the orderly stop."""
    inner = sink.error if sink else None
    cause = inner if isinstance(caught, StreamingQueryException) and inner else caught
    if isinstance(cause, StoppedOnRequestError):
        return None
    # An error of this package is complete; for any other, the trace may be the only information.
    named = named_failure(cause)
    trace = None if named else cause
    cause = named or cause
    log.error("The query failed. %s: %s", type(cause).__name__, message_of(cause), exc_info=trace)
    return cause


def _release(sink: LanceSink) -> bool:
    try:
        return sink.release()
    except BaseException:
        log.exception("Not released; the next claim commits a barrier.")
        return False


def _summary(
    spec: JobSpec,
    sink: LanceSink,
    *,
    error: BaseException | None,
    query: StreamingQuery | None = None,
    supervision: DriverLoop | None = None,
    stopped: bool = False,
    released: bool = False,
    seconds: float = 0.0,
) -> Summary:
    session, totals = sink.session, sink.totals
    reason = EndReason.STOPPED if stopped else EndReason.FINISHED
    request = supervision.request if supervision else None
    hangs = supervision.hangs if supervision else None
    return Summary(
        launch_id=spec.launch_id,
        query_id=spec.sink.query_id,
        uri=spec.sink.uri,
        reason=EndReason.FAILED if error else reason,
        epochs=totals.epochs,
        rows=totals.rows,
        deletes=totals.deletes,
        skipped=totals.skipped,
        first_epoch=totals.first_epoch,
        last_epoch=totals.last_epoch,
        watermark=session.watermark if session else -1,
        version=session.port.version if session else None,
        manifest_updates=session.manifest_updates if session else 0,
        released=released,
        seconds=round(seconds, 3),
        run_id=str(query.runId) if query else None,
        error=type(error).__name__ if error else None,
        message=message_of(error) if error else hangs,
        stopped_by=(request.by or None) if request else None,
        checks=totals.checks,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
