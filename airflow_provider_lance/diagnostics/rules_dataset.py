"""Rules about a dataset as a whole: its fragments, versions, indices and unreferenced files."""

from __future__ import annotations

from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.catalogue_dataset import NEEDED_NOW, DatasetCase
from airflow_provider_lance.diagnostics.evidence import USUAL, DatasetEvidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import finding
from airflow_provider_lance.diagnostics.findings import Finding, Severity, Step
from airflow_provider_lance.maintenance.cleanup import ORPHAN_SECONDS
from airflow_provider_lance.protocol.commands import command_line

__all__ = ["dataset_rules"]


def dataset_rules(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance = USUAL, connection_arguments: str = ""
) -> list[Finding]:
    """Return the findings about a dataset as a whole, worst first; pure."""

    def typed(*words: str) -> str:
        *verb, option = words
        return command_line(*verb, uri, option, connection_arguments=connection_arguments)

    numbers, found = dataset.numbers, list[Finding]()
    if settings := dict(dataset.auto_cleanup):
        text = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        line = typed("resolve", "auto-cleanup", "--yes")
        found.append(finding(DatasetCase.FOREIGN_CLEANUP, settings, line, uri=uri, settings=text))
    if numbers.small_fragments > tolerance.small_fragments:
        found.append(
            finding(
                DatasetCase.SMALL_FRAGMENTS,
                numbers.to_json(),
                typed("optimize", "--yes"),
                small=numbers.small_fragments,
                fragments=numbers.fragments,
                limit=tolerance.small_fragments,
            )
        )
    if numbers.versions > tolerance.versions:
        found.append(
            finding(
                DatasetCase.MANY_VERSIONS,
                numbers.to_json(),
                _cleanup(uri, connection_arguments, "--older-than", _age(dataset, tolerance)),
                versions=numbers.versions,
                limit=tolerance.versions,
                size=formatting.size(numbers.history_bytes),
            )
        )
    limit = tolerance.uncovered_rows
    behind = {name: rows for name, rows in dataset.uncovered.items() if rows > limit}
    if behind:
        found.append(
            finding(
                DatasetCase.INDEX_BEHIND,
                {"uncovered": dict(dataset.uncovered), "rows": numbers.rows},
                typed("optimize", "--yes"),
                rows=numbers.rows,
                behind=", ".join(f"{name} lacks {rows:,}" for name, rows in sorted(behind.items())),
                limit=limit,
            )
        )
    if dataset.orphaned_files:
        found.append(_orphans(uri, dataset, tolerance, connection_arguments))
    return sorted(found, key=lambda finding: -finding.severity)


def _cleanup(uri: str, connection_arguments: str, *options: str) -> str:
    words = ("cleanup", uri, *options, "--yes")
    return command_line(*words, connection_arguments=connection_arguments)


def _age(dataset: DatasetEvidence, tolerance: Tolerance) -> str:
    """Return the longest age with which a cleanup leaves at most half as many as are too many."""
    few = (age for age, kept in dataset.younger.items() if kept <= tolerance.versions // 2)
    return next(few, "10m")


def _orphans(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance, connection_arguments: str
) -> Finding:
    files, size, since = dataset.orphaned_files, dataset.orphaned_bytes, dataset.orphans_since or 1
    old = dataset.orphaned_old
    now = Step(NEEDED_NOW, _cleanup(uri, connection_arguments, "--delete-unverified"))
    return finding(
        DatasetCase.ORPHANED_FILES if old else DatasetCase.YOUNG_ORPHANS,
        {"files": files, "bytes": size, "old": old, "sinceVersion": since},
        [Step(command=_cleanup(uri, connection_arguments))] if old else [now],
        severity=Severity.WARNING if size > tolerance.orphaned_bytes else None,
        files=files,
        size=formatting.size(size),
        old=old,
        age=formatting.lasted(ORPHAN_SECONDS),
        bound=f" Only files written since version {since} were checked." if since > 1 else "",
    )
