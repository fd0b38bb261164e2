"""The state of a stream: one pure function of what was observed.

Everything that reports on a stream calls :func:`evaluate`. Durations are in seconds; each adds up
times of one clock only, the driver's or the observer's, so skewed clocks change no result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from airflow_provider_lance.exceptions import FencedError, TerminalError, error_class
from airflow_provider_lance.protocol.json_codec import JsonRecord
from airflow_provider_lance.protocol.model import NO_EPOCH, OwnerState, StopNote
from airflow_provider_lance.supervision.driver_log import is_certain
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation

__all__ = ["Health", "Limits", "StreamState", "evaluate", "is_suspect"]


_QUIET_SECONDS = 45.0
"""The silence from which a driver is not responding: it misses four heartbeats, 10 s apart."""

_LONG_SECONDS = 30.0
"""The duration from which a message states how long a driver has been busy."""


class StreamState(StrEnum):
    """What a stream is doing, or how it ended."""

    STARTING = "starting"
    RUNNING = "running"
    IDLE = "idle"
    """It waits: there is nothing to read."""
    STOPPING = "stopping"
    """It was asked to stop and finishes its epoch."""
    STALLED = "stalled"
    """A planned epoch has not been committed for too long, or the driver hangs."""
    NOT_RESPONDING = "not responding"
    """Its process runs, and its heartbeats have stopped; soon it counts as stalled."""
    DEAD = "dead"
    """The driver has exited and left no summary."""
    FENCED = "fenced"
    """Another driver owns the query."""
    FAILED = "failed"
    """The query ended with an error."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """It was asked to stop, and did."""

    @property
    def ended(self) -> bool:
        """Return whether the driver has ended."""
        return self in (self.FENCED, self.FAILED, self.FINISHED, self.STOPPED)

    @property
    def meant(self) -> bool:
        """Return whether nothing is to run: all is read, or somebody asked for the end."""
        return self in (self.FINISHED, self.STOPPED)

    @property
    def responds(self) -> bool:
        """Return whether a driver reports what it does at present."""
        return self in (self.RUNNING, self.IDLE, self.STOPPING)

    @property
    def silent(self) -> bool:
        """Return whether a driver that runs cannot be expected to obey a request."""
        return self in (self.STALLED, self.NOT_RESPONDING)

    @property
    def lost(self) -> bool:
        """Return whether the driver must be replaced."""
        return self in (self.STALLED, self.DEAD)


@dataclass(frozen=True, slots=True)
class Limits(JsonRecord):
    """How long, in seconds, something may last before it counts as a problem."""

    start: float = 300.0
    """From the launch to the first heartbeat."""
    silence: float = 120.0
    """Without a new heartbeat; a driver writes one at least every 10 s."""
    stall: float = 600.0
    """With one epoch planned and not committed."""

    json_name = "limits"


@dataclass(frozen=True, slots=True)
class Health:
    """A stream's state, and a text that says how it was recognised."""

    state: StreamState
    reason: str
    restartable: bool = False
    """Whether a new driver may succeed; set only for a stream that failed or was lost."""
    asked_by: str | None = None
    """Who asked it to stop, empty for an unsigned request; ``None`` without a request."""
    error: str = ""
    """The class of the error that ended it, if no summary names it."""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}"


def is_suspect(observation: DriverObservation, limits: Limits) -> bool:
    """Return whether heartbeat and process alone do not decide the state; pure."""
    if observation.summary is not None:
        return False
    if _alive(observation, limits) is False:
        return True
    if observation.heartbeat is None:
        return observation.age >= limits.start
    return _silenced(observation, limits) or _held(observation) >= limits.stall


