"""One launch of one query, and its driver, wherever it runs; a value that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_provider_lance.backends.base import Driver, Polled
from airflow_provider_lance.backends.cluster_managers import CLUSTER_MANAGERS
from airflow_provider_lance.drivers.local import LocalDriver
from airflow_provider_lance.protocol.decoding import Reader, moment
from airflow_provider_lance.protocol.json_codec import JsonRecord

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

__all__ = ["ClusterDriver", "Launch", "UnseenDriver", "same_task"]


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

    @classmethod
    def of_launch(cls, manager: str, spark_conn_id: str, launch_id: str) -> Self | None:
        """Return the driver that the cluster knows under a launch's id, ``None`` if it has none.

        ``None`` also if the cluster gives no answer.
        """
        driver = cls(manager, "", spark_conn_id=spark_conn_id)
        try:
            name = CLUSTER_MANAGERS[manager].find(driver._hook(), launch_id)
        except Exception:  # as in a poll
            return None
        return replace(driver, name=name) if name else None

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

    def end_note(self) -> str:
        """Return the cluster's own words on its end, and the command that prints its log."""
        polled = self._poll()
        if polled is None or polled.alive:
            return ""
        if polled.exit_status is None:  # neither the driver nor its log is there any more
            return polled.said
        log = CLUSTER_MANAGERS[self.manager].log_command(self.name, self.namespace)
        return "; ".join(filter(None, [polled.said, f"its log: `{log}`"]))

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
            **CLUSTER_MANAGERS[self.manager].polling,
        )


@dataclass(frozen=True, slots=True)
class UnseenDriver(JsonRecord):
    """A driver that is known only by its heartbeat, or that has not been started yet."""

    kind: ClassVar[str] = "unseen"
    polls_remotely: ClassVar[bool] = False
    is_here: ClassVar[bool] = False

    json_name = "an unseen driver"

    def alive(self) -> bool | None:
        """Return None: nothing here can be asked."""
        return None

    def exit_status(self) -> int | None:
        """Return None: nothing notes its end here."""
        return None

    def end_note(self) -> str:
        """Return nothing: nobody can be asked."""
        return ""

    def is_ending(self) -> bool:
        """Return False: it cannot be seen to end."""
        return False

    def stop(self, by: str) -> bool:
        """Return False: it can only be asked through its dataset."""
        return False

    def kill(self) -> bool:
        """Return False: there is nothing to kill from here."""
        return False

    def log(self) -> Path | None:
        """Return None: its log is not on this host."""
        return None

    def where(self) -> str:
        """Return its place as text."""
        return "a place known only by its heartbeat"


_DRIVERS = (LocalDriver, ClusterDriver)
"""The drivers that a launch's JSON names, each under its kind; it leaves an unseen one out."""


@dataclass(frozen=True, slots=True)
class Launch(JsonRecord):
    """One launch of one query: which query it belongs to, and where its driver can be found.

    ``fingerprint`` is equal for two launches of the same specification, empty if it is unknown.
    """

    launch_id: str
    query_id: str
    uri: str
    checkpoint_location: str
    launched_at: str
    launched_by: str = ""
    fingerprint: str = ""
    driver: Driver = UnseenDriver()

    json_name = "a launch"
    json_readers: ClassVar[Mapping[str, Reader]] = {
        "launched_at": moment,
        "driver": lambda _: UnseenDriver(),  # JSON has the driver under its kind
    }

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a trigger's arguments and Airflow's task state."""
        document = JsonRecord.to_json(self)
        del document["driver"]
        driver = self.driver.to_json()
        return document | ({self.driver.kind: driver} if driver else {})

    @classmethod
    def read_json(cls, given: object) -> Self:
        """Read what :meth:`to_json` made.

        :raises ValueError: a part is missing or has another form.
        """
        read = cls(**cls.read_arguments(given))
        for kind in _DRIVERS:
            if isinstance(given, Mapping) and (known := given.get(kind.kind)):
                read = replace(read, driver=kind.read_json(known))
        return read


def same_task(one: str, other: str) -> bool:
    """Return whether two ``launchedBy`` texts name tries of one task instance."""
    return bool(one) and one.rpartition("#")[0] == other.rpartition("#")[0]
