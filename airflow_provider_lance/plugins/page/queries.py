"""The page's data about a known dataset or stream, from the CLI's functions."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.consumers import collect_consumers
from airflow_provider_lance.diagnostics.epochs import EpochTable, read_epochs
from airflow_provider_lance.diagnostics.findings import Finding
from airflow_provider_lance.diagnostics.quarantine import (
    ReasonCount,
    open_quarantine,
    read_quarantine,
)
from airflow_provider_lance.diagnostics.rules import unreadable_finding
from airflow_provider_lance.diagnostics.rules_consumers import consumer_rules
from airflow_provider_lance.diagnostics.status import Status, count, take_status
from airflow_provider_lance.diagnostics.traces import find_traces
from airflow_provider_lance.diagnostics.trend import TrendPoint, query_trend
from airflow_provider_lance.exceptions import LanceStreamError, ProtocolVersionError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.plugins.page.registry import RegisteredDataset, hook_of
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.quarantine import NAME
from airflow_provider_lance.protocol.sides import decode_sides

__all__ = ["SHOWN", "Row", "Stream", "fragment_totals", "see_dataset", "see_stream"]

_NAMED = 3
_QUARANTINED = 1_000_000
"""Rows up to which a quarantine is counted by reason: three columns of it are read."""
SHOWN = 60
"""The number of epochs in the charts; the heartbeat carries the durations of as many."""


@dataclass(frozen=True, slots=True)
class Row:
    """One query of a dataset: its status, or why there is none.

    Without a ``query_id`` it is the dataset itself, which others read and no query writes: with a
    sentence, and what was found.
    """

    query_id: str
    status: Status | None = None
    error: str = ""
    code: str = ""
    sentence: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream in detail. ``totals`` are the dataset's fragments by version.

    ``status`` and ``table`` are missing if another tool wrote the query, which a finding says, and
    if it is a dataset without queries. ``quarantined`` counts its rows by reason.
    """

    report: CheckReport
    status: Status | None = None
    table: EpochTable | None = None
    totals: Mapping[int, int] = field(default_factory=dict)
    quarantined: tuple[ReasonCount, ...] = ()
    trend: tuple[TrendPoint, ...] = ()


def see_dataset(known: RegisteredDataset) -> tuple[Row, ...]:
    """Observe every stream of a dataset, or the dataset itself if it is only read.

    :raises LanceStreamError: the dataset is unreadable; an unreadable stream gets a row that says
        so.
    """
    hook = hook_of(known)
    port = hook.open(known.uri)
    rows = tuple(_row(hook, port, query_id) for query_id in find_traces(port))
    return rows or _only_read(hook, port)


def _only_read(hook: LanceHook, port: LanceDatasetPort) -> tuple[Row, ...]:
    """Return the row of a dataset that no query writes; none if nobody reads it either."""
    consumers = collect_consumers(port, hook.storage_options)
    if not consumers:
        return ()
    findings = consumer_rules(port.uri, consumers, connection_arguments=hook.connection_arguments)
    worst = max(findings, key=lambda each: each.severity, default=None)
    names = ", ".join(each.consumer_id for each in consumers[:_NAMED])
    more = f" and {len(consumers) - _NAMED} more" if len(consumers) > _NAMED else ""
    sentence = worst.summary if worst else f"no stream writes it; read by {names}{more}"
    return (Row("", sentence=sentence, findings=tuple(findings)),)


def _row(hook: LanceHook, port: LanceDatasetPort, query_id: str) -> Row:
    try:
        status = take_status(
            port,
            query_id,
            storage_options=hook.storage_options,
            connection_arguments=hook.connection_arguments,
        )
    except ProtocolVersionError as error:
        finding = unreadable_finding(port, query_id, error)
        return Row(query_id, error=finding.summary, code=finding.code.value)
    except LanceStreamError as error:
        return Row(query_id, error=f"cannot be read: {type(error).__name__}: {error}")
    return Row(query_id, status)


def see_stream(known: RegisteredDataset, query_id: str) -> Stream:
    """Check one stream as ``lance-stream check`` does, and read its newest epochs.

    :param query_id: empty for a dataset without queries.
    :raises LanceStreamError: it is unreadable.
    """
    hook = hook_of(known)
    port, options = hook.open(known.uri), hook.storage_options
    report = check(
        port,
        (query_id,) if query_id else (),
        storage_options=options,
        connection_arguments=hook.connection_arguments,
        airflow_url=hook.airflow_url,
        orphans=False,
        detail=True,
    )
    status = next(iter(report.statuses), None)
    if status is None:
        return Stream(report)
    table = read_epochs(port, query_id, last=SHOWN, storage_options=options)
    moments = {each.version: each.committed_at for each in table.rows}
    moments |= {each.version: each.at or "" for each in table.marks if each.kind == "compaction"}
    return Stream(
        report,
        status,
        table,
        fragment_totals(port, moments),
        _quarantined(port, query_id, options),
        _trend(port, query_id, options),
    )


def _trend(
    port: LanceDatasetPort, query_id: str, storage_options: Mapping[str, str]
) -> tuple[TrendPoint, ...]:
    """Return a stream's last day, none if its reports cannot be read: a finding says so."""
    owner = decode_query(port.config, query_id, port.version).owner
    location = owner.driver.checkpoint_location if owner else ""
    try:
        return query_trend(location, query_id, storage_options) if location else ()
    except LanceStreamError:
        return ()


def _quarantined(
    port: LanceDatasetPort, query_id: str, storage_options: Mapping[str, str]
) -> tuple[ReasonCount, ...]:
    """Count the rows of a stream's quarantine; none if it has none, or too many to read here."""
    try:
        if NAME not in decode_sides(port.config, query_id):
            return ()
        quarantine = open_quarantine(port, query_id, storage_options)
        rows, _ = count(quarantine)
        if rows is None or rows > _QUARANTINED:
            return ()
        return read_quarantine(quarantine, query_id, last=0).reasons
    except LanceStreamError:  # the side table's own row and finding say what is wrong
        return ()


_SECONDS = 2.0
"""The time limit for new versions; the next call continues where this one ended."""
_MOST = 20_000

_Key = tuple[str, int, str]
"""URI, version, and its time: a recreated dataset counts its versions from 1 again."""

_known: OrderedDict[_Key, int] = OrderedDict()
_lock = threading.Lock()


def fragment_totals(port: LanceDatasetPort, moments: Mapping[int, str]) -> dict[int, int]:
    """Return the number of fragments at each version, newest first, as far as time allows.

    Reading one loads that version's manifest, once per process.

    :param moments: when each version was committed.
    """
    deadline = time.monotonic() + _SECONDS
    found = {}
    for version in sorted(moments, reverse=True):
        key = (port.uri, version, moments[version])
        with _lock:
            total = _known.get(key)
        if total is None:
            if time.monotonic() > deadline:
                break
            total = _count(port, version)
            if total is None:
                continue
            with _lock:
                _known[key] = total
                while len(_known) > _MOST:
                    _known.popitem(last=False)
        found[version] = total
    return found


def _count(port: LanceDatasetPort, version: int) -> int | None:
    """Return the fragments of a version, ``None`` if it was cleaned up meanwhile."""
    try:
        then = port.dataset.checkout_version(version)
    except (ValueError, OSError):
        return None
    return int(then.stats.dataset_stats()["num_fragments"])
