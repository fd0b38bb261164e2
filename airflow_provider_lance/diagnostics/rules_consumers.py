"""Rules about consumers: who lags, and whose versions cleanup takes, or has taken.

Each consumer has one finding at most, the worst.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_lance.diagnostics.catalogue_consumers import (
    FORGET,
    FORGET_FIRST,
    LARGER,
    NEW_QUERY,
    START,
    UPGRADE,
    ConsumerCase,
)
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus
from airflow_provider_lance.diagnostics.evidence import USUAL, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import finding, start_again
from airflow_provider_lance.diagnostics.findings import Finding, Step
from airflow_provider_lance.diagnostics.formatting import lasted
from airflow_provider_lance.protocol.commands import command_line
from airflow_provider_lance.protocol.consumers import REFRESH_SECONDS

__all__ = ["consumer_rules"]

_SOON = 24 * 3600
"""Seconds before versions are no longer kept from which that is a finding; of a short retention,
its second half."""


def consumer_rules(
    uri: str,
    consumers: Iterable[ConsumerStatus],
    tolerance: Tolerance = USUAL,
    connection_arguments: str = "",
) -> list[Finding]:
    """Return the findings about the consumers of a dataset; pure."""
    found = []
    for consumer in consumers:
        case = _case(consumer, tolerance)
        if case is None:
            continue
        age, kept = consumer.age_seconds or 0.0, tolerance.consumer_retention
        found.append(
            finding(
                case,
                consumer.to_json(),
                _steps(uri, consumer, case, connection_arguments),
                consumer=consumer.consumer_id,
                position=consumer.position,
                behind=consumer.versions_behind,
                waited=lasted(consumer.seconds_behind or 0.0),
                age=lasted(age),
                retention=lasted(kept),
                refresh=lasted(REFRESH_SECONDS),
                needs=consumer.needs,
                missing=consumer.missing_versions,
                until=_until(consumer, kept),
                error=consumer.error,
            )
        )
    return found


def _steps(
    uri: str, consumer: ConsumerStatus, case: ConsumerCase, connection_arguments: str
) -> list[Step]:
    """Return one answer for each thing that the consumer's owner may want."""
    words = ["forget-consumer", uri, "--consumer", consumer.consumer_id]
    if (consumer.age_seconds or 0.0) < REFRESH_SECONDS:  # it may run
        words.append("--proven-dead")
    forget = command_line(*words, "--yes", connection_arguments=connection_arguments)
    if case is ConsumerCase.VERSIONS_GONE:
        oldest = {"oldest": consumer.oldest_version, "missing": consumer.missing_versions}
        return [Step(FORGET_FIRST, forget), Step(NEW_QUERY.format_map(oldest))]
    again = start_again(consumer.launched_by)
    start = replace(again, text=START.format(again=f"{again.text[0].lower()}{again.text[1:]}"))
    more = {ConsumerCase.LAGS: [Step(LARGER)], ConsumerCase.UNREADABLE: [Step(UPGRADE)]}
    return [start, *more.get(case, []), Step(FORGET, forget)]


def _case(consumer: ConsumerStatus, tolerance: Tolerance) -> ConsumerCase | None:
    if consumer.error:
        return ConsumerCase.UNREADABLE
    if consumer.missing_versions:
        return ConsumerCase.VERSIONS_GONE
    kept = tolerance.consumer_retention
    left = kept - (consumer.age_seconds or 0.0)
    if left < 0:
        return ConsumerCase.GONE
    if left < min(_SOON, kept / 2):
        return ConsumerCase.ENDS_SOON
    behind = (consumer.seconds_behind or 0.0) > tolerance.consumer_lag
    return ConsumerCase.LAGS if behind and consumer.versions_behind else None


def _until(consumer: ConsumerStatus, retention: float) -> str:
    if consumer.at is None:
        return ""
    ends = datetime.fromisoformat(consumer.at) + timedelta(seconds=retention)
    return ends.astimezone(UTC).isoformat(timespec="minutes")
