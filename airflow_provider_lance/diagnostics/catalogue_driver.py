"""The texts of findings about a stream's drivers."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code, Severity

__all__ = ["DriverCase"]

_OWNER = "The driver that owns query {query}, {driver}, "
_GONE = _OWNER + "{how}; the watermark is {watermark} and no driver is running."
_KILLED = (
    "It was killed, its host went down, or it gave up on an epoch that hung. No row is lost."
    "{unsure} To continue, {again}. Release the query only if the stream is not to run again."
)
_SILENT = "The driver of query {query}, {driver}, does not respond: {reason}."
_FAILED = "Query {query} failed with {error}: {message}"


class DriverCase(Case):
    """What ``rules_driver`` may find."""

    DRIVER_GONE = Code.DRIVER_GONE, _GONE, _KILLED
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
        "Only the owner commits, so no row is duplicated. Keep {keep}. The other ({others}) ends "
        "as fenced at its next epoch, or at once by the command, typed on its own host.",
    )
    FAILED_FOR_GOOD = (
        Code.QUERY_FAILED,
        _FAILED,
        "Terminal: it fails again until you do what the message says; then {again}.{trace}",
    )
    FAILED = (
        Code.QUERY_FAILED,
        _FAILED,
        "Transient: a new start may succeed; {again}, or wait for the next retry.",
    )
    SUSPENDED = (
        Code.NOT_RESPONDING,
        _SILENT,
        "Somebody, a debugger or a job control has stopped the process with a signal. The command, "
        "typed on {host}, lets it continue; nothing is lost. A supervised stream gets a new driver "
        "after two minutes of silence, and the old one is then fenced.",
    )
    NOT_RESPONDING = (
        Code.NOT_RESPONDING,
        _SILENT,
        "The host is overloaded, the store does not answer, or the process hangs. If it stays "
        "silent, end it with the command, typed on {host}, and {again}. Nothing is lost: its epoch "
        "is written again, once.",
    )
    STOP_PENDING = (
        Code.STOP_PENDING,
        "Query {query} was asked to stop{by}{since} and has not stopped yet.",
        "A busy driver reads the request at its next commit, an idle one within seconds. A driver "
        "that hangs never reads it: end its process on {where}; nothing is lost.",
    )
    DRIVER_UNSEEN = (
        Code.DRIVER_UNSEEN,
        _OWNER + "cannot be seen from here; {last}.",
        "Its process is on another host, and it writes no heartbeats or they cannot be read here. "
        "Run the same command on {host}.",
    )
