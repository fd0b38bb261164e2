"""What is handed to spark-submit, checked before anything is started."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_lance.exceptions import SpecError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["master_of", "spark_connection", "submit_hook"]

# These have arguments of their own on the operator, or are what the operator itself decides.
_OURS = {
    "application_args",
    "conf",
    "conn_id",
    "deploy_mode",
    "java_class",
    "name",
    "packages",
    "py_files",
}
# With these spark-submit returns while the driver goes on, and the task would end too early.
_DETACHING = {"track_driver_via_k8s_api", "yarn_rm_auth", "yarn_track_via_rm_api"}
_DETACHING_CONF = (
    "spark.kubernetes.submission.waitAppCompletion",
    "spark.yarn.submit.waitAppCompletion",
)


def spark_connection(conn_id: str) -> Connection:
    """Return the Spark connection.

    :raises SpecError: there is none. The Spark provider's hook would go on with master ``yarn``.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise SpecError(
            f"there is no Spark connection {conn_id!r}: add it, for example with `airflow "
            f"connections add {conn_id} --conn-type spark --conn-host 'local[*]'`"
        ) from None


def master_of(connection: Connection) -> str:
    """Return the master URL that the Spark provider's hook makes of a connection."""
    host = connection.host or ""
    whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def submit_hook(
    *,
    connection: Connection,
    name: str,
    conf: Mapping[str, Any],
    packages: str | None,
    py_files: list[str],
    deploy_mode: str | None,
    spec_file: Path,
    further: Mapping[str, Any],
) -> SparkSubmitHook:
    """Make the hook that submits one launch; starts nothing.

    :param further: other keyword arguments of the hook, as the user gave them.
    :raises SpecError: an argument is unknown or belongs elsewhere, or the master cannot run this.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    _refuse_arguments(further, set(inspect.signature(SparkSubmitHook).parameters))
    _refuse_detached(connection, conf, deploy_mode)
    arguments = dict(further)
    files, specification = arguments.pop("files", None), str(spec_file)
    if _is_cluster(connection, conf, deploy_mode):
        # Only Spark can bring the file there. On this host it stays the one copy: what --files
        # copies into Spark's own temporary folder outlives a killed driver, secrets and all.
        files = ",".join(filter(None, [files, specification]))
        specification = spec_file.name
    try:
        return SparkSubmitHook(
            conn_id=connection.conn_id,
            name=name,
            conf={key: _spark_value(value) for key, value in conf.items()},
            packages=packages,
            py_files=",".join(py_files),
            files=files,
            deploy_mode=deploy_mode,
            application_args=[specification],
            env_vars=_environment(connection, conf, arguments.pop("env_vars", None)),
            **arguments,
        )
    except (ValueError, RuntimeError) as error:
        raise SpecError(f"Spark connection {connection.conn_id!r}: {error}") from error
    except NameError:  # how the hook of 6.3.4 says that it could not import its Kubernetes client
        raise SpecError(
            f"Spark connection {connection.conn_id!r}: master {master_of(connection)} needs the "
            "package apache-airflow-providers-cncf-kubernetes on this worker"
        ) from None


def _refuse_arguments(further: Mapping[str, Any], known: set[str]) -> None:
    valid = sorted(known - _OURS - _DETACHING)
    if owned := sorted(set(further) & _OURS):
        raise SpecError(f"spark_submit: {owned} belong to the operator, not here; valid: {valid}")
    if detaching := sorted(set(further) & _DETACHING):
        raise SpecError(
            f"spark_submit: {detaching} let spark-submit return before the stream has ended, and "
            "this operator waits for its end; leave them out"
        )
    if unknown := sorted(set(further) - known):
        raise SpecError(f"spark_submit: unknown {unknown}; valid names are {valid}")


def _refuse_detached(
    connection: Connection, conf: Mapping[str, Any], deploy_mode: str | None
) -> None:
    for key in _DETACHING_CONF:
        if _spark_value(conf.get(key)) == "false":
            raise SpecError(
                f"conf {key}=false lets spark-submit return before the stream has ended, and this "
                "operator waits for its end; leave it out"
            )
    cluster = _is_cluster(connection, conf, deploy_mode)
    if cluster and master_of(connection).startswith("spark://"):
        raise SpecError(
            f"Spark connection {connection.conn_id!r}: a standalone master "
            f"({master_of(connection)}) runs no Python driver in cluster mode; use client mode"
        )


def _is_cluster(connection: Connection, conf: Mapping[str, Any], deploy_mode: str | None) -> bool:
    """Tell whether the driver runs elsewhere; the order is spark-submit's own."""
    said = deploy_mode or connection.extra_dejson.get("deploy-mode")
    return (said or conf.get("spark.submit.deployMode")) == "cluster"


def _environment(
    connection: Connection, conf: Mapping[str, Any], given: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Let a local master run this interpreter, not whatever ``python3`` is first on PATH."""
    chosen = {**os.environ, **(given or {})}
    if (
        master_of(connection).startswith("local")
        and "PYSPARK_PYTHON" not in chosen
        and "spark.pyspark.python" not in conf
    ):
        return {"PYSPARK_PYTHON": sys.executable, **(given or {})}
    return dict(given) if given else None


def _spark_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
