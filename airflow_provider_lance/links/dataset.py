"""A link to the dataset that a task writes, if a browser can show it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperator, BaseOperatorLink

__all__ = ["LanceDatasetLink", "dataset_url"]


class LanceDatasetLink(BaseOperatorLink):
    """Open the dataset's folder in its store's web console."""

    name = "Lance dataset"
    xcom_key = "lance_dataset"

    # Called again when the task ends, by the process that ran it: the operator still knows.
    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return str(getattr(operator, "dataset_url", None) or "")


def dataset_url(uri: str, endpoint: str | None = None) -> str:
    """Return where a browser shows a dataset, empty if no console is known.

    A browser refuses to follow a link from a web page to a ``file:`` address.

    :param uri: the dataset's absolute URI or path.
    :param endpoint: the endpoint of a store that is not the vendor's own, which has no console.
    """
    parts = urlsplit(uri)
    bucket, path = parts.netloc, quote(parts.path.strip("/"))
    match parts.scheme:
        case _ if endpoint:
            return ""
        case "s3" | "s3a" | "s3n":
            return f"https://console.aws.amazon.com/s3/buckets/{quote(bucket)}?prefix={path}/"
        case "gs":
            return f"https://console.cloud.google.com/storage/browser/{quote(bucket)}/{path}"
        case "abfs" | "abfss":
            # abfs://container@account.dfs.core.windows.net/path: a name, not a credential.
            container, _, account = bucket.rpartition("@")
            return f"https://{account}/{container}/{path}" if container else ""
    return ""
