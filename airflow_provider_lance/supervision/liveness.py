"""Whether a driver runs: one rule over what one observation of it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_provider_lance.exceptions import SpecError, TransientError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import NO_EPOCH, Driver, Owner, StopNote
from airflow_provider_lance.supervision.driver_log import LastError
from airflow_provider_lance.supervision.driver_reports import (
    Summary,
    read_heartbeat,
    read_summary,
    report_location,
)
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["DriverObservation", "Liveness", "Sign", "observe_owner"]


class Sign(StrEnum):
    """What shows whether a driver runs."""

    PROCESS = "process"
    """Its process on this host, or the cluster manager's answer."""
    SUMMARY = "summary"
    LAST_HEARTBEAT = "lastHeartbeat"
    """The newest heartbeat says that it ended."""
    HEARTBEAT = "heartbeat"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Liveness:
    """Whether a driver runs, ``None`` if that is unknown here, and what shows it."""

    alive: bool | None
    shown_by: Sign


@dataclass(frozen=True, slots=True)
class DriverObservation:
    """One observation of one driver; every field but the launch is optional.

    ``alive`` is the answer of its process or of the cluster manager, ``None`` where neither is
    visible, as for a process of another host. ``suspended`` says that a signal has stopped its
    process. ``silent`` is how many seconds ago its newest heartbeat was written: a supervisor
    counts on its own clock from when it saw the heartbeat; a check subtracts the driver's clock
    from its own, so skew is included. ``token`` is the one that it holds or last held; ``None`` if
    it never claimed or does not say. An empty ``launch_id`` is a driver that was started without a
    launch and writes no heartbeats.

    The fields from ``launched_at`` on are for :func:`.health.evaluate`. ``age`` counts from the
    launch, on the observer's clock. ``reports_unreadable`` says that this observer can never read
    the driver's heartbeats. ``exit_status`` is spark-submit's if its wrapper noted one, or the
    cluster's; negative for a signal; ``end_note`` is what the cluster says of it. ``last_error`` is
    the newest in the log of a driver that has exited, where it is readable. A supervisor reads
    ``checkpoint``, ``owner`` and ``stop_note`` only when :func:`.health.is_suspect` says so.
    """

    launch_id: str
    heartbeat_json: Mapping[str, Any] | None = None
    heartbeat: Heartbeat | None = None
    summary: Summary | None = None
    alive: bool | None = None
    silent: float = 0.0
    process: ProcessIdentity | None = None
    token: int | None = None
    suspended: bool = False
    launched_at: str = ""
    age: float = 0.0
    reports_unreadable: bool = False
    exit_status: int | None = None
    end_note: str = ""
    last_error: LastError | None = None
    checkpoint: Checkpoint | None = None
    owner: Owner | None = None
    stop_note: StopNote | None = None

    def liveness(self, fresh: float = 0.0, *, process_first: bool = False) -> Liveness:
        """Return whether the driver runs; pure.

        Usually a driver that left its summary, or said that it ended, does not count as running,
        although its process may take a moment to exit. ``process_first`` is for what takes the
        query from a driver or waits for its end: an epoch that hung may continue in a process that
        left its summary, and a heartbeat that says "ended" proves no end.

        :param fresh: seconds; a younger heartbeat proves a process that is not visible from here.
        """
        process = Liveness(self.alive, Sign.PROCESS)
        if process_first and self.alive is not None:
            return process
        if self.summary is not None:
            return Liveness(False, Sign.SUMMARY)
        if self.alive is False:
            return process
        if not process_first and self.heartbeat and self.heartbeat.state == "ended":
            return Liveness(False, Sign.LAST_HEARTBEAT)
        if self.alive:
            return process
        if self.heartbeat and self.silent < fresh:
            return Liveness(True, Sign.HEARTBEAT)
        return Liveness(None, Sign.NOTHING)

    @property
    def watermark(self) -> int:
        """Return the newest watermark that it reported since its claim, -1 if none.

        One that it reported before its claim may belong to an older generation.
        """
        beat, summary = self.heartbeat, self.summary
        said = [beat.watermark] if beat and beat.token and beat.watermark is not None else []
        said += [summary.watermark] if summary else []
        return max(said, default=NO_EPOCH)

    @classmethod
    def read(cls, reports: Files, launch_id: str) -> Self:
        """Read what a launch left beside the checkpoint; nothing else is known.

        :raises SpecError: its summary has another form.
        :raises StorageUnavailableError: the store did not answer or refused.
        """
        beat = read_heartbeat(reports, launch_id) if launch_id else None
        return cls(
            launch_id,
            heartbeat=Heartbeat.parse(beat) if beat else None,
            summary=read_summary(reports, launch_id) if launch_id else None,
        )

    @property
    def where(self) -> str:
        """Return ``host:pid``, or the part of it that is known."""
        return f"{self.process.host}:{self.process.pid}" if self.process else "an unknown host"

    @property
    def host(self) -> str:
        """Return the host of its process, empty if it is not known."""
        return self.process.host if self.process else ""

    @property
    def name(self) -> str:
        """Return where it runs, and its launch."""
        return f"{self.where} ({f'launch {self.launch_id}' if self.launch_id else 'no launch'})"

    def shown(self) -> dict[str, Any]:
        """Return it in the form that a finding's evidence shows."""
        return {
            "launchId": self.launch_id,
            "driver": self.where,
            "alive": self.alive,
            "heartbeatAt": self.heartbeat.time if self.heartbeat else None,
            "token": self.token,
            "ended": self.summary.reason.value if self.summary else None,
        }

    @property
    def said_of_itself(self) -> Mapping[str, Any]:
        """Return the ``driver`` part of its heartbeat, empty without one."""
        said = (self.heartbeat_json or {}).get("driver")
        return said if isinstance(said, Mapping) else {}

    @property
    def launched_by(self) -> str:
        """Return who launched it, empty if unknown."""
        return str(self.said_of_itself.get("launchedBy") or "")

    def is_of(self, driver: Driver) -> bool:
        """Return whether it is the driver of an owner record."""
        if self.launch_id == driver.launch_id:
            return True
        return not driver.launch_id and self.process == ProcessIdentity.recorded(driver)


def observe_owner(
    driver: Driver, open_reports: Callable[[str], Files], checkpoint_location: str = ""
) -> DriverObservation:
    """Observe the driver of an owner record; read its summary if its process is not visible here.

    :param open_reports: opens the folder of the query's reports; a :class:`.SpecError` or
        :class:`.TransientError` that it raises leaves the summary unread.
    :param checkpoint_location: where the checkpoint is, if not where the record says.
    """
    process = ProcessIdentity.recorded(driver)
    alive, summary = process.alive(), None
    location = checkpoint_location or driver.checkpoint_location
    if alive is None and driver.launch_id and location:
        with suppress(SpecError, TransientError):
            summary = read_summary(open_reports(report_location(location)), driver.launch_id)
    return DriverObservation(driver.launch_id, summary=summary, alive=alive, process=process)
