"""How a stream's driver is supervised, restarted and stopped: one value for all time-outs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.operators.specification import seconds
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.option_parsers import MOST_SECONDS
from airflow_provider_lance.supervision.health import Limits
from airflow_provider_lance.supervision.restart_policy import RestartPolicy

__all__ = ["Supervision", "check_poll_interval"]

_MAX_RESTARTS = 5


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """
    The time-outs and restart limits of a stream; checked on creation. Not templated.

    One value can serve many streams, for example in a DAG's ``default_args``.

    :param poll_interval: Seconds between two polls of the driver.
    :param start_timeout: How long a driver may take from its launch to its first heartbeat.
    :param heartbeat_timeout: How long a driver whose process is not visible may be silent.
    :param stall_timeout: How long one epoch may be planned and not committed.
    :param stop_grace: How long a driver that was asked to stop may take for its epoch.
    :param max_restarts: Restarts without progress between them, after which the task fails; by
        default 5, and none with ``availableNow``, where Airflow's retries are enough.
    :param restart_delay: The wait before the first restart; it doubles, with jitter.
    :param max_restart_delay: The longest such wait.
    :param healthy_after: A driver that lived this long counts as progress.
    :raises SpecError: a duration or a number has the wrong form or is out of range.
    """

    poll_interval: float = 5.0
    start_timeout: timedelta = timedelta(minutes=5)
    heartbeat_timeout: timedelta = timedelta(minutes=2)
    stall_timeout: timedelta = timedelta(minutes=10)
    stop_grace: timedelta = timedelta(minutes=1)
    max_restarts: int | None = None
    restart_delay: timedelta = timedelta(seconds=10)
    max_restart_delay: timedelta = timedelta(minutes=5)
    healthy_after: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        check_poll_interval(self.poll_interval)
        restarts = self.max_restarts
        if restarts is not None and (type(restarts) is not int or restarts < 0):
            raise SpecError(f"max_restarts must be a whole number or None, got {shown(restarts)}")
        seconds(self.stop_grace, "stop_grace")
        self.limits()
        self.policy(bounded=False)

    def limits(self) -> Limits:
        """Return how long something may last before it counts as a problem."""
        return Limits(
            start=seconds(self.start_timeout, "start_timeout"),
            silence=seconds(self.heartbeat_timeout, "heartbeat_timeout"),
            stall=seconds(self.stall_timeout, "stall_timeout"),
        )

    def policy(self, *, bounded: bool) -> RestartPolicy:
        """Return when a lost driver is replaced.

        :param bounded: the stream reads all available data and ends.
        """
        most = 0 if bounded else _MAX_RESTARTS
        return RestartPolicy(
            most=most if self.max_restarts is None else self.max_restarts,
            first=seconds(self.restart_delay, "restart_delay"),
            longest=seconds(self.max_restart_delay, "max_restart_delay"),
            healthy=seconds(self.healthy_after, "healthy_after"),
        )


def check_poll_interval(value: object) -> None:
    """Refuse an interval that is not a number of seconds above 0.

    :raises SpecError: it is not.
    """
    if type(value) not in (int, float) or not 0 < value <= MOST_SECONDS:  # type: ignore[operator]
        raise SpecError(f"poll_interval must be a number of seconds above 0, got {shown(value)}")
