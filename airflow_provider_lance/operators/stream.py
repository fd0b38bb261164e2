"""Run a Spark Structured Streaming query into a Lance dataset, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk import conf as airflow_conf

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.drivers import Launch
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.dataset import LanceDatasetLink
from airflow_provider_lance.links.spark_ui import SparkUILink
from airflow_provider_lance.links.stream import LanceStreamLink
from airflow_provider_lance.operators.launching import default_driver_folder
from airflow_provider_lance.operators.lineage import StreamLineage
from airflow_provider_lance.operators.run import StreamRun
from airflow_provider_lance.operators.specification import job_spec, mapping, seconds
from airflow_provider_lance.operators.submission import Submission, spark_connection
from airflow_provider_lance.streaming.health import Limits
from airflow_provider_lance.streaming.restarts import RestartPolicy
from airflow_provider_lance.streaming.spec import AVAILABLE_NOW, JobSpec
from airflow_provider_lance.triggers.watch import WatchOrder

__all__ = ["LanceStreamOperator"]


class LanceStreamOperator(StreamLineage, BaseOperator):
    """
    Stream from a source into a Lance dataset: all there is and end, or on and on.

    Rows come from ``source``, with an optional ``sql`` over it, or from ``dataframe``. Each epoch
    lands exactly once. The driver outlives the task's process: a retry, a clear or a restarted
    worker finds it again. A driver that dies, hangs or fails for a passing reason is replaced; set
    ``retries`` as well, because Airflow's default is none. Returns the driver's summary; its
    ``reason`` is ``finished``, ``stopped``, or ``unknown`` where the driver ended well and this
    worker cannot read the checkpoint's folder.

    The store's secrets come from the Lance connection and travel in a private file. ``source`` and
    ``arguments`` show in the rendered template: write a secret as ``{{ conn.kafka.password }}``,
    which Airflow masks.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: One stable, globally unique name of the query. (templated)
    :param checkpoint_location: Spark's checkpoint, of this query only; absolute. (templated)
    :param source: A Spark streaming source: ``format``, and if needed ``options`` and ``schema``.
        (templated)
    :param sql: A query over the view ``source``, or a ``.sql`` file. (templated)
    :param dataframe: In place of a source, ``module:function`` of (spark, arguments) that returns a
        streaming DataFrame. (templated)
    :param arguments: What that function is called with. (templated)
    :param trigger: ``availableNow``, or an interval such as ``10 seconds`` for a stream that goes
        on until it is asked to stop. (templated)
    :param output_mode: ``append``, ``complete`` or ``update``. (templated)
    :param sink_options: Further options of the sink, named as in Spark: ``mergeKeys``,
        ``createIfMissing``. (templated)
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        (templated)
    :param spark_conn_id: The Spark connection. (templated)
    :param conf: Spark configuration properties; they show on the command line. (templated)
    :param packages: Maven coordinates to load, with commas between them. (templated)
    :param py_files: Python files and zips for driver and executors, with commas between them.
        (templated)
    :param deploy_mode: ``client`` or ``cluster``; by default the Spark connection's. (templated)
    :param spark_submit: Further keyword arguments of ``SparkSubmitHook``. (templated)
    :param deferrable: Supervise from the triggerer, without a worker slot.
    :param poll_interval: Seconds between two looks at the driver.
    :param stall_timeout: How long one epoch may be planned and not committed.
    :param start_timeout: How long a driver may take from its launch to its first heartbeat.
    :param heartbeat_timeout: How long a driver out of sight may be silent.
    :param stop_grace: How long a driver that was asked to stop may take for its epoch.
    :param max_restarts: Restarts without progress between them, after which the task fails; by
        default 5, and none with ``availableNow``, where Airflow's retries are enough.
    :param restart_delay: The wait before the first restart; it doubles, with jitter.
    :param max_restart_delay: The longest such wait.
    :param healthy_after: A driver that lived so long counts as progress.
    :param driver_folder: Where drivers on this host keep their logs; by default
        ``lance-streams`` in Airflow's home.
    """

    template_fields: Sequence[str] = (
        "uri",
        "query_id",
        "checkpoint_location",
        "source",
        "sql",
        "dataframe",
        "arguments",
        "trigger",
        "output_mode",
        "sink_options",
        "lance_conn_id",
        "spark_conn_id",
        "conf",
        "packages",
        "py_files",
        "deploy_mode",
        "spark_submit",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "source": "json",
        "sql": "sql",
        "arguments": "json",
        "sink_options": "json",
        "conf": "json",
        "spark_submit": "json",
    }
    operator_extra_links = (LanceStreamLink(), SparkUILink(), LanceDatasetLink())
    ui_color = "#f6d7c3"

    def __init__(
        self,
        *,
        uri: str,
        query_id: str,
        checkpoint_location: str,
        source: dict[str, Any] | None = None,
        sql: str | None = None,
        dataframe: str | None = None,
        arguments: dict[str, Any] | None = None,
        trigger: str = AVAILABLE_NOW,
        output_mode: str = "append",
        sink_options: dict[str, Any] | None = None,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        conf: dict[str, Any] | None = None,
        packages: str | None = None,
        py_files: str | None = None,
        deploy_mode: str | None = None,
        spark_submit: dict[str, Any] | None = None,
        deferrable: bool = airflow_conf.getboolean(
            "operators", "default_deferrable", fallback=False
        ),
        poll_interval: float = 5.0,
        stall_timeout: timedelta = timedelta(minutes=10),
        start_timeout: timedelta = timedelta(minutes=5),
        heartbeat_timeout: timedelta = timedelta(minutes=2),
        stop_grace: timedelta = timedelta(minutes=1),
        max_restarts: int | None = None,
        restart_delay: timedelta = timedelta(seconds=10),
        max_restart_delay: timedelta = timedelta(minutes=5),
        healthy_after: timedelta = timedelta(minutes=10),
        driver_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.query_id = query_id
        self.checkpoint_location = checkpoint_location
        self.source = source
        self.sql = sql
        self.dataframe = dataframe
        self.arguments = arguments
        self.trigger = trigger
        self.output_mode = output_mode
        self.sink_options = sink_options
        self.lance_conn_id = lance_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.packages = packages
        self.py_files = py_files
        self.deploy_mode = deploy_mode
        self.spark_submit = spark_submit
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.stall_timeout = stall_timeout
        self.start_timeout = start_timeout
        self.heartbeat_timeout = heartbeat_timeout
        self.stop_grace = stop_grace
        self.max_restarts = max_restarts
        self.restart_delay = restart_delay
        self.max_restart_delay = max_restart_delay
        self.healthy_after = healthy_after
        self.driver_folder = driver_folder
        self.stream_url = ""
        self.spark_ui_url = ""
        self.dataset_url = ""
        self._run: StreamRun | None = None

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            self._run = StreamRun(self, context)
            return self._run.begin()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on where the triggerer stopped: end, or launch a new driver and wait again."""
        with no_retry_if_terminal():
            self._run = StreamRun(self, context)
            return self._run.resume(event)

    def on_kill(self) -> None:
        if self._run:
            self._run.kill()

    def job_spec(self, launched_by: str) -> JobSpec:
        """Return the specification of a new launch.

        :raises SpecError: an argument is missing, unknown or contradicts another.
        """
        return job_spec(
            uri=self.hook.resolve(self.uri),
            query_id=self.query_id,
            checkpoint_location=self.checkpoint_location,
            output_mode=self.output_mode,
            sink_options=self.sink_options,
            storage_options=self.hook.storage_options,
            further={
                "launchedBy": launched_by,
                "source": self.source,
                "sql": self.sql,
                "dataframe": self.dataframe,
                "arguments": self.arguments,
                "trigger": self.trigger,
                "stopGrace": max(1, round(seconds(self.stop_grace, "stop_grace"))),
            },
        )

    def submission(self) -> Submission:
        """Return what is handed to spark-submit besides the specification.

        :raises SpecError: an argument is unknown or belongs elsewhere, or the Spark connection is
            missing or cannot run this.
        """
        return Submission(
            connection=spark_connection(self.spark_conn_id),
            name=f"lance-stream-{self.query_id}",
            conf=mapping(self.conf, "conf"),
            packages=self.packages,
            py_files=self.py_files,
            deploy_mode=self.deploy_mode,
            further=mapping(self.spark_submit, "spark_submit"),
        )

    def watch_order(self, launch: Launch, me: str, tags: dict[str, str]) -> WatchOrder:
        """Return how a launch is to be watched.

        :raises SpecError: a duration or a number is out of range.
        """
        if not self.poll_interval > 0:
            raise SpecError(f"poll_interval must be more than 0 seconds, got {self.poll_interval}")
        most = 0 if self.trigger == AVAILABLE_NOW else 5
        deadline = self.execution_timeout and datetime.now(UTC) + self.execution_timeout
        return WatchOrder(
            launch=launch,
            me=me,
            limits=Limits(
                start=seconds(self.start_timeout, "start_timeout"),
                silence=seconds(self.heartbeat_timeout, "heartbeat_timeout"),
                stall=seconds(self.stall_timeout, "stall_timeout"),
            ),
            policy=RestartPolicy(
                most=most if self.max_restarts is None else self.max_restarts,
                first=seconds(self.restart_delay, "restart_delay"),
                longest=seconds(self.max_restart_delay, "max_restart_delay"),
                healthy=seconds(self.healthy_after, "healthy_after"),
            ),
            lance_conn_id=self.lance_conn_id,
            poll_interval=self.poll_interval,
            stop_grace=seconds(self.stop_grace, "stop_grace"),
            deadline=deadline.isoformat() if deadline else None,
            tags=tags,
        )

    @property
    def driver_root(self) -> Path:
        """Return the folder in which drivers on this host keep their logs."""
        return Path(self.driver_folder) if self.driver_folder else default_driver_folder()