def evaluate(observation: DriverObservation, limits: Limits) -> Health:
    """Return a stream's state; pure."""
    if observation.summary is not None:
        return _ended(observation.summary)
    if fenced := _fenced(observation):
        return fenced
    if _alive(observation, limits) is False:
        return _gone(observation)
    if observation.heartbeat is None:
        return _despite_stop_request(_unheard(observation, limits), observation.stop_note)
    if stalled := _stalled(observation, limits):
        return _despite_stop_request(stalled, observation.stop_note)
    quiet = observation.suspended or observation.silent >= _QUIET_SECONDS
    if quiet and not _says_ended(observation):
        return Health(StreamState.NOT_RESPONDING, _silence(observation))
    return _living(observation, observation.heartbeat)


def _alive(observation: DriverObservation, limits: Limits) -> bool | None:
    return observation.liveness(limits.silence, process_first=True).alive


def _ended(summary: Summary) -> Health:
    if summary.reason is EndReason.FINISHED:
        read = f"read all available data, {_reached(summary.watermark)}"
        return Health(StreamState.FINISHED, read)
    if summary.reason is EndReason.STOPPED:
        who = summary.stopped_by or ""
        how = "" if summary.released else f", not in order: {summary.message or 'not released'}"
        reason = f"asked to{_by(who)}, {_reached(summary.watermark)}{how}"
        return Health(StreamState.STOPPED, reason, asked_by=who)
    error = error_class(summary.error or "")
    reason = f"{summary.error}: {summary.message}"
    if issubclass(error, FencedError):
        return Health(StreamState.FENCED, reason)
    return Health(StreamState.FAILED, reason, restartable=not issubclass(error, TerminalError))


def _fenced(observation: DriverObservation) -> Health | None:
    owner = observation.owner
    if owner is None or owner.driver.launch_id == observation.launch_id:
        return None
    token = observation.heartbeat.token if observation.heartbeat else None
    if token is not None:
        newer = owner.token > token
    else:  # it never claimed, or left no heartbeat that says so
        newer = owner.state is OwnerState.ACTIVE and _is_later(owner.time, observation.launched_at)
    if not newer:
        return None
    who = owner.driver.launched_by or owner.driver.launch_id or f"run {owner.driver.run_id}"
    return Health(
        StreamState.FENCED, f"{who} owns the query with token {owner.token} since {owner.time}"
    )


def _gone(observation: DriverObservation) -> Health:
    last = _last_seen(observation)
    if observation.stop_note is not None:
        who = observation.stop_note.by
        reason = f"asked to{_by(who)}, and killed before it released the query{last}"
        return Health(StreamState.STOPPED, reason, asked_by=who)
    if observation.exit_status == 0 and (
        observation.heartbeat is None or observation.heartbeat.state == "ended"
    ):
        reason = "the driver ended with success; its summary cannot be read from here"
        return Health(StreamState.FINISHED, f"{reason}{last}")
    status = observation.exit_status
    end = ["" if status is None else _exit(status), observation.end_note]
    how = f" ({', '.join(filter(None, end))})" if any(end) else ""
    doubt = _in_flight(observation)
    if observation.last_error and (observation.exit_status or 0) > 0:  # a signal has another cause
        found = observation.last_error
        reason = f"{found.message}; the driver ended{how}{last}{doubt}"
        certain = is_certain(found.error)
        state = StreamState.FAILED if certain else StreamState.DEAD
        return Health(state, reason, restartable=not certain, error=found.error)
    reason = f"the driver's process is gone{how} and left no summary{last}{doubt}"
    return Health(StreamState.DEAD, reason, True)


def _exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _unheard(observation: DriverObservation, limits: Limits) -> Health:
    if observation.age < limits.start:
        return Health(StreamState.STARTING, f"launched {max(0.0, observation.age):.0f} s ago")
    owner = observation.owner
    ours = owner is not None and owner.driver.launch_id == observation.launch_id
    alive = _alive(observation, limits)
    if alive and (observation.reports_unreadable or ours):
        held = f", it holds token {owner.token}" if owner and ours else ""
        return Health(StreamState.RUNNING, f"its heartbeats cannot be read from here{held}")
    if alive:
        reason = (
            f"the driver runs and gave no heartbeat in {observation.age:.0f} s since its launch"
        )
        return Health(StreamState.STALLED, reason, True)
    reason = (
        f"no heartbeat in {observation.age:.0f} s since the launch, and its process is not visible "
        "from here"
    )
    return Health(StreamState.DEAD, reason, True)


