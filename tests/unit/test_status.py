"""A stream's status: one sentence for whoever is on call, then the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.diagnostics.evidence import Evidence
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.diagnostics.formatting import ago, is_later, lasted, seconds_since
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.diagnostics.status import Status, status, take_status
from airflow_provider_lance.supervision.health import Health, StreamState
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from tests.support.recovery_evidence import (
    ELSEWHERE,
    GONE,
    NOW,
    RELEASED,
    at,
    checkpoint,
    driver,
    owner,
    seen,
    stamp,
    state,
    summary,
    watermark,
)
from tests.support.recovery_stream import L1, Stream

PROGRESS = {"processedRowsPerSecond": 1234.56, "inputRowsPerSecond": 1000}


def busy(**changes: Any) -> Any:
    heartbeat = Heartbeat(at(3), "running", token=1, epoch=5, version=10, watermark=5, **changes)
    return driver(heartbeat=heartbeat, heartbeat_json={"progress": PROGRESS})


def told(evidence: Evidence, **numbers: int) -> Status:
    return status(evidence, evaluate_rules(evidence), **numbers)


SENTENCES = {
    "running: watermark 5, committed 20 s ago, 1,235 rows/s, nothing behind": seen(
        drivers=(busy(behind=0.0),)
    ),
    "running: watermark 5, committed 20 s ago, 1,235 rows/s, 7,000 behind": seen(
        drivers=(busy(behind=7000.0),)
    ),
    "running: watermark 5, committed 20 s ago, 1,235 rows/s, 7,000 (1 version, 9 s) behind": seen(
        drivers=(busy(behind=7000.0, versions_behind=1, seconds_behind=9.0),)
    ),
    "running: watermark 5, committed 20 s ago, 1,235 rows/s, 5,000 versions, 2 h behind": seen(
        drivers=(busy(versions_behind=5000.0, seconds_behind=7300.0),)
    ),
    "running: watermark 5, committed 20 s ago": seen(),
    "idle: watermark 5, committed 20 s ago, nothing to read": seen(
        health=Health(StreamState.IDLE, "nothing to read, watermark 5")
    ),
    "starting: no epoch committed yet, launched 9 s ago": seen(
        state=replace(state(-1), owner=None),
        watermark=watermark(-1, committed_at=None),
        checkpoint=checkpoint(-1, -1, id=None),
        health=Health(StreamState.STARTING, "launched 9 s ago"),
    ),
    "finished: read all available data, watermark 5, committed 3 min ago": seen(
        state=state(**RELEASED),
        watermark=watermark(committed_at=at(200)),
        drivers=(driver(summary=summary()),),
        health=Health(StreamState.FINISHED, "read all available data, watermark 5"),
    ),
    "unknown: watermark 5, committed 15 min ago, no driver can be seen from here": seen(
        drivers=(ELSEWHERE,), health=None, watermark=watermark(committed_at=at(900))
    ),
    "dead: the driver that owns query q, host:100 (launch L1), is gone; the watermark is 5 and "
    "no driver is running": seen(drivers=(GONE,), health=Health(StreamState.DEAD, "gone")),
    "running: epoch 5 of query q is in the dataset, but its checkpoint at /cp ends "
    "at epoch 3": seen(checkpoint=checkpoint(3, 3)),
    "running: watermark 5, committed 20 s ago; but asked to stop, and has not stopped yet": seen(
        state=replace(state(), stop_token=1)
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_status_sentence_says_state_and_numbers(sentence: str) -> None:
    assert told(SENTENCES[sentence]).sentence == sentence


def test_numbers_of_a_stream_that_runs() -> None:
    by = owner(launched_by="dag/task/run/-1#1", ui_address="http://old:4040")
    evidence = seen(
        state=state(4, owner=by),
        watermark=watermark(5, stamp(5, 11)),
        checkpoint=checkpoint(6, planned_at=at(2)),
        drivers=(busy(behind=70.0, ui_address="http://host:4040"),),
    )
    seen_now = told(evidence, rows=500, fragments=6)
    assert (seen_now.state, seen_now.healthy) == ("running", True)
    assert (seen_now.watermark, seen_now.version, seen_now.in_flight) == (5, 12, 6)
    assert (seen_now.committed_at, seen_now.epoch_age_seconds) == (at(20), 20.0)
    assert (seen_now.token, seen_now.owner_state) == (1, "active")
    assert (seen_now.launch_id, seen_now.driver) == ("L1", "host:100")
    assert seen_now.launched_by == "dag/task/run/-1#1"
    assert seen_now.ui_address == "http://host:4040"
    assert (seen_now.rows, seen_now.fragments, seen_now.rows_behind) == (500, 6, 70.0)
    rates = (seen_now.input_rows_per_second, seen_now.processed_rows_per_second)
    assert rates == (1000.0, 1234.6)
    assert seen_now.heartbeat_at == at(3)
    assert seen_now.findings[0].code is Code.HEALTHY


def test_a_driver_that_has_ended_has_no_rate_and_nothing_behind() -> None:
    reads_lance = busy(behind=3.0, versions_behind=1, seconds_behind=2.0, position="version 12")
    running = told(seen(drivers=(reads_lance,)))
    assert (running.versions_behind, running.seconds_behind) == (1, 2.0)
    over = told(seen(state=state(**RELEASED), drivers=(replace(reads_lance, summary=summary()),)))
    assert (over.rows_behind, over.versions_behind, over.seconds_behind) == (None, None, None)
    assert (over.last_behind, over.behind_at) == ("3 (1 version, 2 s)", at(3))
    assert (running.last_behind, running.behind_at) == ("", at(3))
    assert over.source_position == running.source_position == "version 12"
    assert over.processed_rows_per_second is None


def test_a_committed_epoch_that_spark_has_not_noted_is_not_in_flight() -> None:
    assert told(seen(checkpoint=checkpoint(5, 4))).in_flight is None


def test_the_word_of_a_stream_that_ended_well_and_is_unhealthy_is_its_severity() -> None:
    ended = Health(StreamState.FINISHED, "read all available data, watermark 5")
    lost = told(seen(health=ended, intact=False))
    assert (lost.healthy, lost.state) == (False, "finished")
    assert lost.sentence.startswith("critical: ")


def test_a_warning_leaves_a_stream_healthy_and_an_error_does_not() -> None:
    behind = told(seen(checkpoint=None, checkpoint_problem="no filesystem"))
    assert behind.findings[0].code is Code.CHECKPOINT_UNREADABLE
    assert behind.healthy
    assert not told(seen(drivers=(GONE,))).healthy


def test_json_is_plain_and_camel() -> None:
    document = json.loads(json.dumps(told(seen(drivers=(GONE,)), rows=1).to_json()))
    assert document["queryId"] == "q"
    assert document["epochAgeSeconds"] == 20.0
    assert document["findings"][0]["code"] == "LS102"
    assert document["findings"][0]["repair"] == "owner"
    assert {"inputRowsPerSecond", "ownerState", "uiAddress"} <= set(document)


def test_a_status_taken_of_a_real_stream(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.commit(0)
    stream.commit(1)
    stream.beat()
    now = take_status(stream.committer.port, "q")
    assert (now.state, now.watermark, now.rows, now.fragments) == ("idle", 1, 6, 2)
    assert now.launch_id == L1
    assert now.sentence.startswith("idle: watermark 1, ")
    assert now.healthy


# ---------------------------------------------------------------------------------------- moments


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (3.4, "3 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"),
     (172_800, "2 days")],
)  # fmt: skip
def test_durations_are_as_people_say_them(seconds: float, text: str) -> None:
    assert lasted(seconds) == text


def test_ages_of_missing_and_invalid_times_are_unknown() -> None:
    assert seconds_since(None, NOW) is None
    assert seconds_since("soon", NOW) is None
    assert ago("", NOW) == ""
    assert ago(at(130), NOW) == "2 min ago"
    assert seconds_since("2026-03-01T02:59:00", NOW) == 60, "a time without a zone is UTC"
    assert seconds_since(at(-60), NOW) == 0
    assert is_later(at(1), at(2))
    assert not is_later(at(1), None)
