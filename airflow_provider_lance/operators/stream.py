"""Run a Spark Structured Streaming query into a Lance dataset, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.backends.submission import Submission, spark_connection
from airflow_provider_lance.compat import conf as airflow_conf
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.lance import LanceDatasetLink, LanceStreamLink, SparkUILink
from airflow_provider_lance.operators.checks import check_stream, is_mapped
from airflow_provider_lance.operators.driver import StreamRequest
from airflow_provider_lance.operators.lineage import StreamLineage
from airflow_provider_lance.operators.run import StreamRun
from airflow_provider_lance.operators.specification import (
    default_query_id,
    is_lance,
    job_spec,
    mapping,
    modules_of,
    resolved_source,
)
from airflow_provider_lance.operators.supervision import Supervision
from airflow_provider_lance.protocol.option_parsers import is_absolute
from airflow_provider_lance.spec.job import AVAILABLE_NOW, JobSpec
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig

__all__ = ["LanceStreamOperator"]


class LanceStreamOperator(StreamLineage, BaseOperator):
    """
    Stream from a source into a Lance dataset: all available data and end, or continuously.

    Rows come from ``source``, with an optional ``sql`` over it, or from ``dataframe``. Each epoch
    lands exactly once. The driver outlives the task's process: a retry, a clear or a restarted
    worker finds it again. A driver that dies, hangs or fails for a transient reason is replaced.
    Set ``retries`` as well, because Airflow's default is none. Returns the driver's summary; its
    ``reason`` is ``finished``, ``stopped``, or ``unknown`` if the driver ended well and this worker
    cannot read the checkpoint's folder.

    The store's secrets come from the Lance connection and travel in a private file. ``source`` and
    ``arguments`` show in the rendered template: write a secret as ``{{ conn.kafka.password }}``,
    which Airflow masks.

    Arguments without a template are checked when the DAG is parsed, and all of them before anything
    is launched.

    :param uri: The dataset, absolute or relative to the Lance connection's base URI. (templated)
    :param query_id: One stable, globally unique name of the query; by default the dataset's name
        without ``.lance``, for the one stream of a dataset. (templated)
    :param checkpoint_location: Spark's checkpoint, of this query only; absolute. By default the
        folder with the query's name below the Lance connection's ``checkpoint_root``. (templated)
    :param source: A Spark streaming source: ``format``, and if needed ``options`` and ``schema``.
        With the format ``lance``, the option ``path`` names a dataset as ``uri`` does. (templated)
    :param source_conn_id: The Lance connection of the datasets that are read; by default
        ``lance_conn_id``. (templated)
    :param sql: A query over the view ``source``, or a ``.sql`` file. (templated)
    :param dataframe: Instead of a source, ``module:function`` of (spark, arguments) that returns a
        streaming DataFrame. A module of the DAGs folder is shipped automatically. (templated)
    :param arguments: The arguments of that function. (templated)
    :param trigger: ``availableNow``, or an interval such as ``10 seconds`` for a stream that runs
        until it is asked to stop. (templated)
    :param output_mode: ``append``, ``complete`` or ``update``. (templated)
    :param sink_options: Further options of the sink, named as in Spark: ``mergeKeys``,
        ``vectorSizes``; ``merge_keys`` is accepted as well. (templated)
    :param create_if_missing: Create the dataset, with the stream's columns, if there is none.
        (templated)
    :param lance_conn_id: The Lance connection; ``None`` for absolute URIs without storage options.
        ``lance_default`` need not exist for an absolute local path. (templated)
    :param spark_conn_id: The Spark connection. (templated)
    :param conf: Spark configuration properties; they show on the command line. (templated)
    :param packages: Maven coordinates to load, separated by commas. (templated)
    :param py_files: Python files and zips for driver and executors, separated by commas.
        (templated)
    :param deploy_mode: ``client`` or ``cluster``; by default the Spark connection's. (templated)
    :param spark_submit: Further keyword arguments of ``SparkSubmitHook``. (templated)
    :param deferrable: Supervise from the triggerer, without a worker slot.
    :param supervision: Time-outs and restart limits, a
        :class:`~airflow_provider_lance.operators.supervision.Supervision`.
    """

    template_fields: Sequence[str] = (
        "uri",
        "query_id",
        "checkpoint_location",
        "source",
        "source_conn_id",
        "sql",
        "dataframe",
        "arguments",
        "trigger",
        "output_mode",
        "sink_options",
        "create_if_missing",
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
        query_id: str | None = None,
        checkpoint_location: str | None = None,
        source: dict[str, Any] | None = None,
        source_conn_id: str | None = None,
        sql: str | None = None,
        dataframe: str | None = None,
        arguments: dict[str, Any] | None = None,
        trigger: str = AVAILABLE_NOW,
        output_mode: str = "append",
        sink_options: dict[str, Any] | None = None,
        create_if_missing: bool = False,
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
        supervision: Supervision | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.query_id = query_id
        self.checkpoint_location = checkpoint_location
        self.source = source
        self.source_conn_id = source_conn_id
        self.sql = sql
        self.dataframe = dataframe
        self.arguments = arguments
        self.trigger = trigger
        self.output_mode = output_mode
        self.sink_options = sink_options
        self.create_if_missing = create_if_missing
        self.lance_conn_id = lance_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.packages = packages
        self.py_files = py_files
        self.deploy_mode = deploy_mode
        self.spark_submit = spark_submit
        self.deferrable = deferrable
        self.supervision = Supervision() if supervision is None else supervision
        self.stream_url = ""
        self.spark_ui_url = ""
        self.dataset_url = ""
        self._run: StreamRun | None = None
        if not is_mapped(self):
            check_stream(self)

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    @cached_property
    def source_hook(self) -> LanceHook:
        """Return the hook of the Lance connection of the datasets that are read."""
        return self.hook if self.source_conn_id is None else LanceHook(self.source_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            self._run = StreamRun(self, context)
            return self._run.begin()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer's event: end, or launch a new driver and wait again."""
        with no_retry_if_terminal():
            self._run = StreamRun(self, context)
            return self._run.resume(event)

    def on_kill(self) -> None:
        if self._run:
            self._run.kill()

    def request(self, launched_by: str) -> StreamRequest:
        """Return the request for a new launch."""
        return StreamRequest.of(self.job_spec(launched_by), self.submission())

    def job_spec(self, launched_by: str) -> JobSpec:
        """Return the specification of a new launch.

        :raises SpecError: an argument is missing, unknown or contradicts another.
        """
        uri, query_id = self.hook.resolve(self.uri), self.query_name
        checkpoint = self.checkpoint_location
        if checkpoint is None:
            checkpoint = self.hook.checkpoint_location(query_id)
        elif is_absolute(checkpoint):
            self.hook.resolve(checkpoint)  # refuses a store whose connection does not exist
        source_hook = self.source_hook
        may_read_lance = self.source is None or is_lance(self.source)
        return job_spec(
            uri=uri,
            query_id=query_id,
            checkpoint_location=checkpoint,
            output_mode=self.output_mode,
            create_if_missing=self.create_if_missing,
            sink_options=self.sink_options,
            storage_options=self.hook.storage_options,
            launchedBy=launched_by,
            source=resolved_source(self.source, source_hook),
            sourceStorageOptions=source_hook.storage_options if may_read_lance else {},
            sql=self.sql,
            dataframe=self.dataframe,
            arguments=self.arguments,
            trigger=self.trigger,
            stopGrace=max(1, round(self.supervision.stop_grace.total_seconds())),
        )

    @property
    def query_name(self) -> str:
        """Return the query id: the given one, or the dataset's name.

        :raises SpecError: none is given, and the dataset's name cannot be one.
        """
        return default_query_id(self.uri) if self.query_id is None else self.query_id

    def submission(self) -> Submission:
        """Return the arguments of spark-submit besides the specification.

        :raises SpecError: an argument is unknown or belongs elsewhere, or the Spark connection is
            missing or cannot run this.
        """
        return Submission(
            connection=spark_connection(self.spark_conn_id),
            name=f"lance-stream-{self.query_name}",
            conf=mapping(self.conf, "conf"),
            packages=self.packages,
            py_files=self.py_files,
            deploy_mode=self.deploy_mode,
            further=mapping(self.spark_submit, "spark_submit"),
            modules=modules_of(self.dataframe, self.py_files),
        )

    def supervision_config(
        self, launch: Launch, task_key: str, tags: dict[str, str]
    ) -> SupervisionConfig:
        """Return what the supervision of a launch needs."""
        deadline = self.execution_timeout and datetime.now(UTC) + self.execution_timeout
        return SupervisionConfig(
            launch=launch,
            task_key=task_key,
            limits=self.supervision.limits(),
            policy=self.supervision.policy(bounded=self.trigger == AVAILABLE_NOW),
            lance_conn_id=self.lance_conn_id,
            poll_interval=self.supervision.poll_interval,
            stop_grace=self.supervision.stop_grace.total_seconds(),
            deadline=deadline.isoformat() if deadline else None,
            tags=tags,
        )
