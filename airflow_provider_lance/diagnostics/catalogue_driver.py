"""The texts of findings about a stream's drivers."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = [
    "CORRECT",
    "END_FIRST",
    "END_IT",
    "END_THE_OTHER",
    "LET_IT_CONTINUE",
    "STOP_FOR_GOOD",
    "THE_SAME_TOPIC",
    "THE_TOPIC_ANEW",
    "DriverCase",
]

END_FIRST = "End the driver that runs: a repair is refused beside it."
END_IT = (
    "End the driver's process. Its epoch is planned again, with the same rows, and committed once."
)
END_THE_OTHER = (
    "End the other driver's process. Only the owner's rows are committed, so no row is missing."
)
LET_IT_CONTINUE = "Let the process continue."
CORRECT = "Correct {what}."
STOP_FOR_GOOD = "Release the query, so that the stream counts as stopped."
THE_TOPIC_ANEW = (
    "Either give the stream a new query_id and checkpoint_location, and start it: it reads the "
    "topic from its startingOffsets into the same dataset. Records that the old topic had too "
    "come twice."
)
THE_SAME_TOPIC = (
    "Or, only if the topic has the same records at the same offsets, type {typed} and start the "
    "stream again: it goes on at its offsets."
)

_OWNER = "The driver that owns query {query}, {driver}, "
_GONE = _OWNER + "{how}; {watermark} and no driver is running."
_SILENT = "The driver of query {query}, {driver}, does not respond: {reason}."
_FAILED = "Query {query} failed with {error}: {message}{where}"


class DriverCase(Case):
    """What ``rules_driver`` may find."""

    DRIVER_GONE = (
        Code.DRIVER_GONE,
        _GONE,
        "It was killed, its host went down, or it gave up on an epoch that hung. No row is lost: "
        "a new driver continues after the watermark.{unsure}",
    )
    DRIVER_ENDED = (
        Code.DRIVER_GONE,
        _GONE,
        "It was asked to stop or had read everything, and was ended before it released the query. "
        "No row is lost.",
        Severity.WARNING,
    )
    NOBODY_RUNS = (
        Code.DRIVER_GONE,
        "Nobody runs query {query}: {what} by {who}{since}, and no driver has claimed it since; "
        "{watermark}.",
        "The driver was gone before that, and a repair starts none. No row is lost: a new driver "
        "continues after the watermark. The source is not read until then.",
    )
    DRIVER_REPLACED = (
        Code.DRIVER_GONE,
        _OWNER + "{how}; {successor} is running and takes the query over.",
        "A new driver claims the query when it starts or with its first rows; it has not yet.",
        Severity.INFO,
    )
    TWO_DRIVERS = (
        Code.TWO_DRIVERS,
        "{count} drivers of query {query} are running: {drivers}.",
        "A task was started again before its driver ended, or two deployments use one query id. "
        "Only the owner commits, so no row is duplicated. {keep} continues; the other ({others}) "
        "would end as fenced at its next epoch.",
    )
    FAILED_FOR_GOOD = (
        Code.QUERY_FAILED,
        _FAILED,
        "Terminal, by the kind of the error: each start fails in the same way until its reason is "
        "gone. No row of the epoch has landed.{trace}",
    )
    FAILED = (
        Code.QUERY_FAILED,
        _FAILED,
        "Transient, by the kind of the error: the same call may succeed later. No row of the epoch "
        "has landed.",
    )
    FAILED_UNKNOWN = (
        Code.QUERY_FAILED,
        _FAILED,
        "The kind of the error does not say whether it comes again. No row of the epoch has "
        "landed.{trace}",
    )
    TOPIC_REPLACED = (
        Code.TOPIC_REPLACED,
        "Query {query} refused its source: {message}",
        "A topic that was deleted and created again has the same name and another id. The stream's "
        "offsets would name other records, and those before them would be missing. No row of the "
        "new topic has landed.",
    )
    SUSPENDED = (
        Code.NOT_RESPONDING,
        _SILENT,
        "Somebody, a debugger or a job control has stopped the process with a signal. No row is "
        "lost. A supervised stream gets a new driver after two minutes of silence, and the old one "
        "is then fenced.",
    )
    NOT_RESPONDING = (
        Code.NOT_RESPONDING,
        _SILENT,
        "The host is overloaded, the store does not answer, or the process hangs. No row is lost: "
        "its epoch is written again, once.",
    )
    STOP_PENDING = (
        Code.STOP_PENDING,
        "Query {query} was asked to stop{by}{since} and has not stopped yet.",
        "A busy driver reads the request at its next commit, an idle one within seconds. An epoch "
        "takes long, or the driver hangs and never reads the request. No row is lost if its "
        "process is ended.",
    )
    DRIVER_UNSEEN = (
        Code.DRIVER_UNSEEN,
        _OWNER + "cannot be seen from here; {last}.",
        "Its process is on {host}, and it writes no heartbeats or they cannot be read here. It may "
        "wait for rows, or be gone. A new driver takes the query over, and fences one that still "
        "runs: no row is lost or duplicated.",
    )
