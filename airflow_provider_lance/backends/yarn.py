"""Drivers in YARN, polled through the resource manager's REST API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_lance.backends.base import ClusterManager, Polled
from airflow_provider_lance.compat import ask_yarn, submitted_driver

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["Yarn"]

_ACTIVE = {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"}
_TAGS = "spark.yarn.tags"
_SHOWN = 500
"""Characters of YARN's own words on an end."""


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
        """Ask the resource manager; an application that was killed has failed."""
        app = ask_yarn(hook, f"apps/{name}")["app"]
        state = app["state"]
        if state in _ACTIVE:
            return Polled(True, None)
        end = app["finalStatus"] if state == "FINISHED" else state
        # The first line often says only that it failed; why is in those that follow.
        why = " ".join(str(app.get("diagnostics") or "").split())
        said = f"YARN says {end}: {why[:_SHOWN]}" if why else f"YARN says {end}"
        return Polled(False, 0 if end == "SUCCEEDED" else 1, said)

    def kill(self, hook: SparkSubmitHook, name: str, namespace: str) -> None:
        """Ask the resource manager to kill the application."""
        ask_yarn(hook, f"apps/{name}/state", {"state": "KILLED"})

    def marks(self, launch_id: str, conf: Mapping[str, str]) -> dict[str, str]:
        """Return the launch's id as one more tag of the application."""
        return {_TAGS: ",".join(filter(None, [conf.get(_TAGS), _tag(launch_id)]))}

    def find(self, hook: SparkSubmitHook, launch_id: str) -> str:
        """Return the application that has the launch's tag."""
        found = ask_yarn(hook, "apps", applicationTags=_tag(launch_id))["apps"] or {}
        return next((str(each["id"]) for each in found.get("app", [])), "")

    def log_command(self, name: str, namespace: str) -> str:
        """Return ``yarn logs``."""
        return f"yarn logs -applicationId {name}"


def _tag(launch_id: str) -> str:
    """Return a tag as YARN keeps it, in lower case."""
    return f"lance-stream-{launch_id}".lower()
