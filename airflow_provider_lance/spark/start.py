"""What a query must be before it is started: a classic session, and a trigger that has epochs."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.exceptions import SpecError

__all__ = ["classic_session", "refuse_trigger"]


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
