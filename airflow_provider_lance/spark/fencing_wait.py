"""Wait for the driver that a query was taken from: two at Spark's log get in each other's way."""

from __future__ import annotations

import logging
import os
import time

from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import Owner
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, read_summary
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["wait_for_end"]

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
"""An idle driver notices within 10 s that it was overtaken, a busy one at its next commit."""

_SILENCE_SECONDS = 12.0
"""A driver writes a heartbeat every 10 s at least; a silent one does not write Spark's log."""

_LOOK_SECONDS = 0.2


def wait_for_end(owner: Owner, reports: Files) -> None:
    """Return once a fenced driver has ended, or is silent, or the patience is over.

    Nothing hangs on it but comfort: it can commit no more, and should the two still meet at Spark's
    log, one of them ends with an error after which the other goes on.

    :param reports: where the query's drivers leave heartbeats and summaries.
    """
    process = ProcessIdentity(owner.driver.host, owner.driver.pid, owner.driver.start)
    if process == ProcessIdentity.of(os.getpid()):
        return  # an earlier query of this very process; Spark itself sees to it
    launch_id = owner.driver.launch_id
    began = heard = time.monotonic()
    last = None
    while time.monotonic() - began < _PATIENCE_SECONDS:
        alive = process.alive()
        if alive is False or (launch_id and read_summary(reports, launch_id)):
            return
        if alive is None:
            beat = read_heartbeat(reports, launch_id) if launch_id else None
            if beat != last:
                last, heard = beat, time.monotonic()
            if beat is None or time.monotonic() - heard > _SILENCE_SECONDS:
                return
        time.sleep(_LOOK_SECONDS)
    log.warning(
        "The driver that the query was taken from has not ended. pid=%d host=%s launch=%s",
        process.pid,
        process.host,
        launch_id or "unknown",
    )
