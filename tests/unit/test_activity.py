"""Since when a query is busy, told from Spark's status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_lance.spark import heartbeat as activity
from airflow_provider_lance.spark.heartbeat import Activity

IDLE, WORK = ("Waiting for data to arrive", False), ("Getting offsets", True)


class Status:
    """A status of Spark's: two with the same words are still two."""

    def __init__(self, message: str, active: bool) -> None:
        self._text = json.dumps({"message": message, "isTriggerActive": active})

    def json(self) -> str:
        return self._text


class Query:
    """Stands at one status until it is moved."""

    def __init__(self) -> None:
        self._jsq, self.now = self, Status("Initializing sources", False)

    def status(self) -> Status:
        return self.now


@pytest.fixture
def query() -> Any:
    return Query()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the moments at which something began."""
    ticks = iter(range(100))
    monkeypatch.setattr(activity, "utc_now", lambda: f"moment {next(ticks)}")


def test_a_query_between_two_triggers_is_not_busy(query: Any) -> None:
    watched = Activity()
    query.now = Status(*IDLE)
    watched.look(query)
    assert watched.since is None


def test_activity_keeps_the_time_at_which_its_step_was_first_seen(query: Any) -> None:
    watched = Activity()
    query.now = Status(*WORK)
    for _ in range(3):
        watched.look(query, "progress")
        assert watched.since == "moment 0"


def test_same_status_in_the_next_trigger_starts_a_new_activity(query: Any) -> None:
    watched = Activity()
    for moment in range(3):
        query.now = Status(*WORK)
        watched.look(query)
        assert watched.since == f"moment {moment}"


def test_progress_within_a_step_starts_a_new_activity(query: Any) -> None:
    watched = Activity()
    query.now = Status(*WORK)
    for moment, epoch in enumerate((None, 0, 1)):
        watched.look(query, epoch)
        assert watched.since == f"moment {moment}"


def test_a_query_that_connects_to_its_sources_is_busy_before_its_first_trigger(query: Any) -> None:
    watched = Activity()
    watched.look(query)
    watched.look(query)
    assert watched.since == "moment 0"
    query.now = Status("Waiting for next trigger", False)
    watched.look(query)
    assert watched.since is None
