"""What a backend's driver can be asked, and what a cluster manager has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["ClusterManager", "Driver", "Polled"]


class Driver(Protocol):
    """A launched driver, wherever it runs. A frozen value that travels as JSON."""

    kind: ClassVar[str]
    """The name under which a launch's JSON holds it."""
    polls_remotely: ClassVar[bool]
    """Whether each poll is a request to a cluster, which a fresh heartbeat saves."""

    @property
    def is_here(self) -> bool:
        """Tell whether it runs on this host, where its process and log can be seen."""

    def alive(self) -> bool | None:
        """Tell whether it runs; ``None`` where that cannot be told from here."""

    def exit_status(self) -> int | None:
        """Return how it ended, negative for a signal; ``None`` before that or if not known."""

    def is_ending(self) -> bool:
        """Tell whether it is gone and how it ended is about to be noted."""

    def stop(self, by: str) -> bool:
        """Have it stopped in order, without asking through its dataset; tell whether it was told.

        :param by: who asks, for the driver's summary.
        """

    def kill(self) -> bool:
        """Kill exactly this driver; tell whether that was possible from here."""

    def log(self) -> Path | None:
        """Return its log, ``None`` where that is not on this host."""

    def where(self) -> str:
        """Return its place in words."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""


class Polled(NamedTuple):
    """A cluster's answer: whether the driver runs, and how it ended, if that is known."""

    alive: bool
    exit_status: int | None


class ClusterManager(ABC):
    """One kind of cluster: how drivers are handed over to it, asked about and ended."""

    name: ClassVar[str]
    """As a driver's JSON names it."""
    masters: ClassVar[str]
    """A regular expression: the master URLs of such clusters."""
    tracking: ClassVar[str]
    """The argument of ``SparkSubmitHook`` with which spark-submit hands the driver over."""
    waiting: ClassVar[str]
    """The Spark setting that is false then, so that spark-submit does not wait for the driver."""

    @abstractmethod
    def can_track(self, connection: Connection, conf: Mapping[str, Any]) -> bool:
        """Tell whether connection and conf say where the cluster's API answers."""

    @abstractmethod
    def submitted(self, hook: SparkSubmitHook) -> tuple[str, str]:
        """Return name and namespace of the driver from spark-submit's output; empty if not said."""

    @abstractmethod
    def poll(self, hook: SparkSubmitHook, name: str, namespace: str) -> Polled:
        """Ask the cluster; raises whatever its client raises."""

    @abstractmethod
    def kill(self, hook: SparkSubmitHook, name: str, namespace: str) -> None:
        """Ask the cluster to end a driver; raises whatever its client raises."""
