"""The texts of findings about a dataset as a whole."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.catalogue import Case
from airflow_provider_lance.diagnostics.findings import Code

__all__ = ["NEEDED_NOW", "DatasetCase"]

NEEDED_NOW = (
    "If the space is needed now: stop all streams into this dataset and every other writer, type "
    "this, then start the streams again."
)


class DatasetCase(Case):
    """What ``rules_dataset`` may find."""

    FOREIGN_CLEANUP = (
        Code.FOREIGN_CLEANUP,
        "Lance's own auto-cleanup is on for {uri}: {settings}.",
        "It runs inside every client's commits and may remove the versions that prove an epoch, so "
        "each stream folds at every epoch, at twice the manifest updates. lancedb sets these keys "
        "on tables that it creates.",
    )
    SMALL_FRAGMENTS = (
        Code.SMALL_FRAGMENTS,
        "{small:,} of {fragments:,} fragments are small, more than {limit:,}.",
        "Each epoch adds at least one, and every commit and every reader pays for each. A running "
        "stream merges them by itself, unless autoCompactEvery=0; its status says when, under "
        "upkeep. Compaction by hand works beside it.",
    )
    MANY_VERSIONS = (
        Code.MANY_VERSIONS,
        "{versions:,} versions, more than {limit:,}; their manifests take {size}.",
        "Each epoch is a version. A running stream keeps about 4,000 of them, unless its options "
        "or a consumer keep more; its status says so under upkeep. Listing them becomes slow. A "
        "cleanup folds every query's watermark first.",
    )
    INDEX_BEHIND = (
        Code.INDEX_BEHIND,
        "Of {rows:,} rows, index {behind}; more than {limit:,} is too many.",
        "New fragments are in no index until it is brought up to date: queries scan them, and "
        "upserts by an indexed key become slow.",
    )
    ORPHANED_FILES = (
        Code.ORPHANED_FILES,
        "{files:,} data files with {size} are not referenced by any version; {old:,} of them are "
        "older than {age}, and a cleanup removes those.{bound}",
        "A repeated task, or a driver that ended between write and commit, left them. They cost "
        "space only.",
    )
    YOUNG_ORPHANS = (
        Code.ORPHANED_FILES,
        "{files:,} data files with {size} are not referenced by any version, and none is older "
        "than {age}: a cleanup keeps them until then.{bound}",
        "A repeated task, or a driver that ended between write and commit, left them. They cost "
        "space only. A younger one may belong to a commit that is still to come.",
    )
