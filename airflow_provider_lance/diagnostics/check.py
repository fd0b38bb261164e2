"""Check a dataset and its streams: what is wrong, how severe it is, and what to type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Unpack

from airflow_provider_lance.diagnostics.around import dataset_findings
from airflow_provider_lance.diagnostics.changes import collect_changes
from airflow_provider_lance.diagnostics.collect import CollectOptions, collect
from airflow_provider_lance.diagnostics.collect_dataset import collect_dataset
from airflow_provider_lance.diagnostics.consumers import ConsumerStatus
from airflow_provider_lance.diagnostics.evidence import USUAL
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules, unreadable_finding
from airflow_provider_lance.diagnostics.rules_consumers import consumer_rules
from airflow_provider_lance.diagnostics.rules_dataset import dataset_rules
from airflow_provider_lance.diagnostics.status import Status, count, status
from airflow_provider_lance.diagnostics.traces import find_traces
from airflow_provider_lance.exceptions import ProtocolVersionError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort
from airflow_provider_lance.protocol.port import DatasetPort

__all__ = ["CheckReport", "check"]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check: findings, worst first; the status of each stream and consumer."""

    uri: str
    version: int
    seen_at: str
    findings: tuple[Finding, ...]
    statuses: tuple[Status, ...]
    consumers: tuple[ConsumerStatus, ...] = ()

    @property
    def worst(self) -> Severity:
        """Return the severity of the worst finding."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    def at_or_above(self, severity: Severity) -> list[Finding]:
        """Return the findings of this severity or worse; "healthy" is not included."""
        return [
            finding
            for finding in self.findings
            if finding.severity >= severity and finding.code is not Code.HEALTHY
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values under camelCase names."""
        return {
            "uri": self.uri,
            "version": self.version,
            "seenAt": self.seen_at,
            "worst": self.worst.label,
            "findings": [finding.to_json() for finding in self.findings],
            "statuses": [each.to_json() for each in self.statuses],
            "consumers": [each.to_json() for each in self.consumers],
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as a plain table for a log, each finding with its command."""
        yield f"{self.uri} at version {self.version}, {self.seen_at}"
        for each in self.statuses:
            yield f"{each.query_id}: {each.sentence}"
        width = max((len(finding.query_id) for finding in self.findings), default=0)
        for finding in self.findings:
            head = f"{finding.severity.label:<8} {finding.code.value} {finding.query_id:<{width}} "
            yield f"{head} {finding.summary}"
            indent = " " * len(head)
            if finding.cause:
                yield f"{indent} why: {finding.cause}"
            for line in finding.step_lines():
                yield f"{indent} {line}"

    def message(self, least: Severity = Severity.WARNING) -> str:
        """Return a text for a notifier: a headline, then each finding of this severity or worse."""
        bad = self.at_or_above(least)
        if not bad:
            statuses = "; ".join(f"{each.query_id} {each.sentence}" for each in self.statuses)
            return f"Lance {self.uri}: healthy. {statuses}".rstrip()
        counted = ", ".join(
            f"{number} {severity.label}"
            for severity in sorted(Severity, reverse=True)
            if (number := sum(finding.severity is severity for finding in bad))
        )
        lines = [f"Lance {self.uri}: {counted}"]
        for finding in bad:
            where = f" {finding.query_id}:" if finding.query_id else ""
            lines.append(f"{finding.code.value}{where} {finding.summary}")
            lines += [f"  {line}" for line in finding.step_lines()]
        return "\n".join(lines)


def check(
    port: DatasetPort,
    query_ids: Iterable[str] = (),
    *,
    orphans: bool = True,
    detail: bool = False,
    **options: Unpack[CollectOptions],
) -> CheckReport:
    """Check some queries of a dataset, by default all, and the dataset itself; writes nothing.

    :param port: a handle at the newest version.
    :param orphans: count data files that no version references.
    :param detail: also read what changed, and what is not read where no driver says it.
    :param options: as for :func:`~.collect.collect`; a checkpoint's location is the one query's.
    :raises DatasetNotFoundError: the dataset is gone.
    :raises StorageUnavailableError: the store did not answer.
    """
    options.setdefault("unread", detail)
    tolerance = options.get("tolerance", USUAL)
    findings: list[Finding] = []
    statuses: list[Status] = []
    consumers: tuple[ConsumerStatus, ...] = ()
    rows, fragments = count(port)
    around = dataset_findings(port, **options)
    place = options.get("checkpoint_location"), options.get("storage_options")
    for query_id in tuple(query_ids) or find_traces(port, *place, options.get("files")):
        try:
            evidence = collect(port, query_id, **options)
        except ProtocolVersionError as error:
            findings.append(
                unreadable_finding(port, query_id, error, options.get("connection_arguments", ""))
            )
            continue
        found = evaluate_rules(evidence, tolerance)
        findings += found
        changes = collect_changes(port, query_id, evidence.drivers) if detail else ()
        statuses.append(
            status(evidence, [*found, *around], rows=rows, fragments=fragments, changes=changes)
        )
    if isinstance(port, LanceDatasetPort):
        seen = collect_dataset(port, options.get("storage_options"), orphans=orphans)
        arguments = options.get("connection_arguments", "")
        findings += dataset_rules(port.uri, seen, tolerance, arguments)
        findings += consumer_rules(port.uri, seen.consumers, tolerance, arguments)
        consumers = seen.consumers
    findings.sort(key=lambda finding: -finding.severity)
    seen_at = datetime.now(UTC).isoformat(timespec="seconds")
    return CheckReport(port.uri, port.version, seen_at, tuple(findings), tuple(statuses), consumers)
