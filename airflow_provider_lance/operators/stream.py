"""Run a Spark Structured Streaming query into a Lance dataset, exactly once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException

from airflow_provider_lance import shipping
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.errors import no_retry_if_terminal
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.links.dataset import LanceDatasetLink, dataset_url
from airflow_provider_lance.links.spark_ui import SparkUILink, spark_ui_url
from airflow_provider_lance.operators.outcome import outcome
from airflow_provider_lance.operators.progress import HeartbeatWatcher
from airflow_provider_lance.operators.submission import spark_connection, submit_hook
from airflow_provider_lance.streaming.files import Files
from airflow_provider_lance.streaming.report import new_launch_id, read_heartbeat, report_location
from airflow_provider_lance.streaming.spec import AVAILABLE_NOW, JobSpec

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["LanceStreamOperator"]


class LanceStreamOperator(BaseOperator):
    """
    Stream all that is available from a source into a Lance dataset, then end.

    Rows come from ``source``, with an optional ``sql`` over it, or from ``dataframe``. Each epoch
    lands exactly once, so a retry goes on where the last driver ended, however it ended; set
    ``retries``, because Airflow's default is none. Returns
    the driver's summary; its ``reason`` is ``finished``, ``stopped``, or ``unknown`` where the
    driver ended well and this worker cannot read the checkpoint's folder.

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
    :param poll_interval: Seconds between two looks at the driver's progress.
    """

    template_fields: Sequence[str] = (
        "uri",
        "query_id",
        "checkpoint_location",
        "source",
        "sql",
        "dataframe",
        "arguments",
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
    operator_extra_links = (SparkUILink(), LanceDatasetLink())
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
        output_mode: str = "append",
        sink_options: dict[str, Any] | None = None,
        lance_conn_id: str | None = LanceHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        conf: dict[str, Any] | None = None,
        packages: str | None = None,
        py_files: str | None = None,
        deploy_mode: str | None = None,
        spark_submit: dict[str, Any] | None = None,
        poll_interval: float = 5.0,
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
        self.output_mode = output_mode
        self.sink_options = sink_options
        self.lance_conn_id = lance_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.packages = packages
        self.py_files = py_files
        self.deploy_mode = deploy_mode
        self.spark_submit = spark_submit
        self.poll_interval = poll_interval
        self.spark_ui_url = ""
        self.dataset_url = ""
        self._submitted: SparkSubmitHook | None = None

    @cached_property
    def hook(self) -> LanceHook:
        """Return the hook of the Lance connection."""
        return LanceHook(self.lance_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_if_terminal():
            # 1. Refuse what cannot work before anything is started.
            spec = self._spec()
            with TemporaryDirectory(prefix="lance-stream-") as folder:
                submit = self._submit_hook(spec, Path(folder))
                # 2. Run the driver to its end, and tell how it gets on.
                self._show_dataset(context, spec)
                exit_error = self._run(context, spec, submit)
            # 3. Say what became of it.
            return outcome(spec, lambda: self._reports(spec), exit_error, self.log)

    def on_kill(self) -> None:
        # Rude and safe: an epoch in flight lands whole or not at all, and a retry takes over.
        if self._submitted:
            self._submitted.on_kill()

    def _spec(self) -> JobSpec:
        if not self.poll_interval > 0:
            raise SpecError(f"poll_interval must be more than 0 seconds, got {self.poll_interval}")
        named = {
            "uri": self.hook.resolve(self.uri),
            "queryId": self.query_id,
            "checkpointLocation": self.checkpoint_location,
            "outputMode": self.output_mode,
        }
        further = _mapping(self.sink_options, "sink_options")
        for name in sorted(named.keys() & further.keys()):
            if further[name] != named[name]:
                raise SpecError(
                    f"sink_options: {name}={further[name]!r} contradicts the operator's argument "
                    f"{named[name]!r}; say it once, in the argument"
                )
        if "storageOptions" in further:
            raise SpecError(
                "sink_options: storageOptions would be shown in the rendered template; put them "
                "into the extra of a Lance connection and name it in lance_conn_id"
            )
        return JobSpec.parse(
            {
                "launchId": new_launch_id(),
                "sink": {**further, **named, "storageOptions": self.hook.storage_options},
                "source": self.source,
                "sql": self.sql,
                "dataframe": self.dataframe,
                "arguments": self.arguments,
                "trigger": AVAILABLE_NOW,
            }
        )

    def _submit_hook(self, spec: JobSpec, folder: Path) -> SparkSubmitHook:
        spec_file = folder / f"lance-stream-{spec.launch_id}.json"
        submit = submit_hook(
            connection=spark_connection(self.spark_conn_id),
            name=f"lance-stream-{self.query_id}",
            conf=_mapping(self.conf, "conf"),
            packages=self.packages,
            py_files=[str(shipping.build_zip(folder)), *filter(None, [self.py_files])],
            deploy_mode=self.deploy_mode,
            spec_file=spec_file,
            further=_mapping(self.spark_submit, "spark_submit"),
        )
        _write_private(spec_file, spec.dumps())
        return submit

    def _reports(self, spec: JobSpec) -> Files:
        return self.hook.files(report_location(spec.sink.checkpoint_location))

    def _show_dataset(self, context: Context, spec: JobSpec) -> None:
        self.dataset_url = dataset_url(spec.sink.uri, self.hook.store.endpoint)
        context["ti"].xcom_push(LanceDatasetLink.xcom_key, self.dataset_url)

    def _run(
        self, context: Context, spec: JobSpec, submit: SparkSubmitHook
    ) -> AirflowException | None:
        """Run spark-submit to its end; return what it ended with if that was no success."""

        def show_ui(address: str) -> None:
            self.spark_ui_url = spark_ui_url(address)
            context["ti"].xcom_push(SparkUILink.xcom_key, self.spark_ui_url)

        self._submitted = submit
        self.log.info("Launching. query=%s launch=%s", self.query_id, spec.launch_id)
        watcher = HeartbeatWatcher(
            lambda: read_heartbeat(self._reports(spec), spec.launch_id),
            show_ui,
            interval=self.poll_interval,
            log=self.log,
        )
        try:
            with watcher:
                # The task's own stdin is its line to Airflow: a child that held it would keep
                # Airflow from noticing that the task is dead.
                submit.submit(str(shipping.application_path()), stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise SpecError(
                f"{error.filename!r} is not on the PATH of this worker: install Spark's client, "
                "for example with `pip install 'airflow-provider-lance[pyspark]'`"
            ) from error
        except AirflowException as error:
            return error
        finally:
            _close_output(submit)
        return None


def _mapping(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a mapping, got {type(value).__name__}")
    return dict(value or {})


def _close_output(submit: SparkSubmitHook) -> None:
    """Close the pipe to spark-submit, which the hook (6.3.4) leaves to the garbage collector."""
    process = getattr(submit, "_submit_sp", None)
    if process and process.stdout:
        process.stdout.close()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
