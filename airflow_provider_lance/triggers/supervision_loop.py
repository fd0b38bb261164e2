"""Supervise one launch poll by poll, and log what is new about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers.rotating_log import LogTail, last_lines
from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.decoding import Reader, moment
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.supervision.health import Health, Limits, StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy
from airflow_provider_lance.triggers.stop import ask_to_stop
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
    decide_next,
)
from airflow_provider_lance.triggers.supervisor import Supervisor
from airflow_provider_lance.triggers.task_log import (
    EpochLines,
    Warnings,
    count_restart,
    gauge_progress,
)

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["SupervisionConfig", "SupervisionLoop"]

_ALTERNATING = (StreamState.RUNNING, StreamState.IDLE)
_LASTING_SECONDS = 60.0
"""How long a stream must be idle, or busy again, before that is logged."""
_LINES = 100
"""The most lines of a driver's log that are shown per poll."""
_LAST_LINES = 20
"""The number of last lines shown of a dead driver's log."""


@dataclass(frozen=True, slots=True)
class SupervisionConfig(JsonRecord):
    """Everything a supervisor needs, in any process, after any restart; travels as JSON.

    ``task_key`` is the ``launchedBy`` text of the supervising task try. ``deadline`` is an ISO time
    after which the stream is stopped. ``tags`` are added to metrics. ``version`` is the dataset's
    version when the task began, if it was read. Durations are seconds.
    """

    launch: Launch
    task_key: str
    limits: Limits = field(default_factory=Limits)
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    lance_conn_id: str | None = LanceHook.default_conn_name
    poll_interval: float = 5.0
    stop_grace: float = 60.0
    deadline: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    version: int | None = None

    json_name = "a supervision's configuration"
    json_readers: ClassVar[Mapping[str, Reader]] = {"deadline": moment}


