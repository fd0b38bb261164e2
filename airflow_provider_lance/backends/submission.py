"""The arguments of spark-submit, checked before anything is started."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection

from airflow_provider_lance.backends.base import ClusterManager
from airflow_provider_lance.backends.cluster_managers import (
    CLUSTER_MANAGERS,
    master_kind,
    master_of,
)
from airflow_provider_lance.compat import AirflowNotFoundException, check_tracking
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import shown

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["Submission", "check_submission", "spark_connection"]

# These have their own arguments on the operator, or the operator itself sets them.
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
_PACKAGES = re.compile(r"(\s*[^\s,:/]+([:/][^\s,:/]+){2}\s*(,|$))*")
_DETACHING_CONF = {each.waiting: each.tracking for each in CLUSTER_MANAGERS.values()}
"""With these, spark-submit returns while the driver runs on, and nothing polls the cluster."""


def spark_connection(conn_id: str) -> Connection:
    """Return the Spark connection.

    :raises SpecError: there is none. The Spark provider's hook would continue with master ``yarn``.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise SpecError(
            f"there is no Spark connection {conn_id!r}: add it, for example with `airflow "
            f"connections add {conn_id} --conn-type spark --conn-host 'local[*]'`"
        ) from None


@dataclass(frozen=True)
class Submission:
    """Everything that a launch passes to spark-submit, except the specification; validated.

    ``further`` holds other keyword arguments of ``SparkSubmitHook``, as the user gave them.

    :raises SpecError: an argument is unknown or belongs elsewhere, or the master cannot run this.
    """

    connection: Connection
    name: str
    conf: Mapping[str, Any]
    packages: str | None
    py_files: str | None
    deploy_mode: str | None
    further: Mapping[str, Any]
    modules: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files of the user's own code to ship, by their names in the zip."""

    def __post_init__(self) -> None:
        check_submission(
            conf=self.conf,
            further=self.further,
            deploy_mode=self.deploy_mode,
            packages=self.packages,
        )
        kind = master_kind(self.connection)
        if self.is_cluster and not kind.runs_driver:
            raise SpecError(
                f"Spark connection {self.conn_id!r}: a standalone master "
                f"({master_of(self.connection)}) runs no Python driver in cluster mode; use client "
                "mode"
            )
        self.hook(Path("spec.json"), Path("code.zip"))  # it has its own refusals

    @property
    def conn_id(self) -> str:
        """Return the Spark connection's id."""
        return str(self.connection.conn_id)

    @property
    def is_cluster(self) -> bool:
        """Return whether the driver runs elsewhere; the precedence is spark-submit's own."""
        said = self.deploy_mode or self.connection.extra_dejson.get("deploy-mode")
        return (said or self.conf.get("spark.submit.deployMode")) == "cluster"

    @property
    def manager(self) -> ClusterManager | None:
        """Return the cluster manager that is polled for the driver, ``None`` if none is."""
        asked = self._tracking()
        return next((each for each in CLUSTER_MANAGERS.values() if asked[each.tracking]), None)

    def _tracking(self) -> dict[str, bool]:
        """Return the hook's arguments that let the cluster be polled, where possible."""
        master = master_of(self.connection)
        return {
            each.tracking: bool(
                self.further.get(
                    each.tracking,
                    self.is_cluster
                    and re.match(each.masters, master)
                    and each.can_track(self.connection, self.conf),
                )
            )
            for each in CLUSTER_MANAGERS.values()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the values in which two launches must agree to run the same."""
        return {
            "connection": self.conn_id,
            "conf": dict(self.conf),
            "packages": self.packages,
            "py_files": self.py_files,
            "deploy_mode": self.deploy_mode,
            "further": dict(self.further),
            "modules": {name: sha256(each).hexdigest() for name, each in self.modules.items()},
        }

    def hook(
        self,
        spec_file: Path,
        zip_file: Path,
        *,
        options: Sequence[str] = (),
        attached: bool = False,
        launch_id: str = "",
    ) -> SparkSubmitHook:
        """Make the hook that submits one launch; starts nothing.

        :param options: further arguments of the application, if its driver runs on this host.
        :param launch_id: what a driver in a cluster is found by.
        :param attached: spark-submit is awaited, so it must run as long as the driver.
        :raises SpecError: the hook refuses its arguments.
        """
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        if attached:
            _refuse_tracking(self.further)
        tracking = {} if attached else self._tracking()
        arguments = {**self.further, **tracking}
        files = arguments.pop("files", None)
        application = [str(spec_file), "--remove", *options]
        if self.is_cluster:
            # Only Spark can ship the file there. On this host it stays the only copy: what --files
            # copies into Spark's own temporary folder outlives a killed driver, secrets included.
            files = ",".join(filter(None, [files, str(spec_file)]))
            application = [spec_file.name]
        conf = {key: _spark_value(value) for key, value in self.conf.items()}
        if self.manager and not attached:
            conf[self.manager.waiting] = "false"
            conf |= self.manager.marks(launch_id, conf)
        who = f"Spark connection {self.conn_id!r}"
        try:
            made = SparkSubmitHook(
                conn_id=self.conn_id,
                name=self.name,
                conf=conf,
                packages=self.packages,
                py_files=",".join(filter(None, [str(zip_file), self.py_files])),
                files=files,
                deploy_mode=self.deploy_mode,
                application_args=application,
                env_vars=_environment(self.connection, self.conf, arguments.pop("env_vars", None)),
                **arguments,
            )
            check_tracking(made)
        except (ValueError, RuntimeError) as error:
            raise SpecError(f"{who}: {error}") from error
        except NameError:  # how the hook of 6.3.4 reports that it could not import its client
            raise SpecError(
                f"{who}: master {master_of(self.connection)} needs the package "
                f"{master_kind(self.connection).package} on this worker"
            ) from None
        return made


def check_submission(
    *,
    conf: Mapping[str, Any],
    further: Mapping[str, Any],
    deploy_mode: str | None,
    packages: object,
) -> None:
    """Check the arguments of spark-submit that need no connection.

    :raises SpecError: a name is unknown or belongs elsewhere, or a value makes no sense.
    """
    if further:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        _refuse_arguments(further, set(inspect.signature(SparkSubmitHook).parameters))
    _refuse_detached(conf)
    if deploy_mode not in (None, "client", "cluster"):
        raise SpecError(f"deploy_mode must be 'client' or 'cluster', got {shown(deploy_mode)}")
    if packages is not None and not (isinstance(packages, str) and _PACKAGES.fullmatch(packages)):
        raise SpecError(
            "packages must be Maven coordinates 'group:artifact:version' with commas between "
            f"them, got {shown(packages)}"
        )


def _refuse_arguments(further: Mapping[str, Any], known: set[str]) -> None:
    valid = sorted(known - _OURS - {"post_submit_commands"})
    if owned := sorted(set(further) & _OURS):
        raise SpecError(f"spark_submit: {owned} belong to the operator, not here; valid: {valid}")
    if "post_submit_commands" in further:
        raise SpecError(
            "spark_submit: post_submit_commands run when spark-submit ends, and a stream outlives "
            "its task; make them a task of their own"
        )
    if unknown := sorted(set(further) - known):
        raise SpecError(f"spark_submit: unknown {unknown}; valid names are {valid}")


def _refuse_detached(conf: Mapping[str, Any]) -> None:
    for key, tracking in _DETACHING_CONF.items():
        if _spark_value(conf.get(key)) == "false":
            raise SpecError(
                f"conf {key}=false lets spark-submit return while nothing polls the driver; "
                f"leave it out, or write spark_submit={{{tracking!r}: True}}, which sets it and "
                "asks the cluster"
            )


def _refuse_tracking(further: Mapping[str, Any]) -> None:
    if asked := sorted(name for name in _DETACHING_CONF.values() if further.get(name)):
        raise SpecError(
            f"spark_submit: with {asked} spark-submit returns before the driver ends, and this "
            "task waits for that end; leave it out"
        )


def _environment(
    connection: Connection, conf: Mapping[str, Any], given: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Make a local master run this interpreter, not the first ``python3`` on PATH."""
    chosen = {**os.environ, **(given or {})}
    if (
        master_kind(connection).is_local
        and "PYSPARK_PYTHON" not in chosen
        and "spark.pyspark.python" not in conf
    ):
        return {"PYSPARK_PYTHON": sys.executable, **(given or {})}
    return dict(given) if given else None


def _spark_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
