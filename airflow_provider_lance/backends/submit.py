"""Start a driver that outlives its task, and find it again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from airflow_provider_lance import shipping
from airflow_provider_lance.backends.base import ClusterManager, Driver
from airflow_provider_lance.backends.environment import driver_environment, inherit_no_more
from airflow_provider_lance.backends.launch import ClusterDriver, Launch
from airflow_provider_lance.backends.submission import Submission
from airflow_provider_lance.compat import (
    AirflowException,
    conf,
    masked_texts,
    submit_command,
    submit_environment,
    submit_process,
)
from airflow_provider_lance.drivers.local import StopSettings, launch
from airflow_provider_lance.drivers.run_directory import RunDirectory, forget_old_launches
from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.protocol.model import utc_now
from airflow_provider_lance.spec.job import JobSpec

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = [
    "close_output",
    "driver_root",
    "no_spark_submit",
    "plan_launch",
    "start_driver",
]


_WRAPPER_PATIENCE = 1.5
"""The driver's own grace begins when it sees the request, and its own exit is more orderly."""


def driver_root() -> Path:
    """Return where drivers of this host keep their logs: ``[lance] driver_folder``.

    :raises SpecError: the setting is not an absolute path.
    """
    folder = Path(conf.get("lance", "driver_folder", fallback="") or "").expanduser()
    if folder == Path():
        return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser() / "lance-streams"
    if not folder.is_absolute():
        raise SpecError(
            f"[lance] driver_folder in Airflow's configuration must be an absolute path, got "
            f"{str(folder)!r}: each of its processes has a working directory of its own"
        )
    return folder


def plan_launch(spec: JobSpec, fingerprint: str) -> Launch:
    """Return a launch that has no driver yet."""
    return Launch(
        launch_id=spec.launch_id,
        query_id=spec.sink.query_id,
        uri=spec.sink.uri,
        checkpoint_location=spec.sink.checkpoint_location,
        launched_at=utc_now(),
        launched_by=spec.launched_by,
        fingerprint=fingerprint,
    )


def start_driver(spec: JobSpec, submission: Submission, root: Path) -> Driver:
    """Start a launch's driver.

    In the cluster modes that the Spark provider can poll later, spark-submit hands the driver over
    and ends. Everywhere else the driver runs detached on this host, beside a driver wrapper.

    :param root: where drivers of this host keep their logs.
    :raises SpecError: it cannot be started with these arguments.
    :raises TransientError: it could not be started now.
    """
    if submission.manager:
        return _hand_over(spec, submission, submission.manager)
    query_id = spec.sink.query_id
    forget_old_launches(root, query_id)
    folder = RunDirectory(root, query_id, spec.launch_id)
    folder.make()
    hook = submission.hook(folder.spec_file, shipping.build_zip(folder.path, submission.modules))
    command = submit_command(hook, str(shipping.application_path()))
    environment = driver_environment(submission.connection, submit_environment(hook))
    folder.write_spec(spec.dumps())
    stop = StopSettings(
        uri=spec.sink.uri,
        storage_options=dict(spec.sink.storage_options),
        query_id=query_id,
        launch_id=spec.launch_id,
    )
    try:
        return launch(
            folder,
            command=command,
            environment=environment,
            redact=masked_texts(),
            grace=_WRAPPER_PATIENCE * spec.stop_grace,
            stop=stop,
        )
    except FileNotFoundError as error:
        raise no_spark_submit(error, submission) from error


def _hand_over(spec: JobSpec, submission: Submission, manager: ClusterManager) -> ClusterDriver:
    with TemporaryDirectory(prefix="lance-stream-") as name:
        folder = RunDirectory(Path(name), spec.sink.query_id, spec.launch_id)
        folder.make()
        code = shipping.build_zip(folder.path, submission.modules)
        hook = submission.hook(folder.spec_file, code, launch_id=spec.launch_id)
        inherit_no_more(hook, submission.connection)
        folder.write_spec(spec.dumps())
        try:
            # The task's own stdin is its connection to Airflow: no child may hold it.
            hook.submit(str(shipping.application_path()), stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise no_spark_submit(error, submission) from error
        except (AirflowException, RuntimeError) as error:
            raise TransientError(
                f"spark-submit did not hand over the driver of query {spec.sink.query_id!r}: "
                f"{str(error).partition(chr(10))[0]}. Its output is in the log above"
            ) from None
        finally:
            close_output(hook)
    name, namespace = manager.submitted(hook)
    if not name:
        raise TransientError(
            "spark-submit ended and did not say which driver it started; its output is in the log "
            "above. A retry takes over safely: no epoch is lost or doubled"
        )
    return ClusterDriver(manager.name, name, namespace, submission.conn_id)


def no_spark_submit(error: FileNotFoundError, submission: Submission) -> SpecError:
    """Return the error for a spark-submit that could not be started."""
    return SpecError(
        f"{error.filename!r}, the spark-binary of Spark connection {submission.conn_id!r}, is not "
        "on the PATH of this worker. Install Spark's client, for example with "
        "`pip install 'airflow-provider-lance[pyspark]'`, which brings spark-submit; or name "
        'another command in the connection\'s extra, as {"spark-binary": "spark3-submit"}'
    )


def close_output(hook: SparkSubmitHook) -> None:
    """Close the pipe to spark-submit, which the hook (6.3.4) leaves to the garbage collector."""
    process = submit_process(hook)
    if process and process.stdout:
        process.stdout.close()
