"""Repeated observations of a launched driver; shared by the trigger and the waiting task."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers.rotating_log import end_of_log
from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    DatasetNotFoundError,
    ProtocolVersionError,
    SpecError,
    TransientError,
)
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import Owner, StopNote
from airflow_provider_lance.protocol.stop_requests import standing_request
from airflow_provider_lance.supervision.driver_log import LastError, last_error, summary_in
from airflow_provider_lance.supervision.driver_reports import (
    Summary,
    read_heartbeat,
    read_summary,
    report_location,
)
from airflow_provider_lance.supervision.health import Health, Limits, evaluate, is_suspect
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["Supervisor"]

_CLUSTER_SECONDS = 20.0
"""The age up to which a heartbeat replaces a cluster API request; drivers beat every 10 s."""


class Supervisor:
    """Observes one launch. For a healthy driver, one observation is one small read of the store.

    Checkpoint and dataset are read when heartbeat and process look suspicious. Time during which
    the store does not answer is not counted against the driver.
    """

    def __init__(
        self,
        launch: Launch,
        hook: LanceHook,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; no I/O.

        :param clock: seconds of a clock that never goes back.
        """
        self.launch = launch
        self.heartbeat_json: dict[str, Any] | None = None
        """The newest heartbeat."""
        self.summary: Summary | None = None
        """The driver's summary, once it exists."""
        self._hook, self._limits, self._clock = hook, limits, clock
        self._reports: Files | None = None
        self._last_error: LastError | None = None
        self._since = self._changed = self._looked = self._answered = clock()
        self._excused = 0.0
        self._age_before = _age(launch.launched_at)

    @property
    def heartbeat(self) -> Heartbeat | None:
        """Return the newest heartbeat, parsed."""
        return Heartbeat.parse(self.heartbeat_json) if self.heartbeat_json else None

    @property
    def age(self) -> float:
        """Return the seconds since the launch."""
        return self._age_before + self._clock() - self._since

    @property
    def silent(self) -> float:
        """Return the seconds since the heartbeat last changed."""
        return max(0.0, self._clock() - self._changed)

    def look(self) -> Health:
        """Return the driver's current health. Blocks.

        :raises LanceStreamError: the health is unknown: the store does not answer, or Airflow does
            not provide the connection. If that has lasted long, an exited driver is reported all
            the same.
        """
        # The process first: a driver writes its summary before it ends, so an observer that saw it
        # exit also sees the summary.
        alive = self._alive()
        try:
            self._read_reports(alive)
            if self.summary is None and is_suspect(self._observe(alive), self._limits):
                self._read_summary()
            if alive is False and self.summary is None:
                if self.launch.driver.is_ending():
                    alive = True  # its exit status is known in a moment
                else:
                    self._read_log()
            observation = self._observe(alive)
            if is_suspect(observation, self._limits):
                observation = self._observe(alive, evidence=True)
        except Exception:
            now = self._clock()
            if alive is False and now - self._answered >= self._limits.silence:
                return evaluate(self._observe(alive), self._limits)  # no more will become known
            # The store's silence does not count as the driver's.
            self._changed += now - self._looked
            self._excused += now - self._looked
            self._looked = now
            raise
        self._answered = self._looked = self._clock()
        return evaluate(observation, self._limits)

    def _alive(self) -> bool | None:
        fresh = self.heartbeat_json and self._clock() - self._changed < _CLUSTER_SECONDS
        if fresh and self.launch.driver.polls_remotely:
            return None  # its heartbeat is sufficient
        return self.launch.driver.alive()

    def _read_reports(self, alive: bool | None) -> None:
        if self._reports is None:
            place = report_location(self.launch.checkpoint_location)
            self._hook.store  # noqa: B018 - a missing connection is an error of its own
            try:
                self._reports = self._hook.files(place)
            except SpecError:  # a store that Spark reaches and pyarrow does not
                return
        try:
            seen = read_heartbeat(self._reports, self.launch.launch_id)
        except TransientError:
            if alive is not False:
                raise
            seen = None  # its summary counts more
        if seen is not None and seen != self.heartbeat_json:
            self.heartbeat_json, self._changed = seen, self._clock()
        if alive is False or (self.heartbeat_json or {}).get("state") == "ended":
            self._read_summary()

    def _read_summary(self) -> None:
        if self._reports is not None:
            self.summary = read_summary(self._reports, self.launch.launch_id)

    def _read_log(self) -> None:
        """Read what the driver's log says of its end, if the log is on this host."""
        log = self.launch.driver.log()
        if self.summary or log is None:
            return
        text = end_of_log(log)
        self.summary = summary_in(text, self.launch.launch_id)
        self._last_error = last_error(text)

    def renew(self, hook: LanceHook) -> None:
        """Continue with another hook: the old one's credentials may have changed."""
        self._hook, self._reports = hook, None

    def _observe(self, alive: bool | None, *, evidence: bool = False) -> DriverObservation:
        owner, note = self._ownership() if evidence else (None, None)
        process = ProcessIdentity.reported(self.heartbeat_json or {})
        return DriverObservation(
            launch_id=self.launch.launch_id,
            launched_at=self.launch.launched_at,
            alive=alive,
            suspended=bool(process and process.suspended()),
            age=max(0.0, self.age - self._excused),
            silent=self.silent,
            heartbeat=self.heartbeat,
            reports_unreadable=self._reports is None,
            summary=self.summary,
            exit_status=self.launch.driver.exit_status() if alive is False else None,
            end_note=self.launch.driver.end_note() if alive is False else "",
            last_error=self._last_error if alive is False else None,
            checkpoint=self._checkpoint() if evidence else None,
            owner=owner,
            stop_note=note,
        )

    def _checkpoint(self) -> Checkpoint | None:
        location = self.launch.checkpoint_location
        try:
            return read_checkpoint(location, self._hook.files(location))
        except (SpecError, CheckpointCorruptError):
            return None

    def _ownership(self) -> tuple[Owner | None, StopNote | None]:
        try:
            port = self._hook.open(self.launch.uri)
            state = decode_query(port.config, self.launch.query_id, port.version)
        except (DatasetNotFoundError, ProtocolVersionError):
            return None, None
        note = standing_request(state)
        token = self.heartbeat.token if self.heartbeat else None
        return state.owner, note if note and note.means(self.launch.launch_id, token) else None


def _age(launched_at: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(launched_at)).total_seconds())
