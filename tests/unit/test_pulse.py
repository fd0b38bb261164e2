"""What a heartbeat says, and what it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_lance.streaming.pulse import Pulse
from tests.support.supervised import heartbeat


def test_reads_what_a_driver_writes() -> None:
    written = heartbeat(time="2026-01-01T12:00:30+00:00", busySince="2026-01-01T12:00:00+00:00")
    written["sink"]["committedAt"] = "2026-01-01T11:59:00+00:00"
    assert Pulse.parse(written) == Pulse(
        time="2026-01-01T12:00:30+00:00",
        state="running",
        token=1,
        epoch=4,
        version=9,
        watermark=4,
        total_rows=12,
        committed_at=datetime(2026, 1, 1, 11, 59, tzinfo=UTC),
        ui_address="http://driver:4040",
        busy=30.0,
        idle=False,
    )


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"sink": {"committedAt": "yesterday"}},
        {"sink": {"committedAt": "2026-01-01T11:59:00"}},
        {"sink": {"committedAt": 7}},
        {"time": None, "state": None, "driver": None, "sink": None, "progress": None},
        {"driver": [], "sink": "x", "progress": 3, "busySince": "yesterday"},
        {"driver": {"token": "1", "uiAddress": 7}, "sink": {"epoch": True, "watermark": 1.5}},
        {"time": "x", "busySince": "2026-01-01T12:00:00+00:00", "progress": {"sources": {}}},
    ],
)
def test_what_is_missing_or_of_another_form(document: dict[str, Any]) -> None:
    pulse = Pulse.parse(document)
    assert pulse == Pulse(time=pulse.time, state="")


@pytest.mark.parametrize(
    ("words", "busy", "idle"),
    [
        ({"busySince": None}, 0.0, True),
        ({}, 0.0, False),
        ({"busySince": "2026-01-01T11:59:30+00:00"}, 30.0, False),
        ({"busySince": "2026-01-01T13:59:30+02:00"}, 30.0, False),
        ({"busySince": "2026-01-01T12:00:01+00:00"}, 0.0, False),
        ({"busySince": "2026-01-01T11:59:30"}, 0.0, False),
    ],
    ids=["waits", "an older driver", "works", "in another zone", "clock set back", "no zone"],
)
def test_since_when_it_is_at_work(words: dict[str, Any], busy: float, idle: bool) -> None:
    pulse = Pulse.parse({"time": "2026-01-01T12:00:00+00:00", "state": "running", **words})
    assert (pulse.busy, pulse.idle) == (busy, idle)


def progress(*metrics: Any) -> dict[str, Any]:
    return {"progress": {"sources": [{"metrics": each} for each in metrics]}}


@pytest.mark.parametrize(
    ("document", "behind"),
    [
        (progress({"maxOffsetsBehindLatest": "12", "avgOffsetsBehindLatest": "7.5"}), 12.0),
        (progress({"numFilesOutstanding": "3", "numBytesOutstanding": "900"}), 3.0),
        (progress({"numFilesOutstanding": "0"}), 0.0),
        (progress({"maxOffsetsBehindLatest": "12"}, {"numFilesOutstanding": 3}), 15.0),
        (progress({"maxOffsetsBehindLatest": "12"}, None, {"rows": "3"}), 12.0),
        (progress({"maxOffsetsBehindLatest": "many"}), None),
        (progress({"maxOffsetsBehindLatest": None}), None),
        (progress({}), None),
        ({"progress": {"sources": ["x"]}}, None),
    ],
)
def test_how_far_the_source_is_ahead(document: dict[str, Any], behind: float | None) -> None:
    assert Pulse.parse(document).behind == behind
