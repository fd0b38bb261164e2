from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_lance.exceptions import CommitPreemptedError, CommitStateUnknownError
from airflow_provider_lance.protocol import backoff
from airflow_provider_lance.protocol.backoff import Backoff


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note how long each wait would be, at the longest that the jitter allows."""
    waits: list[float] = []
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(backoff, "random", SimpleNamespace(uniform=lambda low, high: high))
    return waits


def test_waits_double_up_to_the_longest_and_the_first_try_waits_for_nothing(
    slept: list[float],
) -> None:
    assert len(list(Backoff(attempts=6, first=0.1, longest=0.5))) == 6
    assert slept == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_one_try_never_waits(slept: list[float]) -> None:
    assert len(list(Backoff(attempts=1))) == 1
    assert slept == []


def test_waits_are_jittered_by_half(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    bounds: list[tuple[float, float]] = []

    def lowest(low: float, high: float) -> float:
        bounds.append((low, high))
        return low

    monkeypatch.setattr(backoff.random, "uniform", lowest)
    list(Backoff(attempts=2, first=0.2))
    assert bounds == [(0.5, 1.0)]
    assert slept == pytest.approx([0.1])


@pytest.mark.usefixtures("slept")
def test_the_last_tries_error_ends_the_loop() -> None:
    tries: list[Exception] = []

    def fail_each_time() -> None:
        for attempt in Backoff(attempts=3):
            attempt.error = OSError(f"number {len(tries) + 1}")
            tries.append(attempt.error)

    with pytest.raises(OSError, match="number 3"):
        fail_each_time()
    assert len(tries) == 3


@pytest.mark.usefixtures("slept")
def test_an_earlier_error_is_forgotten_when_the_last_try_notes_none() -> None:
    tries = 0
    for attempt in Backoff(attempts=2):
        tries += 1
        if tries == 1:
            attempt.error = OSError("once")
    assert tries == 2


def test_backoff_starts_again_at_the_first_wait_when_iterated_again(slept: list[float]) -> None:
    policy = Backoff(attempts=3, first=0.1)
    list(policy)
    list(policy)
    assert slept == pytest.approx([0.1, 0.2, 0.1, 0.2])


@pytest.mark.usefixtures("slept")
@pytest.mark.parametrize(
    ("errors", "tries"),
    [
        ([CommitPreemptedError], 15),
        ([CommitStateUnknownError], 3),
        ([CommitPreemptedError] * 4 + [CommitStateUnknownError], 10),
    ],
)
def test_preempted_tries_count_for_less_where_the_caller_says_so(
    errors: list[type[Exception]], tries: int
) -> None:
    done = 0

    def fail_each_time() -> None:
        nonlocal done
        for attempt in Backoff(attempts=3, preempted=5):
            attempt.error = errors[done % len(errors)]("refused")
            done += 1

    with pytest.raises((CommitPreemptedError, CommitStateUnknownError)):
        fail_each_time()
    assert done == tries
