"""What one look at a driver means, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import Driver, Owner, OwnerState, StopNote
from airflow_provider_lance.supervision.driver_reports import EndReason, Summary
from airflow_provider_lance.supervision.health import (
    Health,
    Limits,
    StreamState,
    evaluate,
    is_suspect,
)
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.supervision.liveness import DriverObservation
from tests.support.supervised import summary

S = StreamState
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMITS = Limits(start=300, silence=120, stall=600)
IDLE = Heartbeat(NOON.isoformat(), "running", token=3, epoch=7, watermark=7, idle=True)
BUSY = replace(IDLE, idle=False, busy=5.0)
HELD = replace(IDLE, idle=False, busy=590.0)
IN_FLIGHT = Checkpoint("/checkpoint", "id", planned=8, committed=7)
NONE_IN_FLIGHT = Checkpoint("/checkpoint", "id", planned=7, committed=7)


def observation(**changes: Any) -> DriverObservation:
    """Return a look at a driver that is there, beats and waits for data."""
    fields: dict[str, Any] = {
        "launch_id": "mine",
        "launched_at": NOON.isoformat(),
        "alive": True,
        "age": 5000.0,
        "silent": 3.0,
        "heartbeat": IDLE,
    }
    return DriverObservation(**(fields | changes))


def owner(token: int, launch_id: str = "other", **changes: Any) -> Owner:
    driver = Driver("run-9", "id", "/checkpoint", launch_id=launch_id, launched_by="dag/next#1")
    fields: dict[str, Any] = {
        "token": token,
        "state": OwnerState.ACTIVE,
        "generation": 0,
        "driver": driver,
        "time": (NOON + timedelta(minutes=5)).isoformat(),
    }
    return Owner(**(fields | changes))


def note(by: str = "somebody") -> StopNote:
    return StopNote(3, "mine", by)


def failed(error: str) -> Summary:
    return summary(EndReason.FAILED, error=error, message="it broke", released=False)


def stopped(by: str | None, **changes: Any) -> Summary:
    return summary(EndReason.STOPPED, stopped_by=by, **changes)


GONE: dict[str, Any] = {"alive": False}
UNHEARD: dict[str, Any] = {"heartbeat": None, "silent": 0.0}
LATER = owner(1)
EARLIER = owner(1, time=(NOON - timedelta(minutes=5)).isoformat())

TABLE: list[tuple[str, dict[str, Any], StreamState, str]] = [
    # Before the first heartbeat.
    ("launched just now", {**UNHEARD, "age": 4.0}, S.STARTING, "launched 4 s ago"),
    ("launched elsewhere", {**UNHEARD, "age": 4.0, "alive": None}, S.STARTING, "4 s"),
    ("slow to start", {**UNHEARD, "age": 299.0}, S.STARTING, "299 s"),
    ("never heard of", {**UNHEARD, "age": 300.0}, S.STALLED, "no heartbeat in 300 s"),
    ("never seen", {**UNHEARD, "age": 300.0, "alive": None}, S.DEAD, "not visible from here"),
    ("died at its start", {**UNHEARD, "age": 4.0, **GONE}, S.DEAD, "no summary"),
    # All is well.
    ("waits", {}, S.IDLE, "watermark 7"),
    ("waits elsewhere", {"alive": None}, S.IDLE, "watermark 7"),
    (
        "waits for the first rows",
        {"heartbeat": replace(IDLE, watermark=None)},
        S.IDLE,
        "no epoch yet",
    ),
    ("works", {"heartbeat": BUSY}, S.RUNNING, "watermark 7"),
    ("works long", {"heartbeat": replace(BUSY, busy=40.0)}, S.RUNNING, "one epoch for 43 s"),
    ("was asked", {"heartbeat": replace(BUSY, state="stopping")}, S.STOPPING, "finishes its epoch"),
    ("quiet for a moment", {"silent": 44.0}, S.IDLE, "watermark 7"),
    ("quiet, but there", {"silent": 45.0}, S.NOT_RESPONDING, "for 45 s, although its process runs"),
    ("quiet in an epoch", {"heartbeat": BUSY, "silent": 130.0}, S.NOT_RESPONDING, "for 130 s"),
    ("suspended", {"suspended": True}, S.NOT_RESPONDING, "(SIGSTOP) has stopped its process"),
    (
        "suspended for long",
        {"suspended": True, "silent": 120.0},
        S.STALLED,
        "(SIGSTOP) has stopped its process, no heartbeat for 120 s",
    ),
    (
        "says that it ends",
        {"heartbeat": replace(IDLE, state="ended"), "silent": 50.0},
        S.IDLE,
        "watermark 7",
    ),
    # An epoch that does not end, or a driver that hangs.
    (
        "one epoch for too long",
        {"heartbeat": HELD, "silent": 10.0, "checkpoint": IN_FLIGHT},
        S.STALLED,
        "epoch 8 is planned and not committed for 600 s",
    ),
    (
        "not quite too long",
        {"heartbeat": HELD, "silent": 9.0, "checkpoint": IN_FLIGHT},
        S.RUNNING,
        "599 s",
    ),
    (
        "the checkpoint cannot be read",
        {"heartbeat": HELD, "silent": 10.0, "checkpoint": None},
        S.STALLED,
        "epoch unknown",
    ),
    (
        "busy without an epoch",
        {"heartbeat": HELD, "silent": 10.0, "checkpoint": NONE_IN_FLIGHT},
        S.RUNNING,
        "600 s",
    ),
    (
        "silent here",
        {"silent": 600.0, "checkpoint": NONE_IN_FLIGHT},
        S.STALLED,
        "no heartbeat for 600 s, although its process runs",
    ),
    ("silent elsewhere", {"silent": 120.0, "alive": None}, S.DEAD, "not visible from here"),
    (
        "nearly silent elsewhere",
        {"silent": 119.0, "alive": None},
        S.NOT_RESPONDING,
        "no heartbeat for 119 s",
    ),
    (
        "held elsewhere",
        {"heartbeat": HELD, "silent": 10.0, "alive": None, "checkpoint": IN_FLIGHT},
        S.STALLED,
        "epoch 8",
    ),
    # The process is gone.
    ("no word", GONE, S.DEAD, "watermark 7"),
    ("killed", {**GONE, "exit_status": -9}, S.DEAD, "signal 9"),
    ("ended badly", {**GONE, "exit_status": 1}, S.DEAD, "exit status 1"),
    ("in mid-epoch", {**GONE, "checkpoint": IN_FLIGHT}, S.DEAD, "epoch 8 in flight"),
    ("ended well, never heard", {**UNHEARD, **GONE, "exit_status": 0}, S.FINISHED, "be read from"),
    (
        "ended well, and said so",
        {**GONE, "exit_status": 0, "heartbeat": replace(IDLE, state="ended")},
        S.FINISHED,
        "cannot be read from here",
    ),
    # Untracked, spark-submit may end well however its driver ended.
    (
        "ended well in mid-work",
        {**GONE, "exit_status": 0, "heartbeat": BUSY},
        S.DEAD,
        "exit status 0",
    ),
    # The last word outweighs whatever else is seen.
    ("finished", {**GONE, "summary": summary()}, S.FINISHED, "watermark 4"),
    (
        "finished, and succeeded by another",
        {**GONE, "summary": summary(), "owner": owner(4), "stop_note": note()},
        S.FINISHED,
        "watermark 4",
    ),
    ("finished, not gone yet", {"summary": summary(), "silent": 9999.0}, S.FINISHED, "watermark 4"),
    ("failed for good", {"summary": failed("SpecError")}, S.FAILED, "SpecError: it broke"),
    # Another owner.
    ("fenced", {"owner": owner(4)}, S.FENCED, "dag/next#1 owns the query with token 4"),
    ("fenced and gone", {**GONE, "owner": owner(4), "stop_note": note()}, S.FENCED, "token 4"),
    ("an owner before it", {"owner": owner(2)}, S.IDLE, "watermark 7"),
    ("it owns the query", {"owner": owner(4, "mine")}, S.IDLE, "watermark 7"),
    ("it said that it was fenced", {"summary": failed("FencedError")}, S.FENCED, "it broke"),
    ("fenced before its claim", {**UNHEARD, "age": 9.0, "owner": LATER}, S.FENCED, "token 1"),
    (
        "fenced, no token in its heartbeat",
        {"heartbeat": replace(IDLE, token=None), "owner": LATER},
        S.FENCED,
        "token 1",
    ),
    ("an owner before its launch", {**UNHEARD, "age": 9.0, "owner": EARLIER}, S.STARTING, "9 s"),
    (
        "an owner that released",
        {**UNHEARD, "age": 9.0, "owner": replace(LATER, state=OwnerState.RELEASED)},
        S.STARTING,
        "9 s",
    ),
    (
        "an owner without a readable time",
        {**UNHEARD, "age": 9.0, "owner": replace(LATER, time="noon")},
        S.STARTING,
        "9 s",
    ),
]

RESTARTED = [
    "never heard of",
    "never seen",
    "died at its start",
    "one epoch for too long",
    "the checkpoint cannot be read",
    "silent here",
    "suspended for long",
    "silent elsewhere",
    "held elsewhere",
    "no word",
    "killed",
    "ended badly",
    "in mid-epoch",
    "ended well in mid-work",
]


@pytest.mark.parametrize(("name", "changes", "state", "word"), TABLE, ids=[r[0] for r in TABLE])
def test_each_observation_has_its_state(
    name: str, changes: dict[str, Any], state: StreamState, word: str
) -> None:
    health = evaluate(observation(**changes), LIMITS)
    assert (health.state, health.restartable) == (state, name in RESTARTED)
    assert health.asked_by is None
    assert word in health.reason
    assert str(health) == f"{state.value}: {health.reason}"


@pytest.mark.parametrize(
    ("changes", "state", "asked_by", "word"),
    [
        ({"summary": stopped("dag/a#1")}, S.STOPPED, "dag/a#1", "by dag/a#1, watermark 4"),
        ({"summary": stopped(None)}, S.STOPPED, "", "asked to, watermark 4"),
        (
            {"summary": stopped("x", released=False, message="epoch 5 hung")},
            S.STOPPED,
            "x",
            ": epoch 5 hung",
        ),
        ({**GONE, "stop_note": note("x")}, S.STOPPED, "x", "by x, and killed"),
        ({**GONE, "stop_note": note(""), "exit_status": -9}, S.STOPPED, "", "to, and killed"),
        (
            {"heartbeat": HELD, "silent": 10.0, "checkpoint": IN_FLIGHT, "stop_note": note("x")},
            S.STALLED,
            "x",
            "for 600 s; last heartbeat 2026-01-01T12:00:00+00:00, watermark 7; it was asked",
        ),
        ({"alive": None, "silent": 120.0, "stop_note": note("")}, S.DEAD, "", "asked to stop"),
        ({**UNHEARD, "age": 300.0, "stop_note": note("x")}, S.STALLED, "x", "to stop by x"),
        (
            {**UNHEARD, "age": 300.0, "alive": None, "stop_note": note("")},
            S.DEAD,
            "",
            "; it was asked",
        ),
    ],
)
def test_driver_that_was_asked_to_stop_is_not_restartable(
    changes: dict[str, Any], state: StreamState, asked_by: str, word: str
) -> None:
    health = evaluate(observation(**changes), LIMITS)
    assert (health.state, health.restartable, health.asked_by) == (state, False, asked_by)
    assert word in health.reason


@pytest.mark.parametrize(
    ("error", "restartable"),
    [
        ("SpecError", False),
        ("CheckpointMismatchError", False),
        ("StorageUnavailableError", True),
        ("CommitStateUnknownError", True),
        ("Py4JJavaError", True),
    ],
)
def test_failed_driver_is_restartable_by_its_error(error: str, restartable: bool) -> None:
    health = evaluate(observation(**GONE, summary=failed(error)), LIMITS)
    assert health == Health(S.FAILED, f"{error}: it broke", restartable)


def test_every_state_has_its_row() -> None:
    assert {row[2] for row in TABLE} | {S.STOPPED} == set(StreamState)


def test_each_state_goes_on_or_ended_or_is_lost() -> None:
    ended = {state for state in StreamState if state.ended}
    lost = {state for state in StreamState if state.lost}
    assert ended == {S.FENCED, S.FAILED, S.FINISHED, S.STOPPED}
    assert lost == {S.STALLED, S.DEAD}


@pytest.mark.parametrize(
    ("changes", "suspect"),
    [
        ({}, False),
        ({"alive": None}, False),
        ({"heartbeat": BUSY}, False),
        ({"heartbeat": HELD, "silent": 9.0}, False),
        ({"heartbeat": HELD, "silent": 10.0}, True),
        ({"silent": 119.0}, False),
        ({"silent": 120.0}, True),
        (GONE, True),
        ({**GONE, "summary": summary()}, False),
        ({**UNHEARD, "age": 299.0}, False),
        ({**UNHEARD, "age": 300.0}, True),
        ({**UNHEARD, "age": 1.0, **GONE}, True),
    ],
)
def test_observation_is_suspect_when_process_or_heartbeat_says_so(
    changes: dict[str, Any], suspect: bool
) -> None:
    assert is_suspect(observation(**changes), LIMITS) is suspect


@pytest.mark.parametrize("years", [-30, 30])
def test_a_drivers_clock_may_be_wrong(years: int) -> None:
    now = NOON + timedelta(days=365 * years)
    beat = {"state": "running", "driver": {"token": 3}, "sink": {"watermark": 7}}
    idle = Heartbeat.parse({**beat, "time": now.isoformat(), "busySince": None})
    busy = Heartbeat.parse(
        {**beat, "time": now.isoformat(), "busySince": (now - timedelta(seconds=590)).isoformat()}
    )
    assert evaluate(observation(heartbeat=idle), LIMITS).state is S.IDLE
    assert evaluate(observation(heartbeat=busy, silent=9.0), LIMITS).state is S.RUNNING
    assert (
        evaluate(observation(heartbeat=busy, silent=10.0, checkpoint=IN_FLIGHT), LIMITS).state
        is S.STALLED
    )
    skewed = owner(4, time=now.isoformat())
    assert evaluate(observation(heartbeat=idle, owner=skewed), LIMITS).state is S.FENCED
    assert (
        evaluate(observation(heartbeat=idle, owner=replace(skewed, token=3)), LIMITS).state
        is S.IDLE
    )


seconds = st.floats(0, 2000)
pulses = st.builds(
    lambda busy, state: replace(IDLE, busy=busy, idle=busy == 0, state=state),
    busy=st.just(0.0) | seconds,
    state=st.sampled_from(["running", "stopping", "ended"]),
)
sights = st.builds(
    observation,
    alive=st.sampled_from([True, False, None]),
    age=seconds,
    silent=seconds,
    heartbeat=st.none() | pulses,
    summary=st.none()
    | st.sampled_from([summary(), stopped("x"), failed("SpecError"), failed("FencedError")]),
    exit_status=st.sampled_from([None, 0, 1, -9]),
    checkpoint=st.sampled_from([None, IN_FLIGHT, NONE_IN_FLIGHT]),
    owner=st.none() | st.builds(owner, st.integers(1, 6), st.sampled_from(["mine", "other"])),
    stop_note=st.none() | st.builds(note, st.sampled_from(["", "x"])),
)


@given(sights)
def test_a_launch_with_a_newer_owner_is_never_healthy(seen: DriverObservation) -> None:
    newer = owner(IDLE.token + 1 if IDLE.token else 0)
    seen = replace(seen, summary=None, heartbeat=seen.heartbeat or IDLE, owner=newer)
    assert evaluate(seen, LIMITS).state is S.FENCED


@given(sights, st.sampled_from([True, None]))
def test_a_driver_that_lives_and_beats_and_waits_is_never_lost(
    seen: DriverObservation, alive: bool | None
) -> None:
    unended = replace(seen, summary=None, alive=alive, heartbeat=IDLE, owner=None)
    seen = replace(unended, silent=min(seen.silent, 119.0))
    expected = S.IDLE if seen.silent < 45 else S.NOT_RESPONDING
    assert evaluate(seen, LIMITS).state is expected


@given(sights)
def test_observation_that_is_not_suspect_is_never_lost(seen: DriverObservation) -> None:
    """What heartbeat and process do not call suspect needs no other evidence."""
    plain = replace(seen, checkpoint=None, owner=None, stop_note=None)
    if not is_suspect(plain, LIMITS):
        health = evaluate(plain, LIMITS)
        assert not health.state.lost
        assert health.state.ended is (plain.summary is not None)


@given(sights)
def test_only_what_failed_or_was_lost_is_replaced(seen: DriverObservation) -> None:
    health = evaluate(seen, LIMITS)
    if health.restartable:
        assert health.state.lost or health.state is S.FAILED
        assert health.asked_by is None
