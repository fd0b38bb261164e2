"""The links of a task: the stream's page, the driver's Spark UI, the dataset in its store."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from airflow.sdk import BaseOperator, BaseOperatorLink

__all__ = [
    "LanceDatasetLink",
    "LanceStreamLink",
    "SparkUILink",
    "dataset_url",
    "spark_ui_url",
    "stream_address",
    "stream_url",
]


class _StoredLink(BaseOperatorLink):
    """A link whose address its operator holds as soon as it is known."""

    xcom_key: ClassVar[str]
    attribute: ClassVar[str]

    # Called again when the task ends, by the process that ran it: the operator still knows.
    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return str(getattr(operator, self.attribute, None) or "")

    @classmethod
    def show(cls, operator: BaseOperator, ti: Any, url: str) -> None:
        """Show the link now, while the task runs: Airflow stores it only when the task ends."""
        setattr(operator, cls.attribute, url)
        ti.xcom_push(cls.xcom_key, url)


class LanceStreamLink(_StoredLink):
    """Open the stream's page: status, findings, epochs; from the task's first second on."""

    name = "Lance stream"
    xcom_key = "lance_stream_page"
    attribute = "stream_url"


class SparkUILink(_StoredLink):
    """Open the driver's Spark UI; it answers while the driver runs."""

    name = "Spark UI"
    xcom_key = "lance_spark_ui"
    attribute = "spark_ui_url"


class LanceDatasetLink(_StoredLink):
    """Open the dataset's folder in its store's web console."""

    name = "Lance dataset"
    xcom_key = "lance_dataset"
    attribute = "dataset_url"


def stream_url(uri: str, query_id: str, conn_id: str | None) -> str:
    """Return the address of a stream's page, relative to Airflow's address.

    Airflow's web app takes links relative to its base URL, which a worker may not know.

    :param conn_id: the Lance connection that opens the dataset, ``None`` for none.
    """
    return f"lance/{stream_address(uri, query_id, conn_id or '')}"


def stream_address(uri: str, query_id: str, conn_id: str | None) -> str:
    """Return the address of a stream's page, relative to the page that lists all streams.

    :param conn_id: ``None`` if no connection is given, empty if none is to be used.
    """
    named = {} if conn_id is None else {"conn_id": conn_id}
    return f"stream?{urlencode({'uri': uri, 'query': query_id, **named})}"


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


def dataset_url(uri: str, endpoint: str | None = None) -> str:
    """Return where a browser shows a dataset, empty if no console is known.

    A browser refuses to follow a link from a web page to a ``file:`` address.

    :param uri: the dataset's absolute URI or path.
    :param endpoint: the endpoint of a store that is not the vendor's own, which has no console.
    """
    if endpoint:
        return ""
    parts = urlsplit(uri)
    bucket, path = parts.netloc, quote(parts.path.strip("/"))
    match parts.scheme:
        case "s3" | "s3a" | "s3n":
            return f"https://console.aws.amazon.com/s3/buckets/{quote(bucket)}?prefix={path}/"
        case "gs":
            return f"https://console.cloud.google.com/storage/browser/{quote(bucket)}/{path}"
        case "abfs" | "abfss":
            # abfs://container@account.dfs.core.windows.net/path: a name, not a credential.
            container, _, account = bucket.rpartition("@")
            return f"https://{account}/{container}/{path}" if container else ""
    return ""
