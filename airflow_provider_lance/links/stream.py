"""A link to the stream's page in Airflow's own web app."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink

__all__ = ["LanceStreamLink", "stream_address", "stream_url"]


class LanceStreamLink(BaseOperatorLink):
    """Open the stream's page: status, findings, epochs; from the task's first second on."""

    name = "Lance stream"
    xcom_key = "lance_stream_page"

    # Called again when the task ends, by the process that ran it: the operator still knows.
    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return str(getattr(operator, "stream_url", None) or "")


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
