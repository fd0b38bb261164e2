"""The report of a check: for a log, for a notifier, for a machine."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.diagnostics.check import CheckReport, check
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.diagnostics.status import status
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.port import Configure
from tests.support.drivers import SparkLike, twin_world
from tests.support.recovery_evidence import (
    CRITICAL,
    GONE,
    checkpoint,
    seen,
    stamp,
    state,
    watermark,
)
from tests.support.recovery_stream import Stream


def report(**changes: object) -> CheckReport:
    evidence = seen(**changes)
    found = evaluate_rules(evidence)
    statuses = (status(evidence, found),)
    return CheckReport(evidence.uri, 12, "2026-03-01T03:00:00+00:00", tuple(found), statuses)


BEHIND = {"state": state(4), "watermark": watermark(5, stamp(5, 11)), "drivers": (GONE,)}


def test_the_worst_comes_first_and_counts() -> None:
    bad = report(**BEHIND)
    assert [each.code for each in bad.findings] == [Code.DRIVER_GONE, Code.WATERMARK_BEHIND]
    assert bad.worst is Severity.ERROR
    assert [each.code for each in bad.at_or_above(Severity.ERROR)] == [Code.DRIVER_GONE]
    assert bad.at_or_above(CRITICAL) == []
    assert report().worst is Severity.INFO
    assert CheckReport("u", 1, "t", (), ()).worst is Severity.INFO


def test_report_lines_show_the_finding_its_cause_and_the_command() -> None:
    lines = list(report(**BEHIND).lines())
    assert lines[0] == "/data/my table.lance at version 12, 2026-03-01T03:00:00+00:00"
    assert lines[1].startswith("q: running: ")
    assert "host:100" in lines[1]
    assert lines[2].startswith("error    LS102 q  ")
    assert lines[3].strip().startswith("why: ")
    assert lines[4].strip() == "1. Either start the stream again."
    assert lines[5].strip() == "2. Or say that the stream is not to run again:"
    release = "lance-stream release '/data/my table.lance' q --for-good --yes"
    assert lines[6].strip() == release
    assert lines[7].startswith("warning  LS203 q  ")


def test_message_of_a_report_has_a_headline_and_a_line_for_each_finding() -> None:
    lines = report(**BEHIND, checkpoint=checkpoint(5, 4)).message().splitlines()
    assert lines[0] == "Lance /data/my table.lance: 1 error, 1 warning"
    assert [line[:9] for line in lines[1:] if line[0] != " "] == ["LS102 q: ", "LS203 q: "]
    assert lines[2] == "  1. Either start the stream again."


def test_message_of_a_healthy_report_is_one_line() -> None:
    assert report().message() == (
        "Lance /data/my table.lance: healthy. q running: watermark 5, committed 20 s ago"
    )


def test_report_as_json_has_findings_statuses_and_worst() -> None:
    document = json.loads(json.dumps(report(**BEHIND).to_json()))
    assert document["worst"] == "error"
    assert document["seenAt"] == "2026-03-01T03:00:00+00:00"
    assert [each["code"] for each in document["findings"]] == ["LS102", "LS203"]
    assert document["statuses"][0]["queryId"] == "q"


# ---------------------------------------------------------------------------------- a real dataset


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path)
    made.commit(0)
    made.beat()
    return made


def test_all_queries_are_checked_and_the_dataset(stream: Stream, tmp_path: Path) -> None:
    other = Stream(tmp_path, "other", launch_id="")
    other.commit(0)
    strict = Tolerance(versions=3)
    whole = check(open_dataset(stream.uri), tolerance=strict)
    assert [each.query_id for each in whole.statuses] == ["other", "q"]
    assert [each.code for each in whole.at_or_above(Severity.WARNING)] == [Code.MANY_VERSIONS]
    one = check(open_dataset(stream.uri), ["q"], tolerance=strict)
    assert [each.query_id for each in one.statuses] == ["q"]


def test_a_query_of_another_protocol_does_not_end_the_check(stream: Stream) -> None:
    newer = {"spark.lance.streaming.owner.a": '{"protocol": 2}'}
    open_dataset(stream.uri).commit(Configure(dict(newer)))
    whole = check(open_dataset(stream.uri))
    assert [each.query_id for each in whole.statuses] == ["q"]
    (bad,) = whole.at_or_above(Severity.WARNING)
    assert (bad.code, bad.query_id) == (Code.PROTOCOL_NEWER, "a")
    assert "upgrade" in bad.summary


def test_a_check_writes_nothing(stream: Stream) -> None:
    before = lance.dataset(stream.uri).latest_version
    files = sorted(path.name for path in Path(stream.uri).rglob("*"))
    check(open_dataset(stream.uri))
    assert lance.dataset(stream.uri).latest_version == before
    assert sorted(path.name for path in Path(stream.uri).rglob("*")) == files


def test_check_works_on_an_in_memory_dataset(tmp_path: Path) -> None:
    from airflow_provider_lance.protocol.files import open_files
    from airflow_provider_lance.testing.dataset import InMemoryDataset

    twin = InMemoryDataset()
    SparkLike(twin_world(twin), {}).step()
    seen_now = check(twin.open(), files=lambda location: open_files(f"{tmp_path}{location}"))
    assert [each.watermark for each in seen_now.statuses] == [0]
    assert seen_now.statuses[0].rows is None
