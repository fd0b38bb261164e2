"""The spark-submit application: one specification in, one streaming query, one summary out.

    spark-submit --py-files airflow_provider_lance.zip job.py /private/spec.json

The specification is a file, never an argument, because it may hold the store's secrets. In cluster
mode pass it with ``--files`` and name it without its folder.
Exit status: 0 finished or stopped in order, 1 failed, 2 the specification cannot be read.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from typing import Any

from pyspark import SparkFiles
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.exceptions import LanceStreamError, SpecError
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spark.heartbeat import Heartbeat
from airflow_provider_lance.spark.sink import LanceSink, StoppedOnRequestError
from airflow_provider_lance.streaming.report import (
    EndReason,
    Summary,
    forget_old_launches,
    report_location,
    write_summary,
)
from airflow_provider_lance.streaming.spec import AVAILABLE_NOW, JobSpec, Source

__all__ = ["main", "run"]

log = logging.getLogger("airflow_provider_lance.spark.job")

_LOOK_SECONDS = 1
_STOP_POLL_SECONDS = 10.0
"""How often an idle driver opens the dataset to see a stop request; a busy one sees it for free."""


def main(argv: list[str]) -> int:
    """Run the application; see the module's docstring for arguments and exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("airflow_provider_lance").setLevel(logging.INFO)
    if len(argv) != 1:
        print("usage: job.py SPEC.json", file=sys.stderr)
        return 2
    session = SparkSession.builder.getOrCreate()
    try:
        spec = JobSpec.loads(_read_spec(argv[0]))
    except (LanceStreamError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    summary = run(session, spec)
    print(json.dumps(summary.to_json()))
    session.stop()
    return 1 if summary.reason is EndReason.FAILED else 0


def _read_spec(name: str) -> str:
    path = name if os.path.exists(name) else SparkFiles.get(name)
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(session: SparkSession, spec: JobSpec, sink: LanceSink | None = None) -> Summary:
    """Run one launch to its end and leave its summary beside the checkpoint. Never raises.

    :param sink: the sink to use instead of one made from the specification; for tests.
    """
    began = time.monotonic()
    sink = sink or LanceSink(spec.sink)
    query: StreamingQuery | None = None
    heartbeat: Heartbeat | None = None
    error: BaseException | None = None
    try:
        files = HadoopFiles(session, report_location(spec.sink.checkpoint_location))
        heartbeat = Heartbeat(files, spec.launch_id, session, sink)
        query = sink.start(_dataframe(session, spec), **_trigger(spec.trigger))
        _supervise(query, sink, heartbeat)
    except Exception as caught:
        error = _cause(caught, sink)
        _end(query, sink)
    stopped = sink.closed
    released = _release(sink)
    if heartbeat:
        heartbeat.beat(query, "ended")
    summary = _summary(
        spec,
        sink,
        query=query,
        error=error,
        stopped=stopped,
        released=released,
        seconds=time.monotonic() - began,
    )
    if heartbeat is None:
        return summary
    try:
        write_summary(files, summary)
        forget_old_launches(files)
    except LanceStreamError as unwritten:
        log.error("Summary not written. error=%s", unwritten)
    return summary


def _end(query: StreamingQuery | None, sink: LanceSink) -> None:
    """End a query that outlived its supervision; an epoch in progress still counts."""
    sink.close()
    try:
        if query is not None and query.isActive:
            query.stop()
    except Exception:
        log.exception("The query did not stop; the sink begins no more epochs.")


def _trigger(text: str) -> dict[str, Any]:
    return {"availableNow": True} if text == AVAILABLE_NOW else {"processingTime": text}


def _dataframe(session: SparkSession, spec: JobSpec) -> DataFrame:
    """Build the streaming DataFrame that the specification describes.

    :raises SpecError: Spark cannot read the source or the SQL, or the user's function is not
        there or returns something else.
    """
    if spec.source:
        return _from_source(session, spec.source, spec.sql)
    module, _, name = str(spec.dataframe).partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"dataframe {spec.dataframe!r} cannot be loaded: {error}. Ship the module with py_files"
        ) from error
    df = function(session, dict(spec.arguments))
    if not isinstance(df, DataFrame):
        raise SpecError(f"dataframe {spec.dataframe!r} returned {type(df).__name__}")
    return df


def _from_source(session: SparkSession, source: Source, sql: str | None) -> DataFrame:
    try:
        reader = session.readStream.format(source.format).options(**source.options)
        df = (reader.schema(source.schema) if source.schema else reader).load()
        if not sql:
            return df
        df.createOrReplaceTempView("source")
        return session.sql(sql)
    except (AnalysisException, ParseException) as error:
        raise SpecError(f"the source or its sql cannot be read: {_message(error)}") from None


def _supervise(query: StreamingQuery, sink: LanceSink, heartbeat: Heartbeat) -> None:
    """Wait for the query's end; write heartbeats; end it in order when it is asked to stop."""
    looked = time.monotonic()
    while not query.awaitTermination(_LOOK_SECONDS):
        heartbeat.beat(query, "stopping" if sink.closed else "running")
        if sink.closed:
            # Between two triggers nothing is under way; while one is, the sink refuses the next.
            if not query.status["isTriggerActive"]:
                query.stop()
            continue
        now = time.monotonic()
        idle = now - max(sink.last_activity, looked) > _STOP_POLL_SECONDS
        looked = now if idle else looked
        if _stop_requested(sink, poll=idle):
            log.info("Asked to stop; the epoch in progress is finished first.")
            sink.close()


def _stop_requested(sink: LanceSink, *, poll: bool) -> bool:
    if sink.committer is None:
        return False
    try:
        return sink.committer.stop_requested(poll=poll)
    except LanceStreamError as error:
        log.warning("Cannot look for a stop request. error=%s", error)
        return False


def _cause(caught: Exception, sink: LanceSink) -> BaseException | None:
    """Return the error behind Spark's wrapping, ``None`` when it was the orderly stop."""
    cause = sink.error if isinstance(caught, StreamingQueryException) and sink.error else caught
    if isinstance(cause, StoppedOnRequestError):
        return None
    # An error of ours says all there is to say; for any other the trace may be all there is.
    trace = None if isinstance(cause, LanceStreamError) else cause
    log.error("The query failed. %s: %s", type(cause).__name__, _message(cause), exc_info=trace)
    return cause


def _release(sink: LanceSink) -> bool:
    try:
        return sink.release()
    except Exception:
        log.exception("Not released; the next claim commits a barrier.")
        return False


def _summary(
    spec: JobSpec,
    sink: LanceSink,
    *,
    query: StreamingQuery | None,
    error: BaseException | None,
    stopped: bool,
    released: bool,
    seconds: float,
) -> Summary:
    committer, totals = sink.committer, sink.totals
    reason = EndReason.STOPPED if stopped else EndReason.FINISHED
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
        watermark=committer.watermark if committer else -1,
        version=committer.port.version if committer else None,
        manifest_updates=committer.manifest_updates if committer else 0,
        released=released,
        seconds=round(seconds, 3),
        run_id=str(query.runId) if query else None,
        error=type(error).__name__ if error else None,
        message=_message(error) if error else None,
    )


def _message(error: BaseException) -> str:
    if isinstance(error, PySparkException):
        # Spark's own text repeats the JVM's stack trace behind the first lines.
        return str(error).split("\nJVM stacktrace", 1)[0].strip()
    return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
