"""The sink: a `foreachBatch` function that writes each epoch once, and starts its own query."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import refuse_corrupt
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.commit_policy import CommitPolicy
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.decision import Decision
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.lance_errors import named_panics
from airflow_provider_lance.protocol.offset_notes import local_folder
from airflow_provider_lance.protocol.session import DriverSession
from airflow_provider_lance.protocol.side_tables import SideTables
from airflow_provider_lance.spark.active_query import (
    find_active_query,
    refuse_another_query,
)
from airflow_provider_lance.spark.autocompact import AutoCompaction, Table
from airflow_provider_lance.spark.autoindex import IndexRefresh
from airflow_provider_lance.spark.epoch_runner import EpochRunner
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spark.kafka import KafkaTopics
from airflow_provider_lance.spark.note_taker import NoteTaker
from airflow_provider_lance.spark.quarantine import open_quarantine
from airflow_provider_lance.spark.routes import RouteRunner, open_home
from airflow_provider_lance.spark.run_metrics import EpochReport, RunMetrics
from airflow_provider_lance.spark.start import (
    classic_session,
    driver_of,
    refuse_trigger,
    remove_half_written,
    trigger_seconds,
    wait_for_end,
)
from airflow_provider_lance.spark.streaming_plan import refuse_loop
from airflow_provider_lance.spark.target import open_target
from airflow_provider_lance.spark.tuning import spare_size_checks
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.supervision.driver_reports import launched_at, report_location
from airflow_provider_lance.supervision.heartbeat import Upkeep
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["EpochReport", "LanceSink", "RunMetrics", "StoppedOnRequestError"]

log = logging.getLogger(__name__)

_TURN_SECONDS = 300.0
_COMPACTION_SECONDS = 5.0


class StoppedOnRequestError(Exception):
    """Ends the query instead of an epoch that a closed sink must not begin; no data is lost."""


class LanceSink:
    """Writes a streaming DataFrame into one Lance dataset, each epoch exactly once.

    Start the query with :meth:`start`. You can also pass the sink to ``foreachBatch``; it then
    checks dataset, checkpoint and output mode at the first epoch, before it writes anything.

    Options have the names of :class:`~.spec.sink_options.SinkOptions`, in camelCase:
    ``LanceSink(uri=…, queryId=…, checkpointLocation=…, outputMode="append")``. A sink serves one
    run; make a new one for the next.

    :param launch_id: the name of this launch, which stop requests may name; empty without one.
    :param launched_by: who launched it, for people who inspect the dataset.
    :param on_step: called at each step between two side effects; tests end the process there.
    :raises SpecError: unknown option, wrong form, missing option, or contradicting options.
    """

    def __init__(
        self,
        options: SinkOptions | None = None,
        /,
        *,
        launch_id: str = "",
        launched_by: str = "",
        on_step: Callable[[Failpoint], None] = lambda step: None,
        **given: Any,
    ) -> None:
        if options is not None and given:
            raise SpecError(
                f"give options as one SinkOptions or by name, not both: {sorted(given)}"
            )
        self.options = options or SinkOptions.parse(given)
        self.launch_id, self.launched_by = launch_id, launched_by
        self.session: DriverSession | None = None
        """This driver's part in the protocol; ``None`` before the start."""
        self.sides: SideTables | None = None
        """The further datasets that its epochs write; ``None`` before the start."""
        self.topics: KafkaTopics | None = None
        """What the query reads from Kafka; ``None`` if it reads nothing there."""
        self.error: BaseException | None = None
        """The error that ended the last epoch, unwrapped: Spark reports it as text only."""
        self.totals = RunMetrics()
        """What this run has committed so far."""
        self.last: EpochReport | None = None
        self.epoch_in_progress: int | None = None
        self.last_activity = time.monotonic()
        self._on_step = on_step
        self._compaction = AutoCompaction(
            self.options.auto_compact_every,
            self.options.query_id,
            keep=self.options.keep_versions_for,
        )
        self._indices: IndexRefresh | None = None
        if self.options.keeps_indices:
            self._indices = IndexRefresh(self.options.query_id, self._compaction.kept_out)
        self._schema: pa.Schema | None = None
        self._runner: EpochRunner | None = None
        self._closed = threading.Event()
        self._turn = threading.Lock()

    # -------------------------------------------------------------------------------------- start

    def start(self, df: DataFrame, **trigger: Any) -> StreamingQuery:
        """Check everything that can be checked without reading data, then start the query.

        :param df: a streaming DataFrame of a classic Spark session.
        :param trigger: as Spark's ``DataStreamWriter.trigger`` takes it: ``availableNow=True`` or
            ``processingTime="10 seconds"``.
        :raises SpecError: static DataFrame, Spark Connect, a trigger that loses data here, or a
            DataFrame that reads the sink's own dataset.
        :raises DatasetNotFoundError: no dataset, and ``createIfMissing`` is off.
        :raises SchemaMismatchError: the columns do not fit.
        :raises CheckpointMismatchError, HistoryGapError, ProtocolVersionError: see
            :meth:`~airflow_provider_lance.protocol.session.DriverSession.prepare`.
        :raises CheckpointCorruptError: Spark cannot read a file of the checkpoint.
        :raises SourceReplacedError, SourceNotFoundError: see :meth:`.KafkaTopics.admit`.
        :raises FencedError, TransientError: the query could not be taken from an owner that did not
            release it.
        """
        refuse_trigger(trigger)
        refuse_loop(df, self.options.uri)
        if self.session or self.closed:
            raise SpecError("a LanceSink serves one run of a query: make a new one for the next")
        self._take_over(self._prepare(df, streaming=True), df.sparkSession)
        interval = trigger_seconds(df.sparkSession, trigger)
        if "processingTime" in trigger and not interval:
            log.warning(
                "The trigger is %r: one epoch begins when the one before it ends, and each makes a "
                "version of the dataset, a thousand a minute where data trickles in. Set an "
                "interval such as '10 seconds'. query_id=%s",
                trigger["processingTime"],
                self.options.query_id,
            )
        self._compaction.use_interval(interval)
        return (
            df.writeStream.outputMode(self.options.output_mode.effect.of_spark)
            .option("checkpointLocation", self.options.checkpoint_location)
            .foreachBatch(self)
            .trigger(**trigger)
            .start()
        )

    def close(self) -> None:
        """Let the epoch in progress finish, and refuse further epochs."""
        self._closed.set()

    @property
    def upkeep(self) -> Upkeep:
        """Return what this run has done to look after its tables."""
        return self._compaction.done

    @property
    def closed(self) -> bool:
        """Return whether the sink refuses further epochs."""
        return self._closed.is_set()

    def release(self) -> bool:
        """Fold the watermark and give the query up; call it once the query has ended.

        Spark's ``stop()`` does not wait for a running call of the sink, and an owner must not be
        released during a commit. So this waits, and gives up (returns ``False``) if the call hangs.
        The sink's own compaction, and its refresh of indices, get a few seconds each to end.
        """
        self.close()
        self._compaction.end(_COMPACTION_SECONDS)
        if self._indices:
            self._indices.end(_COMPACTION_SECONDS)
        if not self._turn.acquire(timeout=_TURN_SECONDS):
            return False
        try:
            return self.sides.release() if self.sides else False
        finally:
            self._turn.release()
            if self.topics:
                self.topics.close()

    def _prepare(self, df: DataFrame, *, streaming: bool) -> DriverSession:
        spark = classic_session(df)
        if streaming and not df.isStreaming:
            raise SpecError(
                "the DataFrame is static: read it with spark.readStream, or write it once with "
                "lance.write_dataset"
            )
        options = self.options
        port = open_home(df, options) if options.route_by else open_target(df, options)
        self._schema = port.dataset.schema
        files = HadoopFiles(spark, options.checkpoint_location)

        def look() -> Any:
            return read_checkpoint(options.checkpoint_location, files, with_ends=True)

        def heard(driver: Any) -> int:
            reports = HadoopFiles(spark, report_location(options.checkpoint_location))
            return DriverObservation.read(reports, driver.launch_id).watermark

        policy = CommitPolicy(
            watermark_every=options.watermark_every,
            new_generation=options.new_generation,
            on_history_gap=options.on_history_gap,
            on_restore=options.on_restore,
        )
        checkpoint = look().with_changed_entries()
        session = DriverSession(
            port,
            options.query_id,
            checkpoint,
            policy,
            launch_id=self.launch_id,
            launched_at=launched_at(self.launch_id),
            look=look,
            heard=heard,
            on_step=self._on_step,
        )
        session.prepare()
        if streaming:  # otherwise Spark has already read it, and writes to it
            refuse_corrupt(files, checkpoint, port, options.query_id, session.watermark)
            forget = command_line("resolve", "topics", options.uri, options.query_id)
            self.topics = KafkaTopics.of(df, files, forget if session.known else "")
            if self.topics:
                self.topics.admit(checkpoint)
        sides = SideTables(session, self._open_side, digest=options.division)
        sides.prepare(options.side_uri)
        if options.quarantines:
            open_quarantine(options)  # what is wrong with it shows now, not with the first bad row
        self.session, self.sides = session, sides
        return session

    def _open_side(self, uri: str) -> LanceDatasetPort:
        options = self.options
        return open_dataset(uri, options.storage_options, cache_bytes=options.cache_bytes)

    def _take_over(self, session: DriverSession, spark: SparkSession) -> None:
        assert self.sides is not None
        driver = driver_of(spark, self.options, self.launch_id, self.launched_by)
        if previous := session.take_over(driver):
            self.sides.take_over()
            location = report_location(self.options.checkpoint_location)
            wait_for_end(previous, HadoopFiles(spark, location))
            session.recheck()  # the fenced driver may have written Spark's log until its end
            self.sides.recheck()
        remove_half_written(HadoopFiles(spark, self.options.checkpoint_location))

    # --------------------------------------------------------------------------- epoch after epoch

    def __call__(self, df: DataFrame, epoch_id: int) -> None:
        """Write and commit one epoch for Spark; raise every error, or Spark logs it as done."""
        with self._turn:
            self.epoch_in_progress = int(epoch_id)
            try:
                if self.closed:
                    raise StoppedOnRequestError(f"epoch {epoch_id} was not begun: asked to stop")
                with named_panics(self.options.uri):
                    report = self._run(df, int(epoch_id))
            except Exception as error:
                self.error = error
                raise
            except BaseException as error:
                # py4j answers the JVM only after an Exception; otherwise the JVM waits forever.
                self.error = error
                raise RuntimeError(f"epoch {epoch_id} ended in {error!r}") from error
            finally:
                self.epoch_in_progress = None
        self.last, self.totals = report, self.totals.plus(report)
        self.last_activity = time.monotonic()
        log.info(
            "Epoch done. query_id=%s epoch=%d decision=%s rows=%d fragments=%d version=%d "
            "write_ms=%.0f commit_ms=%.1f",
            self.options.query_id,
            report.epoch_id,
            report.decision.value if report.decision else "EMPTY",
            report.rows,
            report.fragments,
            report.version,
            report.write_ms,
            report.commit_ms,
        )

    def _run(self, df: DataFrame, epoch_id: int) -> EpochReport:
        if self.session is None:  # used directly: what :meth:`start` sets may differ
            refuse_another_query(classic_session(df), self.options, epoch_id)
        session = self.session or self._prepare(df, streaming=False)
        if self._runner is None:
            driver = driver_of(df.sparkSession, self.options, self.launch_id, self.launched_by)
            session.identify(driver)
            assert self._schema is not None
            assert self.sides is not None
            query = find_active_query(df.sparkSession, driver.checkpoint_id)
            folder = local_folder(query.checkpoint_root) if query else None
            made = RouteRunner if self.options.route_by else EpochRunner
            self._runner = made(
                self.options,
                session,
                self.sides,
                self._schema,
                run_id=driver.run_id,
                query=query,
                compaction=self._compaction,
                topics=self.topics,
                notes=NoteTaker(session, query, folder) if query and folder else None,
            )
            spare_size_checks(df)
        report = self._runner.run(df, epoch_id)
        if report.decision is Decision.FULL_COMMIT and not self.closed:
            assert self.sides is not None
            sides: Any = self.sides.sessions.items()
            tables = (Table(side.port, side.owner, name) for name, side in sides)
            port: Any = session.port
            self._compaction.epoch_done(epoch_id, port, session.owner, tables)
            if self._indices:
                self._indices.epoch_done(port, session.owner)
        return report
