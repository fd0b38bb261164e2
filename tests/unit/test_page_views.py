"""The page's list: its order, its words, and its summary; pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.diagnostics.status import Status
from airflow_provider_lance.plugins.page.cache import CachedResult
from airflow_provider_lance.plugins.page.mutes import Mute, what_is_wrong
from airflow_provider_lance.plugins.page.queries import Row
from airflow_provider_lance.plugins.page.registry import RegisteredDataset
from airflow_provider_lance.plugins.page.views import (
    list_streams,
    sentence_of,
    summary,
    verdict_of,
    without_consumers,
)

AT = "2026-01-01T00:00:00+00:00"
EVER = "9999-01-01T00:00:00+00:00"


def status(query_id: str, *codes: Code, state: str = "running") -> Status:
    """Return the status of a stream with these findings, the worst first."""
    findings = tuple(sorted((Finding(code, "s") for code in codes), key=lambda f: -f.severity))
    healthy = all(each.severity < Severity.ERROR for each in findings)
    return Status("/t", query_id, state, f"{state}: so it is", healthy, 3, 9, findings=findings)


def listed(*statuses: Status, mutes: tuple[Mute, ...] = ()) -> list[tuple[str, str]]:
    rows = tuple(Row(each.query_id, each) for each in statuses)
    lines = list_streams([(RegisteredDataset("/t", ""), CachedResult(rows))], mutes)
    return [(line.query_id, line.verdict.word) for line in lines]


def test_streams_that_need_somebody_come_first_by_severity() -> None:
    found = listed(
        status("a fine one"),
        status("warned", Code.SMALL_FRAGMENTS),
        status("an error", Code.DRIVER_GONE, Code.SMALL_FRAGMENTS),
        status("b critical", Code.COMMIT_LOG_AHEAD),
        status("also fine", Code.HEALTHY, state="idle"),
    )
    assert found == [
        ("b critical", "critical"),
        ("an error", "error"),
        ("warned", "warning"),
        ("a fine one", "running"),
        ("also fine", "idle"),
    ]


@pytest.mark.parametrize("state", ["finished", "stopped", "running", "idle"])
def test_no_red_badge_reads_like_a_healthy_state(state: str) -> None:
    verdict = verdict_of(status("q", Code.QUERY_FAILED, state=state))
    assert (verdict.tone, verdict.word, verdict.code) == ("bad", "error", "LS104")


def test_stream_of_unknown_state_is_not_fine() -> None:
    verdict = verdict_of(status("q", state="unknown"))
    assert (verdict.tone, verdict.word) == ("bad", "unknown")


def test_acknowledged_stream_is_muted_until_something_else_is_wrong() -> None:
    known, more = status("q", Code.DRIVER_GONE), status("q", Code.DRIVER_GONE, Code.TWO_DRIVERS)
    mute = Mute("/t", "q", "eve", AT, EVER, what_is_wrong(known))
    assert listed(known, status("z"), mutes=(mute,)) == [("q", "muted"), ("z", "running")]
    assert listed(more, mutes=(mute,)) == [("q", "error")]
    assert listed(status("q"), mutes=(mute,)) == [("q", "running")]


def test_summary_counts_every_line_once() -> None:
    rows = (
        Row("q", status("q", Code.DRIVER_GONE)),
        Row("r", error="x"),
        Row("s", status("s", Code.SMALL_FRAGMENTS)),
        *(Row(name, status(name)) for name in "uvw"),
    )
    looks: list[tuple[RegisteredDataset, CachedResult[tuple[Row, ...]]]] = [
        (RegisteredDataset("/t", ""), CachedResult(rows)),
        (RegisteredDataset("/empty", ""), CachedResult(())),
        (RegisteredDataset("/waits", ""), CachedResult()),
        (RegisteredDataset("/gone", ""), CachedResult(error="gone")),
    ]
    said = summary(list_streams(looks))
    assert said == "3 need you, 1 warned, 3 fine, 1 empty, 1 not seen yet"


def test_consumers_are_taken_out_of_a_status_with_their_sentence() -> None:
    lost = Finding(Code.CONSUMER_GONE, "Consumer theirs", evidence={"consumerId": "theirs"})
    small = Finding(Code.SMALL_FRAGMENTS, "small")
    given = status("q")
    seen = replace(
        given, healthy=False, sentence="running: consumer theirs", findings=(lost, small)
    )
    shown = without_consumers(seen)
    assert (shown.healthy, shown.findings) == (True, (small,))
    assert shown.sentence == "running: watermark 3"
    assert without_consumers(given) is given
    dead = Finding(Code.DRIVER_GONE, "The driver is gone.")
    shown = without_consumers(replace(seen, findings=(dead, lost)))
    assert (shown.healthy, shown.sentence) == (False, "running: The driver is gone.")


@pytest.mark.parametrize("head", ["finished", "error"])
def test_sentence_does_not_repeat_what_the_badge_says(head: str) -> None:
    given = replace(status("q", Code.QUERY_FAILED, state="finished"), sentence=f"{head}: at: 3")
    assert sentence_of(given) == "at: 3"
    assert sentence_of(replace(given, sentence="at: 3")) == "at: 3"
