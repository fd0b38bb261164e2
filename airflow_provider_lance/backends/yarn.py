"""Drivers in YARN, polled through the resource manager's REST API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_lance.backends.base import ClusterManager, Polled
from airflow_provider_lance.compat import kill_yarn_application, submitted_driver

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["Yarn"]

_ACTIVE = {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"}
_EXIT = {"SUCCEEDED": 0, "FAILED": 1}


class Yarn(ClusterManager):
    """Needs ``yarn_resourcemanager_webapp_address`` in the Spark connection's extra."""

    name = "yarn"
    masters = "yarn.*"
    example = "yarn"
    tracking = "yarn_track_via_rm_api"
    waiting = "spark.yarn.submit.waitAppCompletion"
    polling: ClassVar[Mapping[str, Any]] = {"yarn_track_via_rm_api": True}

    def can_track(self, connection: Connection, conf: Mapping[str, Any]) -> bool:
        """Return whether the connection names the resource manager's address."""
        return bool(connection.extra_dejson.get("yarn_resourcemanager_webapp_address"))

    def submitted(self, hook: SparkSubmitHook | None) -> tuple[str, str]:
        """Return the application id."""
        return submitted_driver(hook).yarn_application, ""

    def poll(self, hook: SparkSubmitHook, name: str, namespace: str) -> Polled:
        """Ask the resource manager."""
        status = hook.query_yarn_application_status(name)
        return Polled(status in _ACTIVE, _EXIT.get(status or ""))

    def kill(self, hook: SparkSubmitHook, name: str, namespace: str) -> None:
        """Ask the resource manager to kill the application."""
        kill_yarn_application(hook, name)
