"""The cluster managers, and a driver in such a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_lance.backends.base import Polled
from airflow_provider_lance.backends.kubernetes import Kubernetes
from airflow_provider_lance.backends.yarn import Yarn
from airflow_provider_lance.protocol.decoding import Reader
from airflow_provider_lance.protocol.json_codec import JsonRecord

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["CLUSTER_MANAGERS", "ClusterDriver"]

CLUSTER_MANAGERS = {each.name: each for each in (Yarn(), Kubernetes())}


def _manager(name: object) -> str:
    if name not in CLUSTER_MANAGERS:
        raise ValueError(f"one of {sorted(CLUSTER_MANAGERS)}")
    return str(name)


@dataclass(frozen=True, slots=True)
class ClusterDriver(JsonRecord):
    """A driver in a cluster that is polled through the cluster's own API.

    ``manager`` is one of :data:`CLUSTER_MANAGERS`; ``name`` is the application id or the pod's
    name.
    """

    manager: str
    name: str
    namespace: str = ""
    spark_conn_id: str = "spark_default"

    kind: ClassVar[str] = "cluster"
    polls_remotely: ClassVar[bool] = True
    is_here: ClassVar[bool] = False

    json_name = "a driver in a cluster"
    json_readers: ClassVar[Mapping[str, Reader]] = {"manager": _manager}

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.manager} {self.name}{place}"

    def alive(self) -> bool | None:
        """Ask the cluster; ``None`` if it does not answer."""
        polled = self._poll()
        return polled.alive if polled else None

    def exit_status(self) -> int | None:
        """Return 0 for success, 1 for failure, ``None`` before the end or without an answer."""
        polled = self._poll()
        return polled.exit_status if polled else None

    def is_ending(self) -> bool:
        """Return False: a cluster notes the end at once."""
        return False

    def stop(self, by: str) -> bool:
        """Return False: a driver in a cluster can only be asked through its dataset."""
        return False

    def kill(self) -> bool:
        """Ask the cluster to kill exactly this driver; return whether it could be asked."""
        if not self.alive():
            return False
        try:
            CLUSTER_MANAGERS[self.manager].kill(self._hook(), self.name, self.namespace)
        except Exception:
            return False
        return True

    def log(self) -> Path | None:
        """Return None: the cluster keeps the log."""
        return None

    def where(self) -> str:
        """Return its place as text."""
        return str(self)

    def _poll(self) -> Polled | None:
        try:
            return CLUSTER_MANAGERS[self.manager].poll(self._hook(), self.name, self.namespace)
        except Exception:  # each client has its own errors; all mean that it gave no answer
            return None

    def _hook(self) -> SparkSubmitHook:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        return SparkSubmitHook(
            conn_id=self.spark_conn_id,
            deploy_mode="cluster",
            yarn_track_via_rm_api=self.manager == Yarn.name,
        )