class SupervisionLoop:
    """Follows one launch. :meth:`step` is one poll; it blocks; an outcome ends the loop."""

    def __init__(
        self,
        order: SupervisionConfig,
        log: Logger,
        hook: LanceHook | None = None,
        *,
        whole_log: bool = True,
    ) -> None:
        """Do no I/O except on this host.

        :param whole_log: show the driver's log from its beginning, not from now on.
        """
        self.order, self._log = order, log
        self._hook = hook or LanceHook(order.lance_conn_id)
        self.supervisor = Supervisor(order.launch, self._hook, order.limits)
        self.health: Health | None = None
        self._tail = _tail(order.launch, from_end=not whole_log)
        self._epochs = EpochLines()
        self._shown_state: StreamState | None = None
        self._other_since: float | None = None
        self._reason_unavailable = ""
        self._stopping_since: float | None = None
        self._late_since: float | None = None
        self._asked = False

    def step(self) -> SupervisionOutcome | None:
        """Poll once; return an outcome when there is something to do.

        An unknown state never ends a stream: the driver keeps running, and supervision continues.
        """
        try:
            health = self.supervisor.look()
        except Exception as error:  # Lance and pyarrow raise undocumented errors
            self._cannot_observe(error)
            return self._timed_out(None)
        if self._reason_unavailable:
            self._log.info("The stream is visible again.")
        self._reason_unavailable = ""
        self._show(health)
        heartbeat, summary = self.supervisor.heartbeat, self.supervisor.summary
        outcome = decide_next(
            health,
            task_key=self.order.task_key,
            restarts=self.order.restarts,
            policy=self.order.policy,
            watermark=heartbeat.watermark if heartbeat else None,
            lived=self.supervisor.age,
            ended=summary.to_json() if summary else None,
        )
        if outcome is None:
            self._kill_after_grace(health)
        return self._timed_out(outcome)

    @property
    def rows(self) -> int:
        """Return the rows that the driver has committed, as far as it reported them."""
        heartbeat, summary = self.supervisor.heartbeat, self.supervisor.summary
        return summary.rows if summary else (heartbeat.total_rows or 0 if heartbeat else 0)

    def _cannot_observe(self, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        if said != self._reason_unavailable:
            self._log.warning("The stream cannot be observed now; it keeps running. error=%s", said)
        self._reason_unavailable = said
        # Its credentials may have been replaced meanwhile.
        self._hook = LanceHook(self.order.lance_conn_id)
        self.supervisor.renew(self._hook)

    def _kill_after_grace(self, health: Health) -> None:
        """Kill a driver that was asked to stop and is far beyond its grace."""
        if health.state is not StreamState.STOPPING:
            self._stopping_since = None
            return
        now, driver = time.monotonic(), self.order.launch.driver
        self._stopping_since = self._stopping_since or now
        if now - self._stopping_since > 2 * self.order.stop_grace and driver.kill():
            self._stopping_since = now
            self._log.warning("Its grace is over: killed. where=%s", driver.where())

    def conclude(self, outcome: SupervisionOutcome) -> None:
        """Log why supervision is over, and end what hangs, if that is possible from here."""
        self._show_progress(last=True)
        if outcome.state is StreamState.DEAD:
            self._show_last_lines()
        if outcome.action is Action.RESTART:
            count_restart(self.order.launch.query_id, outcome.state.value, self.order.tags)
            self._log.warning(
                "Restart in %.0f s. reason=%s launch=%s restart=%d of at most %d without progress",
                outcome.delay,
                f"{outcome.state}: {outcome.reason}",
                self.order.launch.launch_id,
                outcome.restarts.fruitless,
                self.order.policy.most,
            )
        else:
            fine = outcome.state in (StreamState.FINISHED, StreamState.STOPPED)
            level = logging.INFO if fine else logging.WARNING
            self._log.log(level, "Stream %s: %s", outcome.state, outcome.reason)
        driver = self.order.launch.driver
        if outcome.state.lost and driver.kill():
            self._log.warning("Killed what was left of the driver. where=%s", driver.where())

    def show_log(self) -> None:
        """Show the warnings and errors that the driver wrote since the last poll."""
        for line in self._tail.read() if self._tail else ():
            self._log.info("driver | %s", line)

    def _show_last_lines(self) -> None:
        if log := self.order.launch.driver.log():
            for line in last_lines(log, _LAST_LINES):
                self._log.info("driver.log ends | %s", line)

    def _show(self, health: Health) -> None:
        over = health.state.ended or health.state.lost  # the outcome reports it once
        if not over and self._is_news(health.state):
            self._shown_state, self._other_since = health.state, None
            self._log.info("Stream %s: %s", health.state, health.reason)
        self.health = health
        self.show_log()
        if heartbeat := self.supervisor.heartbeat:
            query_id, silent = self.order.launch.query_id, self.supervisor.silent
            gauge_progress(query_id, heartbeat, silent, self.order.tags)
        self._show_progress()

    def _is_news(self, state: StreamState) -> bool:
        """Return whether a state is worth a line: between two triggers every stream is idle."""
        if state is self._shown_state:
            self._other_since = None
            return False
        if self._shown_state not in _ALTERNATING or state not in _ALTERNATING:
            return True
        self._other_since = self._other_since or time.monotonic()
        return time.monotonic() - self._other_since >= _LASTING_SECONDS

    def _show_progress(self, *, last: bool = False) -> None:
        if line := self._epochs.line(self.supervisor.heartbeat_json or {}, last=last):
            self._log.info(line)

    def _timed_out(self, outcome: SupervisionOutcome | None) -> SupervisionOutcome | None:
        """After the deadline, ask the stream to stop; wait for its end up to twice its grace."""
        deadline = self.order.deadline
        if deadline is None or datetime.now(UTC) < datetime.fromisoformat(deadline):
            return outcome
        if self._late_since is None:
            if outcome is not None and outcome.action is Action.END:
                return outcome  # it ended in time and was observed late
            self._late_since = time.monotonic()
            self._log.warning("Timed out at %s: asking the stream to stop.", deadline)
        self._asked = self._asked or self._ask()
        waited = time.monotonic() - self._late_since
        if outcome is None and waited < 2 * self.order.stop_grace:
            return None
        state = outcome.state if outcome else StreamState.STOPPING
        how = outcome.reason if outcome else "it was asked to stop and has not yet"
        ended = outcome.ended if outcome else None
        return SupervisionOutcome(
            Action.END, state, f"timed out at {deadline}; {how}", timed_out=True, ended=ended
        )

    def _ask(self) -> bool:
        try:
            return ask_to_stop(self.order.launch, self._hook, self.order.task_key)
        except LanceStreamError as error:
            self._log.warning("The stream could not be asked to stop. error=%s", error)
            return False


def _tail(launch: Launch, *, from_end: bool) -> LogTail | None:
    log = launch.driver.log()
    return LogTail(log, _LINES, from_end=from_end, keep=Warnings()) if log else None
