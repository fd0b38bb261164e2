"""What a heartbeat says, and what it does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.query_state import (
    OperatorState,
    QueryState,
    query_state_of,
)
from tests.support.supervised import heartbeat


def test_heartbeat_reads_what_a_driver_writes() -> None:
    written = heartbeat(time="2026-01-01T12:00:30+00:00", busySince="2026-01-01T12:00:00+00:00")
    written["sink"]["committedAt"] = "2026-01-01T11:59:00+00:00"
    assert Heartbeat.parse(written) == Heartbeat(
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
def test_missing_and_invalid_fields_of_a_heartbeat_are_empty(document: dict[str, Any]) -> None:
    heartbeat = Heartbeat.parse(document)
    assert heartbeat == Heartbeat(time=heartbeat.time, state="")


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
def test_heartbeat_says_since_when_the_driver_is_busy_or_idle(
    words: dict[str, Any], busy: float, idle: bool
) -> None:
    heartbeat = Heartbeat.parse({"time": "2026-01-01T12:00:00+00:00", "state": "running", **words})
    assert (heartbeat.busy, heartbeat.idle) == (busy, idle)


KEPT = {
    "operators": [
        {"name": "stateStoreSave", "rows": 21, "bytes": 8416, "tooLate": 2},
        {"name": "dedupeWithinWatermark", "rows": 5, "bytes": 900, "tooLate": 1},
    ],
    "eventTimeWatermark": "2026-01-01T12:00:00.000Z",
}


def test_heartbeat_says_what_stateful_operators_hold() -> None:
    kept = Heartbeat.parse({"queryState": KEPT}).query_state
    assert kept is not None
    assert kept.to_json() == KEPT
    assert (kept.rows, kept.bytes, kept.too_late) == (26, 9316, 3)


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        {"operators": "x"},
        {"operators": [{"name": "x", "rows": -1}]},
        {"operators": [{"rows": 1}]},
        {"operators": [], "eventTimeWatermark": "yesterday"},
    ],
)
def test_a_query_state_of_an_unexpected_form_is_missing(given: Any) -> None:
    assert Heartbeat.parse({"queryState": given}).query_state is None


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, None),
        ({"stateOperators": []}, None),
        ({"stateOperators": "x", "eventTime": 7}, None),
        ({"stateOperators": [{}]}, QueryState((OperatorState("unknown"),))),
        (
            {
                "stateOperators": [
                    {"operatorName": "dedupe", "numRowsTotal": 3, "memoryUsedBytes": -1},
                    7,
                ],
                "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
            },
            QueryState((OperatorState("dedupe", rows=3, too_late=9),)),
        ),
    ],
    ids=["nothing", "no state", "another form", "no values", "no row yet"],
)
def test_a_querys_state_is_read_from_sparks_progress(
    given: dict[str, Any], state: QueryState | None
) -> None:
    dropped = (9,) if state and state.rows else ()
    assert query_state_of(given, dropped) == state


def progress(*sources: Any) -> dict[str, Any]:
    return {"progress": {"sources": list(sources)}}


def files(unread: Any) -> dict[str, Any]:
    return {"metrics": {"numFilesOutstanding": unread, "numBytesOutstanding": "900"}}


def kafka(newest: Any, read: Any) -> dict[str, Any]:
    # Spark's own metrics tell of the worst partition, and of the average.
    metrics = {"maxOffsetsBehindLatest": "12", "avgOffsetsBehindLatest": "7.5"}
    return {"latestOffset": newest, "endOffset": read, "metrics": metrics}


NEWEST, READ = {"t": {"0": 20, "1": 13}, "u": {"0": 5}}, {"t": {"0": 8, "1": 10}, "u": {"0": 5}}


@pytest.mark.parametrize(
    ("document", "behind"),
    [
        (progress(kafka(NEWEST, READ)), 15.0),
        (progress(kafka(NEWEST, NEWEST)), 0.0),
        (progress(kafka(NEWEST, {"t": {"0": 20}})), 18.0),  # partitions of which none is read yet
        (progress(kafka(NEWEST, None)), 38.0),
        (progress(kafka(None, READ)), None),
        (progress(kafka({"t": {"0": "many"}}, READ)), None),
        (progress(kafka(17, 12)), None),  # another source's offsets have another form
        (progress(files("3")), 3.0),
        (progress(files("0")), 0.0),
        (progress(kafka(NEWEST, READ), files(3)), 18.0),
        (progress(files("3"), None, "x", {"metrics": {"rows": "3"}}), 3.0),
        (progress(files("many")), None),
        (progress(files(None)), None),
        (progress({}), None),
    ],
)
def test_heartbeat_says_how_far_the_source_is_ahead(
    document: dict[str, Any], behind: float | None
) -> None:
    assert Heartbeat.parse(document).behind == behind


def lance(version: int, index: int | None = None, **behind: float | None) -> dict[str, Any]:
    """Return a Lance source of Spark's progress, at a position of version ``version``."""
    position = {"version": version, "timestamp": 1, "index": index, "snapshot": index is not None}
    form = {"changeFeed": False, "sourceVersion": 1}
    newest = {"version": 20, "timestamp": 9, "index": None, "snapshot": False}
    return {"endOffset": position | form, "latestOffset": newest | form | behind}


BEHIND = {"versionsBehind": 8, "rowsBehind": 900, "secondsBehind": 12.5}


@pytest.mark.parametrize(
    ("document", "behind", "position"),
    [
        (progress(lance(12, **BEHIND)), (900, 8, 12.5), "version 12"),
        (progress(lance(7, 300, **BEHIND)), (900, 8, 12.5), "row 300 of the snapshot of version 7"),
        (progress(lance(12, **BEHIND | {"rowsBehind": None})), (None, 8, 12.5), "version 12"),
        (progress(lance(12)), (None, None, None), "version 12"),
        (
            progress(lance(3, **BEHIND), lance(5, **BEHIND | {"secondsBehind": 99})),
            (1800, 16, 99),
            "version 3; version 5",
        ),
        (progress(lance(12, **BEHIND), kafka(NEWEST, READ)), (915, 8, 12.5), "version 12"),
        (progress(lance(12) | {"latestOffset": None}), (None, None, None), "version 12"),
        (progress(lance(0, **BEHIND)), (900, 8, 12.5), "not begun"),
        (progress(lance(-1, **BEHIND)), (None, 8, 12.5), ""),  # no version has that number
    ],
)
def test_how_far_a_lance_source_is_read(
    document: dict[str, Any], behind: tuple[float | None, ...], position: str
) -> None:
    heartbeat = Heartbeat.parse(document)
    found = (heartbeat.behind, heartbeat.versions_behind, heartbeat.seconds_behind)
    assert (found, heartbeat.position) == (behind, position)
