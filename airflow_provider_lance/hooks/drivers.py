"""A launched driver, wherever it runs: is it alive, end it. A value that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_lance.compat import delete_driver_pod, kill_yarn_application
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.decoding import Reader, moment, shown
from airflow_provider_lance.protocol.option_parsers import travelled

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["ClusterDriver", "Launch", "same_task"]

_YARN_ACTIVE = {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"}
_POD_ENDED = {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class ClusterDriver:
    """A driver in a cluster that is asked about through the cluster's own API.

    ``manager`` is ``yarn`` or ``kubernetes``; ``name`` the application id or the pod's name.
    """

    manager: str
    name: str
    namespace: str = ""
    spark_conn_id: str = "spark_default"

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.manager} {self.name}{place}"

    def alive(self) -> bool | None:
        """Ask the cluster; ``None`` when it gives no answer."""
        try:
            if self.manager == "yarn":
                return self._hook().query_yarn_application_status(self.name) in _YARN_ACTIVE
            phase = self._pod_phase()
            return phase is not None and phase not in _POD_ENDED
        except Exception:  # each client has errors of its own; all say that it gave no answer
            return None

    def exit_status(self) -> int | None:
        """Return 0 for a good end, 1 for another, ``None`` before it or when nobody answers."""
        try:
            if self.manager == "yarn":
                status = self._hook().query_yarn_application_status(self.name)
                return {"SUCCEEDED": 0, "FAILED": 1}.get(status)
            return {"Succeeded": 0, "Failed": 1}.get(self._pod_phase() or "")
        except Exception:
            return None

    def kill(self) -> bool:
        """Ask the cluster to end exactly this driver; tell whether it could be asked."""
        if not self.alive():
            return False
        try:
            if self.manager == "yarn":
                kill_yarn_application(self._hook(), self.name)
            else:
                delete_driver_pod(self._hook(), self.name, self.namespace)
        except Exception:
            return False
        return True

    def _pod_phase(self) -> str | None:
        """Return the pod's phase, ``None`` if there is no such pod."""
        from airflow.providers.cncf.kubernetes import kube_client

        try:
            pod = kube_client.get_kube_client().read_namespaced_pod(self.name, self.namespace)
        except kube_client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return str(pod.status.phase or "Pending")

    def _hook(self) -> SparkSubmitHook:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        return SparkSubmitHook(
            conn_id=self.spark_conn_id,
            deploy_mode="cluster",
            yarn_track_via_rm_api=self.manager == "yarn",
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one query: whose it is, and where its driver can be found.

    ``driver`` is ``None`` where nobody but the heartbeat can tell of it. ``fingerprint`` is equal
    for two launches of the same specification, empty if it is not known.
    """

    launch_id: str
    query_id: str
    uri: str
    checkpoint_location: str
    launched_at: str
    launched_by: str = ""
    fingerprint: str = ""
    driver: LocalDriver | ClusterDriver | None = None

    def alive(self) -> bool | None:
        """Tell whether the driver's process is there; ``None`` where that cannot be told."""
        return self.driver.alive() if self.driver else None

    def kill(self) -> bool:
        """Kill exactly this driver, where that is possible from here; tell whether it was."""
        return self.driver.kill() if self.driver else False

    def exit_status(self) -> int | None:
        """Return how the driver ended, negative for a signal; ``None`` if it is not known."""
        return self.driver.exit_status() if self.driver else None

    def is_ending(self) -> bool:
        """Tell whether the keeper of a driver that is gone has yet to note how it ended."""
        if not isinstance(self.driver, LocalDriver):
            return False
        return self.driver.exit_status() is None and self.driver.keeper.alive() is True

    def where(self) -> str:
        """Return the driver's place in words."""
        match self.driver:
            case LocalDriver(folder=folder, driver=process):
                return f"pid {process.pid} on {process.host}, log in {folder}"
            case ClusterDriver():
                return str(self.driver)
            case _:
                return "a place known only by its heartbeat"

    def found_at(self, driver: LocalDriver | ClusterDriver | None) -> Self:
        """Return this launch with its driver."""
        return replace(self, driver=driver)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a trigger's arguments and Airflow's task state."""
        kind = "cluster" if isinstance(self.driver, ClusterDriver) else "process"
        return {
            "launchId": self.launch_id,
            "queryId": self.query_id,
            "uri": self.uri,
            "checkpointLocation": self.checkpoint_location,
            "launchedAt": self.launched_at,
            "launchedBy": self.launched_by,
            "fingerprint": self.fingerprint,
            kind: _driver_json(self.driver),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` made.

        :raises SpecError: it is something else.
        """
        named = {_JSON_NAMES.get(name, name): value for name, value in _items(given)}
        driver: LocalDriver | ClusterDriver | None = None
        if process := named.get("process"):
            driver = LocalDriver.from_json(process)
        elif cluster := named.get("cluster"):
            driver = ClusterDriver(**travelled(ClusterDriver, cluster, "a driver in a cluster"))
        readers: dict[str, Reader] = {"launched_at": moment, "driver": lambda found: found}
        return cls(**travelled(cls, named | {"driver": driver}, "a launch", readers))


_JSON_NAMES = {
    "launchId": "launch_id",
    "queryId": "query_id",
    "checkpointLocation": "checkpoint_location",
    "launchedAt": "launched_at",
    "launchedBy": "launched_by",
}


def _items(given: object) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    raise SpecError(f"a launch must be a mapping, got {shown(given)}")


def _driver_json(driver: LocalDriver | ClusterDriver | None) -> dict[str, Any] | None:
    match driver:
        case ClusterDriver(manager=manager, name=name, namespace=namespace, spark_conn_id=conn):
            return {"manager": manager, "name": name, "namespace": namespace, "spark_conn_id": conn}
        case None:
            return None
        case _:
            return driver.to_json()


def same_task(one: str, other: str) -> bool:
    """Tell whether two ``launchedBy`` texts name tries of one task instance."""
    return bool(one) and one.rpartition("#")[0] == other.rpartition("#")[0]
