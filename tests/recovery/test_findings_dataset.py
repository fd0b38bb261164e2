"""Datasets that are in need of maintenance, and after it."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.collect_dataset import collect_dataset
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.status import take_status
from airflow_provider_lance.maintenance.indexing import refresh_indices
from airflow_provider_lance.protocol.dataset import open_dataset
from tests.support.cli import typed
from tests.support.consumers import leave
from tests.support.maintenance import SCHEMA, append, compacting, make, manifest, rows
from tests.support.recovery import codes, finding
from tests.support.wreck import Wreck

STRICT = Tolerance(small_fragments=9, versions=9, uncovered_rows=9, orphaned_bytes=1)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a dataset of ten small fragments in ten versions."""
    return make(tmp_path, 10)


def strictly(uri: str) -> CheckReport:
    return check(open_dataset(uri), tolerance=STRICT)


def type_it(found: Finding) -> None:
    """Type the first command of a finding."""
    ran = typed(*shlex.split(found.command)[1:])
    assert ran.status == 0, ran.err


def test_check_reports_nothing_within_tolerance(uri: str) -> None:
    assert check(open_dataset(uri)).findings == ()


def test_check_reports_small_fragments_until_they_are_compacted(uri: str) -> None:
    found = finding(strictly(uri), Code.SMALL_FRAGMENTS)
    assert found.evidence["smallFragments"] == 10
    assert found.command == f"lance-stream optimize {uri} --yes"
    compacting(uri)
    assert Code.SMALL_FRAGMENTS not in codes(strictly(uri))


def test_check_reports_many_versions_until_they_are_cleaned_up(uri: str) -> None:
    """The command names the longest age that leaves few enough."""
    age_all(uri)
    found = finding(strictly(uri), Code.MANY_VERSIONS)
    assert found.evidence["versions"] == 10
    assert found.command == f"lance-stream cleanup {uri} --older-than 20m --yes"
    type_it(found)
    assert Code.MANY_VERSIONS not in codes(strictly(uri))


def test_check_reports_an_index_behind_until_it_is_refreshed(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    assert Code.INDEX_BEHIND not in codes(strictly(uri))
    append(uri, 1000)
    found = finding(strictly(uri), Code.INDEX_BEHIND)
    assert found.evidence["uncovered"] == {"id_idx": 10}
    refresh_indices(open_dataset(uri))
    assert Code.INDEX_BEHIND not in codes(strictly(uri))


def test_check_reports_foreign_auto_cleanup_until_its_command_is_run(uri: str) -> None:
    settings = {"lance.auto_cleanup.interval": "20", "lance.auto_cleanup.older_than": "1days"}
    lance.dataset(uri).update_config(settings)
    found = finding(check(open_dataset(uri)), Code.FOREIGN_CLEANUP)
    assert found.evidence == settings
    assert found.command == f"lance-stream resolve auto-cleanup {uri} --yes"
    plan = typed("resolve", "auto-cleanup", uri, "-o", "json")
    assert (plan.status, plan.document["done"]) == (2, False)
    assert plan.document["details"]["writes"][0]["config"] == dict.fromkeys(settings)
    type_it(found)
    assert check(open_dataset(uri)).findings == ()
    again = typed("resolve", "auto-cleanup", uri, "--yes")
    assert (again.status, again.out) == (0, "Lance's own auto-cleanup was off already.\n")


# -------------------------------------------------------------------------------- orphaned files


def age(uri: str, seconds: float = 3600) -> None:
    """Make all data files look older, in the order in which they were written."""
    for file in Path(uri, "data").iterdir():
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))


def leave_behind(uri: str, count: int = 1) -> int:
    """Write data files that nobody commits; return their bytes."""
    dataset = lance.dataset(uri)
    written = [lance.fragment.write_fragments(rows(0, 5), dataset)[0] for _ in range(count)]
    return sum(each.files[0].file_size_bytes or 0 for each in written)


