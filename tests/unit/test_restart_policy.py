"""When a lost driver is replaced: bounds, waits, and what makes both begin anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.supervision.restart_policy import RestartHistory, RestartPolicy

POLICY = RestartPolicy(most=3, first=10, longest=300, healthy=600)


def lost(
    restarts: RestartHistory, watermark: int | None = None, lived: float = 1.0
) -> RestartHistory:
    return restarts.lost(POLICY, watermark=watermark, lived=lived)


def after(count: int, **changes: Any) -> RestartHistory:
    """Return what is left of drivers that were lost one after another, without progress."""
    restarts = RestartHistory(**changes)
    for _ in range(count):
        restarts = lost(restarts).next()
    return restarts


def test_restarts_without_progress_are_bounded() -> None:
    assert [after(count).may_restart(POLICY) for count in range(5)] == [
        *[True] * 3,
        *[False] * 2,
    ]
    assert after(4).total == 4


def test_no_restarts_at_all() -> None:
    assert not RestartHistory().may_restart(RestartPolicy(most=0))


def test_an_epoch_is_progress() -> None:
    restarts = lost(after(3), watermark=0)
    assert restarts == RestartHistory(total=3, fruitless=0, step=3, watermark=0)
    assert restarts.may_restart(POLICY)


@pytest.mark.parametrize("watermark", [None, -1, 4, 5])
def test_the_same_epoch_again_is_none(watermark: int | None) -> None:
    restarts = after(3, watermark=5)
    assert lost(restarts, watermark=watermark) == restarts, "an older watermark takes nothing away"
    assert not lost(restarts, watermark=watermark).may_restart(POLICY)


@pytest.mark.parametrize(("lived", "healthy"), [(599.9, False), (600.0, True), (9e9, True)])
def test_a_driver_that_lived_long_is_progress(lived: float, healthy: bool) -> None:
    before = after(3, watermark=5)
    now = lost(before, lived=lived)
    assert (now.fruitless, now.step) == ((0, 0) if healthy else (3, 3))
    assert (now.total, now.watermark) == (3, 5)


@pytest.mark.parametrize("step", range(8))
def test_waits_double_and_are_jittered(step: int) -> None:
    full = [10, 20, 40, 80, 160, 300, 300, 300][step]
    waits = [RestartHistory(step=step).delay(POLICY) for _ in range(300)]
    assert all(full / 2 <= wait <= full for wait in waits)
    assert min(waits) < 0.6 * full
    assert max(waits) > 0.9 * full


def test_waits_go_on_doubling_while_epochs_land_between_crashes() -> None:
    restarts = RestartHistory()
    for watermark in range(4):
        restarts = lost(restarts, watermark=watermark).next()
    assert (restarts.fruitless, restarts.step) == (1, 4)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1, 1e3))
def test_no_wait_is_out_of_bounds(step: int, first: float, factor: float) -> None:
    policy = RestartPolicy(first=first, longest=first * factor)
    assert first / 2 <= RestartHistory(step=step).delay(policy) <= policy.longest


@given(st.lists(st.tuples(st.none() | st.integers(-1, 9), st.floats(0, 1200)), max_size=30))
def test_restart_counts_stay_within_the_total(losses: list[tuple[int | None, float]]) -> None:
    restarts = RestartHistory()
    for watermark, lived in losses:
        before = restarts
        restarts = lost(restarts, watermark, lived).next()
        assert restarts.total == before.total + 1
        assert 1 <= restarts.fruitless <= restarts.step <= restarts.total
        assert restarts.watermark >= before.watermark


@pytest.mark.parametrize(
    "changes",
    [
        {"most": -1},
        {"first": 0},
        {"first": -1},
        {"first": 301},
        {"healthy": 0},
        {"healthy": float("nan")},
        {"first": float("nan")},
    ],
)
def test_a_policy_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"(max_restarts|restart_delay|healthy_after) must be"):
        RestartPolicy(**changes)


def test_restart_history_is_the_same_after_json() -> None:
    restarts = lost(after(2), watermark=7).next()
    assert RestartHistory.from_json(json.loads(json.dumps(restarts.to_json()))) == restarts
