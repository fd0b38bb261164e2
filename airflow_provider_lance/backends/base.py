"""What a driver can be asked, and what differs between Spark masters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

__all__ = ["ClusterManager", "Driver", "Master", "Polled"]


class Driver(Protocol):
    """A launched driver, wherever it runs; a frozen value that travels as JSON."""

    kind: ClassVar[str]
    """The name of this kind of driver in a launch's JSON."""
    polls_remotely: ClassVar[bool]
    """Whether each poll is a request to a cluster; a fresh heartbeat makes it unnecessary."""

    @property
    def is_here(self) -> bool:
        """Return whether it runs on this host, where its process and log are visible."""

    def alive(self) -> bool | None:
        """Return whether it runs; ``None`` if that is unknown here."""

    def exit_status(self) -> int | None:
        """Return its exit status, negative for a signal; ``None`` before its end or if unknown."""

    def end_note(self) -> str:
        """Return what its cluster says of its end, and where its log is; empty for no answer."""

    def is_ending(self) -> bool:
        """Return whether it has exited and its exit status is about to be noted."""

    def stop(self, by: str) -> bool:
        """Request an orderly stop, without its dataset; return whether the request was delivered.

        :param by: who asks, for the driver's summary.
        """

    def kill(self) -> bool:
        """Kill exactly this driver; return whether that was possible from here."""

    def log(self) -> Path | None:
        """Return the path of its log, ``None`` if that is not on this host."""

    def where(self) -> str:
        """Return its place as text."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""


class Polled(NamedTuple):
    """A cluster's answer: whether the driver runs, and how it ended, if that is known."""

    alive: bool
    exit_status: int | None
    said: str = ""
    """The cluster's own words on the end."""


class Master:
    """One kind of Spark master."""

    masters: ClassVar[str]
    """A regular expression that matches its URLs."""
    example: ClassVar[str]
    """One such URL, for messages."""
    is_local: ClassVar[bool] = False
    """Whether executors run in the driver's own process, so with this worker's interpreter."""
    runs_driver: ClassVar[bool] = True
    """Whether it accepts a Python driver in cluster mode."""
    package: ClassVar[str] = ""
    """The distribution that the Spark provider's hook needs for it, beside the Spark provider."""

    def require(self, connection: Connection) -> None:
        """Raise if it does not answer; by default unchecked, as its address may be unknown here.

        :raises MasterUnreachableError: it does not answer.
        """


class ClusterManager(Master, ABC):
    """A master that is polled for a driver: how drivers are submitted to it, polled and killed."""

    name: ClassVar[str]
    """The manager's name in a driver's JSON."""
    tracking: ClassVar[str]
    """The argument of ``SparkSubmitHook`` with which spark-submit hands the driver over."""
    waiting: ClassVar[str]
    """The Spark setting that is false then, so that spark-submit does not wait for the driver."""
    polling: ClassVar[Mapping[str, Any]] = {}
    """Arguments of ``SparkSubmitHook`` with which it can poll and kill a known driver."""

    @abstractmethod
    def can_track(self, connection: Connection, conf: Mapping[str, Any]) -> bool:
        """Return whether connection and conf contain what the cluster's API needs."""

    @abstractmethod
    def submitted(self, hook: SparkSubmitHook | None) -> tuple[str, str]:
        """Return name and namespace of the driver from spark-submit's output; empty if absent."""

    @abstractmethod
    def poll(self, hook: SparkSubmitHook, name: str, namespace: str) -> Polled:
        """Ask the cluster; raises its client's errors."""

    @abstractmethod
    def kill(self, hook: SparkSubmitHook, name: str, namespace: str) -> None:
        """Ask the cluster to end a driver; raises its client's errors, also if it refuses."""

    @abstractmethod
    def log_command(self, name: str, namespace: str) -> str:
        """Return the command that prints a driver's log."""

    def marks(self, launch_id: str, conf: Mapping[str, str]) -> dict[str, str]:
        """Return the Spark settings by which :meth:`find` knows a launch; none by default."""
        return {}

    def find(self, hook: SparkSubmitHook, launch_id: str) -> str:
        """Return the name of a launch's driver, empty if unknown; raises its client's errors."""
        return ""
