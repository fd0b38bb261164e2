"""What a case is, and the texts of findings about a stream as a whole.

Each module of rules has a catalogue beside it: the texts say what was seen and how it came about.
The runbook's page of a code says more: what is lost, and what to type.
"""

from __future__ import annotations

from enum import Enum

from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["Case", "StreamCase"]


class Case(Enum):
    """What a rule may find. The rule fills in the values that are named in braces.

    ``severity`` is given if the case is better or worse than its code.
    """

    def __init__(
        self, code: Code, summary: str, cause: str = "", severity: Severity | None = None
    ) -> None:
        self.code, self.summary, self.cause, self.severity = code, summary, cause, severity


UPGRADE = "Upgrade the package on this host, and where the older driver is started:"
VALUES_BACK = "Put the values back that the query's own drivers wrote:"
NEW_TABLE = (
    "No version shows the right value any more: give the stream another query_id and "
    "checkpoint_location in its DAG, and a new table."
)
OWN_QUERY_ID = "Give the stream a query_id of its own in its DAG; the other tool keeps this one."


class StreamCase(Case):
    """What ``rules`` may find."""

    HEALTHY = Code.HEALTHY, "Query {query} is healthy: {state}."
    NEWEST_DRIVER_LOST = (
        Code.DRIVER_GONE,
        "The newest driver of query {query}, {driver}, is {state}: {reason}.",
        "It does not own the query. No row is lost: a new driver continues after the watermark.",
    )
    PROTOCOL_NEWER = (
        Code.PROTOCOL_NEWER,
        "Query {query} cannot be read: {error}",
        "A newer airflow-provider-lance writes this query. This version cannot check it, and its "
        "driver refuses to start.",
    )
    CONFIG_REMOVED = (
        Code.WATERMARK_BEHIND,
        "Version {removed} of {uri} removed the config keys of query {query}; version {kept} still "
        "has them, and epoch {epoch} is committed.",
        "Another tool or a person removed them. All rows are here, but without the keys no driver "
        "knows which epochs these are, and the next one refuses to start.",
        Severity.ERROR,
    )
    VALUE_WRONG = (
        Code.PROTOCOL_NEWER,
        "Query {query} cannot be read: {error}",
        "Another tool or a person wrote it. This version cannot check the query, and its driver "
        "refuses to start.",
    )
    OTHER_TOOL = (
        Code.PROTOCOL_NEWER,
        "Query {query} has watermark {watermark} and no owner record in {uri}: another tool wrote "
        "it.",
        "Another Lance sink uses the same keys. Its watermark proves nothing here, and a driver "
        "refuses to start.",
    )
