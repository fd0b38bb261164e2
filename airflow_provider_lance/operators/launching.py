"""Start a driver that outlives its task, and find it again."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from airflow.sdk import conf as airflow_conf
from airflow.sdk.exceptions import AirflowException

from airflow_provider_lance import shipping
from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.hooks.drivers import ClusterDriver, Launch
from airflow_provider_lance.launch.folder import RunFolder, forget_old_launches
from airflow_provider_lance.launch.process import LocalDriver, StopOrder, launch
from airflow_provider_lance.operators.submission import Submission
from airflow_provider_lance.streaming.epoch import utc_now
from airflow_provider_lance.streaming.spec import JobSpec

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = [
    "close_output",
    "driver_root",
    "no_spark_submit",
    "plan_launch",
    "start_driver",
]


_KEEPERS_PATIENCE = 1.5
"""The driver's own grace begins when it sees the request, and it ends itself in better order."""


def driver_root() -> Path:
    """Return where drivers of this host keep their logs: ``[lance] driver_folder``.

    :raises SpecError: the setting is no absolute path.
    """
    folder = Path(airflow_conf.get("lance", "driver_folder", fallback="") or "").expanduser()
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


def start_driver(spec: JobSpec, submission: Submission, root: Path) -> LocalDriver | ClusterDriver:
    """Start a launch's driver.

    In the cluster modes that the Spark provider can ask about later, spark-submit hands the driver
    over and ends. Everywhere else it runs detached on this host, with a keeper beside it.

    :param root: where drivers of this host keep their logs.
    :raises SpecError: it cannot be started like this.
    :raises TransientError: it could not be started now.
    """
    if submission.is_tracked:
        return _hand_over(spec, submission)
    query_id = spec.sink.query_id
    forget_old_launches(root, query_id)
    folder = RunFolder(root, query_id, spec.launch_id)
    folder.make()
    hook = submission.hook(folder.spec_file, shipping.build_zip(folder.path, submission.modules))
    folder.write_spec(spec.dumps())
    return launch(
        folder,
        command=hook._build_spark_submit_command(str(shipping.application_path())),
        environment={**os.environ, **{key: str(value) for key, value in (hook._env or {}).items()}},
        redact=_secrets(),
        grace=_KEEPERS_PATIENCE * spec.stop_grace,
        stop=StopOrder(
            uri=spec.sink.uri,
            storage_options=dict(spec.sink.storage_options),
            query_id=query_id,
            launch_id=spec.launch_id,
        ),
    )


def _hand_over(spec: JobSpec, submission: Submission) -> ClusterDriver:
    with TemporaryDirectory(prefix="lance-stream-") as name:
        folder = RunFolder(Path(name), spec.sink.query_id, spec.launch_id)
        folder.make()
        hook = submission.hook(
            folder.spec_file, shipping.build_zip(folder.path, submission.modules)
        )
        folder.write_spec(spec.dumps())
        try:
            # The task's own stdin is its line to Airflow: no child may hold it.
            hook.submit(str(shipping.application_path()), stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise no_spark_submit(error) from error
        except (AirflowException, RuntimeError) as error:
            raise TransientError(
                f"spark-submit did not hand over the driver of query {spec.sink.query_id!r}: "
                f"{str(error).partition(chr(10))[0]}. Its words are in the log above"
            ) from None
        finally:
            close_output(hook)
    if submission.is_yarn:
        name, namespace = str(hook._yarn_application_id or ""), ""
    else:
        name = str(hook._kubernetes_driver_pod or "")
        namespace = str(hook._connection["namespace"])
    if not name:
        raise TransientError(
            "spark-submit ended and did not say which driver it started; its words are in the log "
            "above. A retry takes over safely: no epoch is lost or doubled"
        )
    manager = "yarn" if submission.is_yarn else "kubernetes"
    return ClusterDriver(manager, name, namespace, submission.conn_id)


def no_spark_submit(error: FileNotFoundError) -> SpecError:
    """Return what it means that spark-submit could not be started."""
    return SpecError(
        f"{error.filename!r} is not on the PATH of this worker: install Spark's client, "
        "for example with `pip install 'airflow-provider-lance[pyspark]'`"
    )


def close_output(hook: SparkSubmitHook) -> None:
    """Close the pipe to spark-submit, which the hook (6.3.4) leaves to the garbage collector."""
    process = getattr(hook, "_submit_sp", None)
    if process and process.stdout:
        process.stdout.close()


def _secrets() -> list[str]:
    """Return what Airflow masks in this task's log; the driver's log must not show it either."""
    from airflow.sdk._shared.secrets_masker import _secrets_masker

    # It keeps them as patterns; this is re.escape() backwards.
    escaped = re.compile(r"\\(.)", re.DOTALL)
    return sorted(escaped.sub(r"\1", text) for text in _secrets_masker().patterns)
