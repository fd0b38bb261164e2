"""What a query must be before it is started, and who the driver is that starts it."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.model import Driver
from airflow_provider_lance.spec.job import SinkOptions
from airflow_provider_lance.supervision.process import ProcessIdentity

__all__ = ["classic_session", "driver_of", "refuse_trigger"]


def classic_session(df: DataFrame) -> SparkSession:
    """Return the session of a DataFrame, or refuse one of Spark Connect.

    :raises SpecError: the DataFrame is of Spark Connect.
    """
    session = df.sparkSession
    if getattr(session, "_jvm", None) is None:
        raise SpecError(
            "this DataFrame is of Spark Connect; the sink runs inside the driver: submit the "
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


def driver_of(
    session: SparkSession, options: SinkOptions, launch_id: str, launched_by: str
) -> Driver:
    """Return who this process is, for the owner record; call it in the query's own thread."""
    context = session.sparkContext
    process = ProcessIdentity.of(os.getpid())
    # Spark sets both for the thread that runs a query, and for no other: its id is the
    # checkpoint's id, and the job group is the run's id.
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
