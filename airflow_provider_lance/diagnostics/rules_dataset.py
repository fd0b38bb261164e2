"""Rules about a dataset as a whole: other tools' cleanup, and what has grown too large."""

from __future__ import annotations

import shlex

from airflow_provider_lance.diagnostics import formatting
from airflow_provider_lance.diagnostics.commands import dataset_command
from airflow_provider_lance.diagnostics.evidence import USUAL, DatasetEvidence, Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity

__all__ = ["dataset_rules"]


def dataset_rules(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance = USUAL, connection_arguments: str = ""
) -> list[Finding]:
    """Return the findings about a dataset, worst first; pure."""
    found = [
        _auto_cleanup(uri, dataset),
        _fragments(uri, dataset, tolerance, connection_arguments),
        _versions(uri, dataset, tolerance, connection_arguments),
        _index(uri, dataset, tolerance, connection_arguments),
        _orphans(uri, dataset, tolerance, connection_arguments),
    ]
    return sorted(filter(None, found), key=lambda finding: -finding.severity)


def _auto_cleanup(uri: str, dataset: DatasetEvidence) -> Finding | None:
    settings = dict(dataset.auto_cleanup)
    if not settings:
        return None
    code = f"import lance; lance.dataset({uri!r}).delete_config_keys({sorted(settings)!r})"
    told = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return Finding(
        Code.FOREIGN_CLEANUP,
        f"Lance's own auto-cleanup is on for {uri}: {told}.",
        cause="It runs inside anyone's commit, knows nothing of streams and may remove the "
        "versions that prove an epoch; each stream folds at every epoch because of it, at twice "
        "the manifest updates. lancedb sets these keys on tables that it makes. Remove them and "
        "schedule `lance-stream cleanup` or a LanceOptimizeOperator.",
        command=f"python -c {shlex.quote(code)}",
        evidence=settings,
    )


def _fragments(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance, connection_arguments: str
) -> Finding | None:
    numbers = dataset.numbers
    if numbers.small_fragments <= tolerance.small_fragments:
        return None
    return Finding(
        Code.SMALL_FRAGMENTS,
        f"{numbers.small_fragments:,} of {numbers.fragments:,} fragments are small, more than "
        f"{tolerance.small_fragments:,}.",
        cause="Each epoch adds at least one fragment. Every commit and every reader pays for each "
        "of them; compaction puts them together beside the live stream.",
        command=dataset_command(uri, connection_arguments, "optimize", options=("--yes",)),
        evidence=numbers.to_json(),
    )


def _versions(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance, connection_arguments: str
) -> Finding | None:
    numbers = dataset.numbers
    if numbers.versions <= tolerance.versions:
        return None
    return Finding(
        Code.MANY_VERSIONS,
        f"{numbers.versions:,} versions, more than {tolerance.versions:,}; their manifests take "
        f"{formatting.size(numbers.history_bytes)}.",
        cause="Each epoch is a version, and nobody cleans up. Listing them becomes slow and their "
        "manifests fill the store; cleanup folds every query's watermark first.",
        command=dataset_command(uri, connection_arguments, "cleanup", options=("--yes",)),
        evidence=numbers.to_json(),
    )


def _index(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance, connection_arguments: str
) -> Finding | None:
    behind = {n: rows for n, rows in dataset.uncovered.items() if rows > tolerance.uncovered_rows}
    if not behind:
        return None
    told = ", ".join(f"{name} lacks {rows:,}" for name, rows in sorted(behind.items()))
    return Finding(
        Code.INDEX_BEHIND,
        f"Of {dataset.numbers.rows:,} rows, index {told}; more than "
        f"{tolerance.uncovered_rows:,} is too many.",
        cause="New fragments are in no index until it is brought up to date. Queries scan them, "
        "and upserts by an indexed key become slow.",
        command=dataset_command(uri, connection_arguments, "optimize", options=("--yes",)),
        evidence={"uncovered": dict(dataset.uncovered), "rows": dataset.numbers.rows},
    )


def _orphans(
    uri: str, dataset: DatasetEvidence, tolerance: Tolerance, connection_arguments: str
) -> Finding | None:
    files, size = dataset.orphaned_files, dataset.orphaned_bytes
    if not files:
        return None
    since = dataset.orphans_since or 1
    bound = f" Only files written since version {since} were looked at." if since > 1 else ""
    return Finding(
        Code.ORPHANED_FILES,
        f"{files:,} data files with {formatting.size(size)} are not referenced by any version."
        f"{bound}",
        cause="A task that was repeated, or a driver that ended between write and commit, leaves "
        "them. They cost space only; a cleanup removes them once they are seven days old.",
        command=dataset_command(uri, connection_arguments, "cleanup", options=("--dry-run",)),
        evidence={"files": files, "bytes": size, "sinceVersion": since},
        raised=Severity.WARNING if size > tolerance.orphaned_bytes else None,
    )