def _stalled(observation: DriverObservation, limits: Limits) -> Health | None:
    held, last = _held(observation), _last_seen(observation)
    if _alive(observation, limits) is None:
        silent = f"no heartbeat for {observation.silent:.0f} s"
        reason = f"{silent}, and its process is not visible from here{last}"
        return Health(StreamState.DEAD, reason, True)
    if observation.suspended and _silenced(observation, limits):
        return Health(StreamState.STALLED, f"{_silence(observation)}{last}", True)
    if held < limits.stall:
        return None
    if observation.checkpoint is None or observation.checkpoint.in_flight is not None:
        epoch = observation.checkpoint.in_flight if observation.checkpoint else "unknown"
        reason = f"epoch {epoch} is planned and not committed for {held:.0f} s{last}"
        return Health(StreamState.STALLED, reason, True)
    if _silenced(observation, limits):
        return Health(StreamState.STALLED, f"{_silence(observation)}{last}", True)
    return None


def _silenced(observation: DriverObservation, limits: Limits) -> bool:
    return observation.silent >= limits.silence


def _says_ended(observation: DriverObservation) -> bool:
    return observation.heartbeat is not None and observation.heartbeat.state == "ended"


def _silence(observation: DriverObservation) -> str:
    silent = f"no heartbeat for {observation.silent:.0f} s"
    if observation.suspended:
        return f"a signal (SIGSTOP) has stopped its process, {silent}"
    return f"{silent}, although its process runs" if observation.alive else silent


def _despite_stop_request(lost: Health, note: StopNote | None) -> Health:
    """Return the state of a lost driver that was asked to stop: it needs no replacement."""
    if note is None or not lost.state.lost:
        return lost
    reason = f"{lost.reason}; it was asked to stop{_by(note.by)}"
    return replace(lost, reason=reason, restartable=False, asked_by=note.by)


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _living(observation: DriverObservation, heartbeat: Heartbeat) -> Health:
    watermark = _reached(heartbeat.watermark)
    if heartbeat.state == "stopping":
        return Health(StreamState.STOPPING, f"finishes its epoch, {watermark}")
    if heartbeat.idle:
        return Health(StreamState.IDLE, f"nothing to read, {watermark}")
    if _held(observation) < _LONG_SECONDS:
        return Health(StreamState.RUNNING, watermark)
    # No epoch is planned: a source may take long to list its data, so that is not a stall.
    looks = observation.checkpoint is not None and observation.checkpoint.in_flight is None
    what = "looking for data" if looks else "busy with one epoch"
    return Health(StreamState.RUNNING, f"{watermark}, {what} for {_held(observation):.0f} s")


def _held(observation: DriverObservation) -> float:
    """Return how long one epoch, or one silence, has lasted."""
    return (observation.heartbeat.busy if observation.heartbeat else 0.0) + observation.silent


def _last_seen(observation: DriverObservation) -> str:
    heartbeat = observation.heartbeat
    if heartbeat is None:
        return ""
    return f"; last heartbeat {heartbeat.time}, {_reached(heartbeat.watermark)}"


def _reached(watermark: int | None) -> str:
    return "no epoch yet" if watermark in (None, NO_EPOCH) else f"watermark {watermark}"


def _in_flight(observation: DriverObservation) -> str:
    epoch = observation.checkpoint.in_flight if observation.checkpoint else None
    return "" if epoch is None else f", epoch {epoch} in flight"


def _is_later(one: str, other: str) -> bool:
    try:
        return _moment(one) > _moment(other)
    except ValueError:
        return False


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
