"""Preconditions of a query's start, and the wait for the driver that it fences."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.files import Files
from airflow_provider_lance.protocol.model import Driver, Owner
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.supervision.driver_reports import read_heartbeat, read_summary
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = [
    "classic_session",
    "driver_of",
    "refuse_trigger",
    "remove_half_written",
    "trigger_seconds",
    "wait_for_end",
]

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
"""An idle driver notices within 10 s that it is fenced, a busy one at its next commit."""

_SILENCE_SECONDS = 12.0
"""A driver writes a heartbeat at least every 10 s; a silent one does not write Spark's log."""

_LOOK_SECONDS = 0.2

_HALF_WRITTEN = re.compile(r"\.{1,2}\d+\.[0-9a-f-]{36}\.tmp(\.crc)?")


def classic_session(df: DataFrame) -> SparkSession:
    """Return the session of a DataFrame; refuse Spark Connect.

    :raises SpecError: the DataFrame belongs to Spark Connect.
    """
    session = df.sparkSession
    if getattr(session, "_jvm", None) is None:
        raise SpecError(
            "this DataFrame belongs to Spark Connect; the sink runs inside the driver: submit the "
            "application with spark-submit and a classic SparkSession"
        )
    return session


def refuse_trigger(trigger: dict[str, Any]) -> None:
    """Refuse a trigger under which a sink has no epochs to commit.

    :raises SpecError: it is neither ``availableNow`` nor a ``processingTime`` interval.
    """
    if set(trigger) == {"availableNow"} and trigger["availableNow"] is True:
        return
    if set(trigger) == {"processingTime"} and isinstance(trigger["processingTime"], str):
        return
    why = "continuous processing has no epochs to commit; " if "continuous" in trigger else ""
    raise SpecError(f"trigger {trigger}: {why}use availableNow=True or processingTime='10 seconds'")


def trigger_seconds(session: SparkSession, trigger: dict[str, Any]) -> float:
    """Return the interval of a trigger, as Spark reads its text; 0 for ``availableNow``."""
    if "processingTime" not in trigger:
        return 0.0
    jvm: Any = session._jvm
    java = jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(trigger["processingTime"])
    return float(java.intervalMs()) / 1000


def driver_of(
    session: SparkSession, options: SinkOptions, launch_id: str, launched_by: str
) -> Driver:
    """Return this process's identity for the owner record; call it in the query's own thread."""
    context = session.sparkContext
    process = ProcessIdentity.of(os.getpid())
    # Spark sets both for the thread that runs a query only: the query's id is the checkpoint's id,
    # the job group is the run's id.
    return Driver(
        run_id=context.getLocalProperty("spark.jobGroup.id") or "",
        checkpoint_id=context.getLocalProperty("sql.streaming.queryId") or "",
        checkpoint_location=options.checkpoint_location,
        application_id=context.applicationId,
        ui_address=context.uiWebUrl or "",
        host=process.host,
        pid=process.pid,
        start=process.start,
        launch_id=launch_id,
        launched_by=launched_by,
    )


def wait_for_end(owner: Owner, reports: Files) -> None:
    """Return once a fenced driver has ended or is silent, or the time is up.

    Best effort; correctness does not depend on it. The fenced driver can no longer commit. If both
    meet at Spark's log, one ends with an error, and the other then continues.

    :param reports: where the query's drivers write heartbeats and summaries.
    """
    process = ProcessIdentity.recorded(owner.driver)
    if process == ProcessIdentity.of(os.getpid()):
        return  # an earlier query of this very process; Spark itself ends it
    launch_id = owner.driver.launch_id
    began = heard = time.monotonic()
    last = None
    while time.monotonic() - began < _PATIENCE_SECONDS:
        seen = DriverObservation(
            launch_id,
            alive=process.alive(),
            summary=read_summary(reports, launch_id) if launch_id else None,
        )
        if seen.alive is None and launch_id and (beat := read_heartbeat(reports, launch_id)):
            if beat != last:
                last, heard = beat, time.monotonic()
            silent = time.monotonic() - heard
            seen = replace(seen, heartbeat=Heartbeat.parse(beat), silent=silent)
        if not seen.liveness(_SILENCE_SECONDS).alive:
            return
        time.sleep(_LOOK_SECONDS)
    log.warning(
        "The driver that the query was taken from has not ended. pid=%d host=%s launch=%s",
        process.pid,
        process.host,
        launch_id or "unknown",
    )


def remove_half_written(checkpoint: HadoopFiles) -> None:
    """Remove what a driver left that was killed while Spark wrote its first entry.

    Spark renames an entry once it is whole, and later ignores what it did not rename. Only before
    the first epoch, it refuses to start unless `offsets` and `commits` are empty (seen on Spark
    4.2). Call this when no other driver writes there.

    :raises StorageUnavailableError: the store did not answer or refused.
    """
    planned = checkpoint.names("offsets")
    if any(name.isdigit() for name in planned):
        return
    for log, names in (("offsets", planned), ("commits", checkpoint.names("commits"))):
        for name in filter(_HALF_WRITTEN.fullmatch, names):
            checkpoint.remove(f"{log}/{name}")
