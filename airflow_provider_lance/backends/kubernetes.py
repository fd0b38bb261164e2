"""Drivers in Kubernetes, polled through the cluster's API."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.backends.base import ClusterManager, Polled
from airflow_provider_lance.compat import submitted_driver

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["Kubernetes"]

_EXIT = {"Succeeded": 0, "Failed": 1}


class Kubernetes(ClusterManager):
    """Needs a namespace, from the Spark connection's extra or from conf."""

    name = "kubernetes"
    masters = "k8s://.+"
    example = "k8s://https://host:443"
    tracking = "track_driver_via_k8s_api"
    waiting = "spark.kubernetes.submission.waitAppCompletion"
    package = "apache-airflow-providers-cncf-kubernetes"

    def can_track(self, connection: Connection, conf: Mapping[str, Any]) -> bool:
        """Return whether a namespace is given."""
        named = connection.extra_dejson.get("namespace") or conf.get("spark.kubernetes.namespace")
        return bool(named)

    def submitted(self, hook: SparkSubmitHook | None) -> tuple[str, str]:
        """Return the driver's pod and its namespace."""
        known = submitted_driver(hook)
        return known.pod, known.namespace

    def poll(self, hook: SparkSubmitHook, name: str, namespace: str) -> Polled:
        """Ask for the pod's phase; a pod that no longer exists has ended."""
        from airflow.providers.cncf.kubernetes import kube_client

        try:
            pod = kube_client.get_kube_client().read_namespaced_pod(name, namespace)
        except kube_client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return Polled(False, None)
            raise
        phase = str(pod.status.phase or "Pending")
        return Polled(phase not in _EXIT, _EXIT.get(phase))

    def kill(self, hook: SparkSubmitHook, name: str, namespace: str) -> None:
        """Delete the driver's pod; the hook's own way does not say that it was refused."""
        from airflow.providers.cncf.kubernetes import kube_client

        kube_client.get_kube_client().delete_namespaced_pod(name, namespace)

    def log_command(self, name: str, namespace: str) -> str:
        """Return ``kubectl logs``."""
        return f"kubectl logs {name} -n {namespace}"
