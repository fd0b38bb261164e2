"""Supervise one launch from look to look, and say in the log what is new about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.drivers.log_tail import LogTail, last_lines
from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.protocol.decoding import Reader, moment
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.supervision.health import Health, Limits, StreamState
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy
from airflow_provider_lance.triggers.progress import EpochLines, count_restart, gauge_progress
from airflow_provider_lance.triggers.stopping import ask_to_stop
from airflow_provider_lance.triggers.supervision_outcome import (
    Action,
    SupervisionOutcome,
    decide_next,
)
from airflow_provider_lance.triggers.supervisor import Supervisor
from airflow_provider_lance.triggers.warnings import Warnings

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

__all__ = ["SupervisionConfig", "SupervisionLoop"]

_ALTERNATING = (StreamState.RUNNING, StreamState.IDLE)
_LASTING_SECONDS = 60.0
"""How long a stream must be idle, or busy again, for that to be worth a line."""
_LINES = 100
"""How many lines of a driver's log are shown at one look."""
_LAST_LINES = 20
"""How much of a dead driver's log is shown."""


@dataclass(frozen=True, slots=True)
class SupervisionConfig(JsonRecord):
    """All that a supervisor needs, in any process, after any restart; travels as JSON.

    ``task_key`` is the ``launchedBy`` text of the task try that watches, ``deadline`` an ISO time
    after which the stream is stopped, ``tags`` go with metrics, ``version`` is the dataset's when
    the task began, where it was asked for. Durations are seconds.
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
    """Follows one launch. :meth:`step` is one look; it blocks, and says when there is a verdict."""

    def __init__(
        self,
        order: SupervisionConfig,
        log: Logger,
        hook: LanceHook | None = None,
        *,
        whole_log: bool = True,
    ) -> None:
        """Do no I/O but on this host.

        :param whole_log: show the driver's log from its beginning, not from now on.
        """
        self.order, self._log = order, log
        self._hook = hook or LanceHook(order.lance_conn_id)
        self.supervisor = Supervisor(order.launch, self._hook, order.limits)
        self.health: Health | None = None
        self._tail = _tail(order.launch, from_end=not whole_log)
        self._epochs = EpochLines()
        self._told: StreamState | None = None
        self._other_since: float | None = None
        self._reason_unavailable = ""
        self._stopping_since: float | None = None
        self._late_since: float | None = None
        self._asked = False

    def step(self) -> SupervisionOutcome | None:
        """Look once; return what to do when there is something to do.

        What cannot be told now never ends a stream: the driver goes on, and so does the watch.
        """
        try:
            health = self.supervisor.look()
        except Exception as error:  # Lance and pyarrow have errors that they do not document
            self._cannot_tell(error)
            return self._timed_out(None)
        if self._reason_unavailable:
            self._log.info("The stream can be seen again.")
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
        """Return the rows that the driver has committed, as far as it was heard."""
        heartbeat, summary = self.supervisor.heartbeat, self.supervisor.summary
        return summary.rows if summary else (heartbeat.total_rows or 0 if heartbeat else 0)

    def _cannot_tell(self, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        if said != self._reason_unavailable:
            self._log.warning("The stream cannot be seen now; it goes on. error=%s", said)
        self._reason_unavailable = said
        # Its credentials may have been replaced meanwhile.
        self._hook = LanceHook(self.order.lance_conn_id)
        self.supervisor.renew(self._hook)

    def _kill_after_grace(self, health: Health) -> None:
        """Kill a driver that was asked to stop and is at it for much longer than its grace."""
        if health.state is not StreamState.STOPPING:
            self._stopping_since = None
            return
        now = time.monotonic()
        self._stopping_since = self._stopping_since or now
        if now - self._stopping_since > 2 * self.order.stop_grace and self.order.launch.kill():
            self._stopping_since = now
            self._log.warning("Its grace was over: killed. where=%s", self.order.launch.where())

    def conclude(self, outcome: SupervisionOutcome) -> None:
        """Log why the watch is over, and end what hangs, where that is possible from here."""
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
        launch = self.order.launch
        if outcome.state.lost and launch.kill():
            self._log.warning("Killed what was left of the driver. where=%s", launch.where())

    def show_log(self) -> None:
        """Show the warnings and errors that the driver wrote since the last look."""
        for line in self._tail.read() if self._tail else ():
            self._log.info("driver | %s", line)

    def _show_last_lines(self) -> None:
        if log := self.order.launch.log():
            for line in last_lines(log, _LAST_LINES):
                self._log.info("driver.log ends | %s", line)

    def _show(self, health: Health) -> None:
        over = health.state.ended or health.state.lost  # the verdict says so once
        if not over and self._is_news(health.state):
            self._told, self._other_since = health.state, None
            self._log.info("Stream %s: %s", health.state, health.reason)
        self.health = health
        self.show_log()
        if heartbeat := self.supervisor.heartbeat:
            query_id, silent = self.order.launch.query_id, self.supervisor.silent
            gauge_progress(query_id, heartbeat, silent, self.order.tags)
        self._show_progress()

    def _is_news(self, state: StreamState) -> bool:
        """Tell whether a state is worth a line: between two triggers every stream is idle."""
        if state is self._told:
            self._other_since = None
            return False
        if self._told not in _ALTERNATING or state not in _ALTERNATING:
            return True
        self._other_since = self._other_since or time.monotonic()
        return time.monotonic() - self._other_since >= _LASTING_SECONDS

    def _show_progress(self, *, last: bool = False) -> None:
        if line := self._epochs.line(self.supervisor.heartbeat_json or {}, last=last):
            self._log.info(line)

    def _timed_out(self, outcome: SupervisionOutcome | None) -> SupervisionOutcome | None:
        """Past the deadline, ask the stream to stop, and wait for its end as long as its grace."""
        deadline = self.order.deadline
        if deadline is None or datetime.now(UTC) < datetime.fromisoformat(deadline):
            return outcome
        if self._late_since is None:
            if outcome is not None and outcome.action is Action.END:
                return outcome  # it came to its end in time, and that is seen late
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
    log = launch.log()
    return LogTail(log, _LINES, from_end=from_end, keep=Warnings()) if log else None
