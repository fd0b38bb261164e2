"""A link to the Spark UI of the driver that a task started."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import BaseOperator, BaseOperatorLink

__all__ = ["SparkUILink", "spark_ui_url"]


class SparkUILink(BaseOperatorLink):
    """Open the driver's Spark UI; it answers while the driver runs."""

    name = "Spark UI"
    xcom_key = "lance_spark_ui"

    # Called again when the task ends, by the process that ran it: the operator still knows.
    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return str(getattr(operator, "spark_ui_url", None) or "")


def spark_ui_url(address: object) -> str:
    """Return a driver's UI address as a link, empty unless it is plain http or https."""
    try:
        parts = urlsplit(address if isinstance(address, str) else "")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, f"{host}{port}", parts.path, "", ""))
