from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.protocol.files import ArrowFiles, open_files
from airflow_provider_lance.supervision import driver_reports as report
from airflow_provider_lance.supervision.driver_reports import (
    EndReason,
    Summary,
    new_launch_id,
    read_heartbeat,
    read_summary,
    report_location,
    write_heartbeat,
    write_summary,
)

SUMMARY = Summary(
    launch_id="launch",
    query_id="q",
    uri="s3://lake/t.lance",
    reason=EndReason.FAILED,
    epochs=3,
    rows=50,
    deletes=2,
    skipped=1,
    first_epoch=4,
    last_epoch=6,
    watermark=6,
    version=17,
    manifest_updates=5,
    released=True,
    seconds=1.25,
    run_id="run",
    error="FencedError",
    message="a newer owner",
    stopped_by="on-call",
)


@pytest.fixture
def files(tmp_path: Path) -> ArrowFiles:
    return open_files(str(tmp_path))


@pytest.mark.parametrize("reason", list(EndReason))
def test_a_summary_comes_back_as_it_went(files: ArrowFiles, reason: EndReason) -> None:
    summary = replace(SUMMARY, reason=reason)
    write_summary(files, summary)
    assert read_summary(files, "launch") == summary


def test_summary_keeps_fields_that_the_driver_never_filled_empty(files: ArrowFiles) -> None:
    bare = replace(
        SUMMARY, first_epoch=None, last_epoch=None, version=None, run_id=None, error=None
    )
    write_summary(files, bare)
    assert read_summary(files, "launch") == bare


def test_a_summary_is_plain_json_in_camel_case() -> None:
    document = SUMMARY.to_json()
    assert json.loads(json.dumps(document)) == document
    assert type(document["reason"]) is str
    assert {"launchId", "queryId", "firstEpoch", "manifestUpdates", "runId"} <= set(document)
    assert not [name for name in document if "_" in name]


def test_names_of_a_newer_package_are_passed_over() -> None:
    newer: dict[str, Any] = {**SUMMARY.to_json(), "fragmentsCompacted": 7, "first_epoch": 99}
    assert Summary.from_json(newer) == SUMMARY


def test_a_summary_of_an_earlier_package_was_stopped_by_nobody() -> None:
    older = SUMMARY.to_json()
    del older["stoppedBy"]
    assert Summary.from_json(older) == replace(SUMMARY, stopped_by=None)


def test_missing_report_reads_as_none(files: ArrowFiles) -> None:
    assert read_summary(files, "launch") is None
    assert read_heartbeat(files, "launch") is None


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_half_written_report_reads_as_none(files: ArrowFiles, length: int) -> None:
    content = json.dumps(SUMMARY.to_json()).encode()[:length]
    files.write("launch/summary.json", content)
    files.write("launch/heartbeat.json", content)
    assert read_summary(files, "launch") is None
    assert read_heartbeat(files, "launch") is None


@pytest.mark.parametrize("content", [b"[1]", b"7", b"null", b'"text"', b"\xff\xfe"])
def test_what_is_no_json_object_reads_as_none(files: ArrowFiles, content: bytes) -> None:
    files.write("launch/heartbeat.json", content)
    assert read_heartbeat(files, "launch") is None


def test_a_heartbeat_replaces_the_one_before(files: ArrowFiles) -> None:
    write_heartbeat(files, "launch", {"state": "running", "progress": {"batchId": 12345}})
    write_heartbeat(files, "launch", {"state": "ended"})
    assert read_heartbeat(files, "launch") == {"state": "ended"}


def test_two_launches_do_not_see_each_other(files: ArrowFiles) -> None:
    write_heartbeat(files, "a", {"n": 1})
    write_heartbeat(files, "b", {"n": 2})
    assert read_heartbeat(files, "a") == {"n": 1}
    assert read_heartbeat(files, "b") == {"n": 2}


def test_launch_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [
        "2025-12-31T23:59:59.998+00:00",
        "2025-12-31T23:59:59.999+00:00",
        "2026-01-01T00:00:00.000+00:00",
        "2026-01-01T09:59:59.000+00:00",
        "2026-01-01T10:00:00.000+00:00",
    ]
    made = []
    for moment in moments:
        monkeypatch.setattr(report, "utc_now", lambda moment=moment: moment)
        made.append(new_launch_id())
    assert made == sorted(made)
    assert made[0].startswith("20251231T235959998Z-")


def test_launch_ids_of_one_moment_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "utc_now", lambda: "2026-01-01T00:00:00.000+00:00")
    assert len({new_launch_id() for _ in range(20)}) == 20


@pytest.mark.parametrize("location", ["s3a://b/cp", "s3a://b/cp/"])
def test_reports_are_the_checkpoints_neighbours(location: str) -> None:
    assert report_location(location) == "s3a://b/cp.reports"