def test_check_reports_orphaned_files_until_they_are_cleaned_up(uri: str) -> None:
    left = leave_behind(uri, 2)
    assert Code.ORPHANED_FILES not in codes(strictly(uri), Severity.INFO), "they may be committed"
    age(uri)
    found = finding(strictly(uri), Code.ORPHANED_FILES)
    assert (found.evidence["files"], found.evidence["bytes"]) == (2, left)
    assert found.severity is Severity.WARNING
    assert finding(check(open_dataset(uri)), Code.ORPHANED_FILES).severity is Severity.INFO
    assert "none is older than 7 d" in found.summary
    assert found.steps[0].text.startswith("If the space is needed now: ")
    assert found.command == f"lance-stream cleanup {uri} --delete-unverified --yes"
    type_it(found)
    assert Code.ORPHANED_FILES not in codes(strictly(uri), Severity.INFO)


def test_old_orphaned_files_are_cleaned_up_where_no_version_is_old(uri: str) -> None:
    leave_behind(uri, 2)
    age(uri, 8 * 24 * 3600)
    leave_behind(uri, 1)
    rows_before = lance.dataset(uri).count_rows()
    found = finding(strictly(uri), Code.ORPHANED_FILES)
    assert "2 of them are older than 7 d" in found.summary
    assert found.command == f"lance-stream cleanup {uri} --yes"
    plan = typed("cleanup", uri, "--dry-run", "-o", "json").document
    assert plan["done"]["cleanup"]["dataFiles"] == 2
    assert plan["done"]["cleanup"]["versions"] == 0
    type_it(found)
    assert Code.ORPHANED_FILES not in codes(strictly(uri), Severity.INFO)
    assert lance.dataset(uri).count_rows() == rows_before
    assert "cleanup" in typed("cleanup", uri, "--dry-run", "-o", "json").document["skipped"]


def test_files_of_older_versions_are_named(uri: str) -> None:
    compacting(uri)
    lance.dataset(uri).delete("id < 15")
    age(uri)
    seen = collect_dataset(open_dataset(uri), orphans=True)
    assert (seen.orphaned_files, seen.orphans_since) == (0, 1)


def test_only_so_many_manifests_are_read(uri: str) -> None:
    """What was written since the oldest manifest that is read can be told exactly."""
    leave_behind(uri)
    time.sleep(0.05)
    for number in range(20, 26):
        append(uri, number * 10)
    left = leave_behind(uri, 2)
    newest = sum(manifest(uri, version).stat().st_size for version in (14, 15, 16))
    age_all(uri)
    seen = collect_dataset(open_dataset(uri), orphans=True, manifest_bytes=newest)
    assert seen.orphans_since == 14
    assert (seen.orphaned_files, seen.orphaned_bytes) == (2, left)
    whole = collect_dataset(open_dataset(uri), orphans=True)
    assert (whole.orphaned_files, whole.orphans_since) == (3, 1)


def age_all(uri: str, seconds: float = 3600) -> None:
    """Make data files and manifests look older, each by as much."""
    age(uri, seconds)
    for file in Path(uri, "_versions").iterdir():
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))


def test_the_files_of_a_branch_are_not_told_from_orphans(uri: str) -> None:
    lance.dataset(uri).create_branch("side")
    leave_behind(uri)
    age(uri)
    assert collect_dataset(open_dataset(uri), orphans=True).orphans_since is None


def test_a_dataset_without_data_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "empty.lance")
    lance.write_dataset(pa.Table.from_pylist([], SCHEMA), uri)
    assert collect_dataset(open_dataset(uri), orphans=True).orphaned_files == 0


# ------------------------------------------------------------------------- what every list shows


def test_findings_about_the_dataset_reach_status_and_check_alike(tmp_path: Path) -> None:
    wreck = Wreck(tmp_path)
    wreck.run(2, released=True)
    lance.dataset(wreck.uri).update_config({"lance.auto_cleanup.interval": "20"})
    status = take_status(open_dataset(wreck.uri), "orders")
    assert Code.FOREIGN_CLEANUP in [each.code for each in status.findings]
    assert status.sentence.endswith("; but a foreign auto-cleanup is on")
    assert status.healthy
    leave(wreck.uri, 2, ago=8 * 24 * 3600)
    ran = typed("status", wreck.uri)
    assert ran.status == typed("check", wreck.uri).status == 1
    assert "LS602 error: Consumer hourly wrote its position" in ran.out
    assert "hourly" not in str(take_status(open_dataset(wreck.uri), "orders"))
    [checked] = check(open_dataset(wreck.uri)).statuses
    assert (checked.healthy, checked.sentence) == (status.healthy, status.sentence)
    assert [each.code for each in checked.findings] == [each.code for each in status.findings]
