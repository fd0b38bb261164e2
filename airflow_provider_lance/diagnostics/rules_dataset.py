"""Rules about a dataset as a whole: its fragments, versions, indices and unreferenced files."""

from __future__ import annotations

from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.catalogue_dataset import DatasetCase
from airflow_provider_lance.diagnostics.evidence import USUAL, DatasetEvidence, Tolerance
from airflow_provider_lance.diagnostics.finding_builder import finding
from airflow_provider_lance.diagnostics.findings import Finding, Severity
from airflow_provider_lance.protocol.commands import command_line, delete_config_line

__all__ = ["dataset_rules"]


def dataset_rules(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance = USUAL, connection_arguments: str = ""
) -> list[Finding]:
    """Return the findings about a dataset as a whole, worst first; pure."""

    def typed(verb: str, option: str) -> str:
        return command_line(verb, uri, option, connection_arguments=connection_arguments)

    numbers, found = dataset.numbers, list[Finding]()
    if settings := dict(dataset.auto_cleanup):
        text = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        line = delete_config_line(uri, sorted(settings))
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
                typed("cleanup", "--yes"),
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
    if files := dataset.orphaned_files:
        size, since = dataset.orphaned_bytes, dataset.orphans_since or 1
        found.append(
            finding(
                DatasetCase.ORPHANED_FILES,
                {"files": files, "bytes": size, "sinceVersion": since},
                typed("cleanup", "--dry-run"),
                severity=Severity.WARNING if size > tolerance.orphaned_bytes else None,
                files=files,
                size=formatting.size(size),
                bound=f" Only files written since version {since} were checked."
                if since > 1
                else "",
            )
        )
    return sorted(found, key=lambda finding: -finding.severity)
