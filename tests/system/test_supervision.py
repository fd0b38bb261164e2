"""What may happen to a task that streams, done to a real one: Airflow, Spark, a dataset.

Whatever happens, each row of the source is in the dataset once, counted without the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.airflow import Airflow
from tests.system.compare import ours
from tests.system.scenarios import Outcome, airflow, play

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

Play = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with airflow(tmp_path_factory.mktemp("airflow")) as running:
        yield running


@pytest.fixture
def play_out(running: Airflow, tmp_path: Path) -> Play:
    """Play an event; what holds after each of them is asserted here."""

    def play_out(name: str, dag_id: str = "") -> Outcome:
        folder = tmp_path / f"{name}-{dag_id or 'ours'}"
        outcome = play(running, folder, dag_id or ours(name), name)
        assert outcome.took_effect, outcome
        assert outcome.settled, outcome
        assert "unfinished" not in outcome.notes, outcome
        assert outcome.counts is not None
        assert outcome.counts.exact, outcome
        assert outcome.counts.rows_in > 0
        assert outcome.epochs_twice == 0, outcome
        # In the end the stream was asked to stop: its task succeeds, and nothing is left behind.
        assert outcome.end[0] == "success", outcome
        assert running.xcom(outcome.dag_id, outcome.runs[-1], "stream")["reason"] == "stopped"
        assert outcome.orphans == 0, outcome
        return outcome

    return play_out


@pytest.mark.parametrize("name", ["kill_runner", "kill_supervisor"])
def test_the_driver_outlives_the_process_that_watches_it(play_out: Play, name: str) -> None:
    outcome = play_out(name)
    assert outcome.old_driver == "goes on"
    assert outcome.most_drivers == 1
    assert outcome.tasks == [("running", 2)]


@pytest.mark.parametrize(
    ("dag_id", "state"), [("stream_ours", "deferred"), ("stream_ours_worker", "running")]
)
def test_a_driver_that_was_killed_is_replaced_within_the_same_try(
    play_out: Play, dag_id: str, state: str
) -> None:
    outcome = play_out("kill_driver", dag_id)
    assert outcome.old_driver == "killed"
    assert outcome.successor_commits is not None
    assert outcome.most_drivers == 1
    assert outcome.tasks == [(state, 1)]


def test_a_worker_that_is_shut_down_ends_its_driver_in_order(play_out: Play) -> None:
    outcome = play_out("terminate_worker")
    assert outcome.old_driver == "stopped, released"
    assert outcome.most_drivers == 1
    assert outcome.successor_commits is not None
    assert outcome.tasks == [("running", 2)]


@pytest.mark.parametrize("name", ["restart_triggerer", "kill_triggerer"])
def test_a_stream_does_not_notice_that_the_triggerer_restarts(play_out: Play, name: str) -> None:
    outcome = play_out(name)
    assert outcome.old_driver == "goes on"
    assert outcome.most_drivers == 1
    assert outcome.successor_commits is None
    assert outcome.tasks == [("deferred", 1)]


def test_a_task_marked_failed_ends_its_driver_in_order(play_out: Play) -> None:
    outcome = play_out("mark_failed")
    assert outcome.old_driver == "stopped, released"
    assert outcome.tasks[0][0] == "failed"
    assert outcome.drivers_left == 0


def test_a_task_cleared_while_it_streams_goes_on_with_a_new_driver(play_out: Play) -> None:
    outcome = play_out("clear_running")
    assert outcome.old_driver == "stopped, released"
    assert outcome.most_drivers == 1
    assert outcome.successor_commits is not None
    assert outcome.tasks[0][0] == "deferred"


def test_a_task_cleared_after_success_goes_on_where_it_ended(play_out: Play) -> None:
    outcome = play_out("clear_success")
    assert outcome.notes["first end"][0] == "success"
    assert outcome.old_driver == "stopped, released"
    assert outcome.successor_commits is not None
    assert outcome.tasks[0][0] == "deferred"


def test_a_driver_that_hangs_in_mid_epoch_is_killed_and_replaced(play_out: Play) -> None:
    outcome = play_out("hang")
    assert outcome.old_driver == "killed"
    assert outcome.notes["lived when woken"] is False
    assert outcome.notes["epoch by old driver"] == [False]
    assert outcome.tasks == [("deferred", 1)]


def test_unreachable_hung_driver_is_fenced_when_it_wakes(play_out: Play) -> None:
    """No task knows of the first driver, so nobody kills it: only the dataset keeps it out."""
    outcome = play_out("hang_elsewhere")
    assert outcome.notes["lived when woken"] is True
    assert outcome.old_driver == "FencedError, not released"
    assert outcome.notes["commits when woken"] == 0
    assert outcome.notes["epoch by old driver"] == [False]
    assert outcome.tasks == [("deferred", 1)]


def test_of_two_dag_runs_the_newer_owns_the_query(running: Airflow, play_out: Play) -> None:
    outcome = play_out("two_runs")
    # Whether our fence or Spark's own log finds the older driver out first is a matter of luck.
    assert outcome.old_driver.startswith(("FencedError", "StreamingQueryException"))
    (older, tries), newer = outcome.tasks
    assert (older, newer) == ("failed", ("deferred", 1))
    log = running.task_log(ours("two_runs"), outcome.runs[0], "stream", tries)
    assert "fenced" in log.lower()
    assert outcome.most_drivers == 2
    assert outcome.drivers_left == 1
