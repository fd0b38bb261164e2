"""What may happen to a task that streams, done to a real one, and what was seen then."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.airflow import REPOSITORY, Airflow, free_port
from tests.support.processes import QUICK_JAVA
from tests.support.scene import ENDED, Counts, Scene
from tests.support.watch import Driver

PATIENCE = 120.0
"""Seconds in which an event must have had its effect."""


def airflow(home: Path) -> Airflow:
    """Return an Airflow that notices in seconds what takes minutes by default."""
    changes = {
        "AIRFLOW__CORE__PARALLELISM": "8",
        # 300 s, 10 s and 5 s by default.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
        # 30 s by default: a triggerer that died is succeeded by the next.
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        # So that two Airflows can live on one machine.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    return Airflow(home, dags=REPOSITORY / "tests" / "system" / "dags", changes=changes)


@dataclass(frozen=True)
class Before:
    """The stream as it was before the event."""

    run_id: str
    driver: Driver
    attempt: int
    moment: float


@dataclass
class Outcome:
    """What an event did: figures in seconds, states in Airflow's words."""

    event: str
    dag_id: str
    took_effect: bool = False
    settled: bool = False
    drivers_seen: int = 0
    most_drivers: int = 0
    overlap: float = 0.0
    pause: float = 0.0
    successor_commits: float | None = None
    old_driver: str = ""
    old_driver_lived: float = 0.0
    tasks: list[Any] = field(default_factory=list)
    drivers_left: int = 0
    end: tuple[str | None, int] = (None, 0)
    orphans: int = 0
    counts: Counts | None = None
    epochs: int = 0
    epochs_twice: int = 0
    states: list[Any] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """``do`` it; it is ``over`` when its effect is to be seen; ``then`` comes after that."""

    title: str
    do: Callable[[Scene, Before, Outcome], None]
    over: Callable[[Scene, Before], Any]
    then: Callable[[Scene, Before, Outcome], None] = lambda scene, before, outcome: None
    start: Callable[[Scene], Any] = Scene.run


# --- Effects ----------------------------------------------------------------------------------


def next_try(scene: Scene, before: Before) -> bool:
    """Tell whether Airflow has gone on to another try, and rows flow, or has given up."""
    state, attempt = scene.state()
    if state in ENDED:
        return True
    return state in ("running", "deferred") and attempt > before.attempt and scene.flows()


def successor(scene: Scene, before: Before) -> bool:
    """Tell whether another driver commits, or the task has ended."""
    return len(others(scene, before)) >= 3 or scene.state()[0] in ENDED


def others(scene: Scene, before: Before) -> list[float]:
    """Return when drivers after the first have committed."""
    return scene.commits(after=before.moment, but=before.run_id)


def gone(scene: Scene, before: Before) -> bool:
    """Tell whether the task has ended and no driver is left."""
    return scene.state()[0] in ENDED and not scene.drivers()


def both_settled(scene: Scene, before: Before) -> bool:
    states = [scene.state(run)[0] for run in scene.runs]
    return successor(scene, before) and sum(state in ENDED for state in states) > 0


# --- Events -----------------------------------------------------------------------------------


def kill_runner(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.runner().signal(signal.SIGKILL)


def kill_supervisor(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.supervisor().signal(signal.SIGKILL)


def kill_driver(scene: Scene, before: Before, outcome: Outcome) -> None:
    before.driver.signal(signal.SIGKILL)


def terminate_worker(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.supervisor().signal(signal.SIGTERM)


def restart_triggerer(sign: signal.Signals) -> Callable[[Scene, Before, Outcome], None]:
    def do(scene: Scene, before: Before, outcome: Outcome) -> None:
        scene.airflow.restart("triggerer", sign)

    return do


def mark_failed(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.mark("failed")


def clear(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.clear()


def clear_after_success(scene: Scene, before: Before, outcome: Outcome) -> None:
    outcome.notes["first end"] = scene.stop()
    scene.clear()


def hang(scene: Scene, before: Before, outcome: Outcome) -> None:
    outcome.notes["epoch"] = stop_in_mid_epoch(scene, before.driver)


def hang_and_succeed(scene: Scene, before: Before, outcome: Outcome) -> None:
    hang(scene, before, outcome)
    scene.run()


def second_run(scene: Scene, before: Before, outcome: Outcome) -> None:
    scene.run()


def stop_in_mid_epoch(scene: Scene, driver: Driver) -> int:
    """SIGSTOP a whole driver while an epoch is planned and not committed; return the epoch."""
    tree = driver.tree()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        epoch = scene.planned()
        if epoch is None:
            time.sleep(0.005)
            continue
        for each in tree:
            each.signal(signal.SIGSTOP)
        # What it had done a moment before the signal is to be seen by now.
        if scene.planned() == epoch and epoch not in [each.epoch_id for each in scene.stamps()]:
            return epoch
        for each in tree:
            each.signal(signal.SIGCONT)
        time.sleep(0.3)
    raise AssertionError("no moment found at which an epoch is planned and not committed")


def wake(scene: Scene, before: Before, outcome: Outcome) -> None:
    """Let the driver that hung go on, if it still lives, and see what it does."""
    outcome.notes["lived when woken"] = any(
        each.key == before.driver.key for each in scene.drivers()
    )
    woken = time.time()
    before.driver.signal(signal.SIGCONT)
    outcome.notes["woken after"] = round(woken - before.moment, 1)
    scene.settle()
    outcome.notes["commits when woken"] = len(scene.commits(after=woken, of=before.run_id))
    outcome.notes["epoch by old driver"] = [
        each.run_id == before.run_id
        for each in scene.stamps()
        if each.epoch_id == outcome.notes["epoch"]
    ]


def still(seconds: float) -> Callable[[Scene, Before], bool]:
    def over(scene: Scene, before: Before) -> bool:
        return time.time() - before.moment > seconds and scene.flows()

    return over


EVENTS = {
    "kill_runner": Event("kill -9 of the task runner", kill_runner, next_try),
    "kill_supervisor": Event("kill -9 of the supervisor", kill_supervisor, next_try),
    "kill_driver": Event("kill -9 of the driver", kill_driver, successor),
    "terminate_worker": Event("SIGTERM to the worker", terminate_worker, successor),
    "restart_triggerer": Event(
        "triggerer restarted by SIGTERM", restart_triggerer(signal.SIGTERM), still(25)
    ),
    "kill_triggerer": Event(
        "triggerer restarted by SIGKILL", restart_triggerer(signal.SIGKILL), still(25)
    ),
    "mark_failed": Event("task marked failed", mark_failed, gone),
    "clear_running": Event("task cleared while it runs", clear, successor),
    "clear_success": Event("task cleared after success", clear_after_success, successor),
    "hang": Event("driver hangs in mid-epoch", hang, successor, wake),
    "hang_elsewhere": Event(
        "driver that nobody can kill hangs in mid-epoch, a task takes over, it wakes",
        hang_and_succeed,
        successor,
        wake,
        start=Scene.submit_by_hand,
    ),
    "two_runs": Event("two DAG runs of one query", second_run, both_settled),
}


def play(airflow: Airflow, folder: Path, dag_id: str, name: str) -> Outcome:
    """Let one event happen to a stream, wait for its effect, end the stream, count the rows."""
    event = EVENTS[name]
    outcome = Outcome(event.title, dag_id)
    with Scene(airflow, folder, dag_id) as scene:
        event.start(scene)
        run_id = scene.flowing()
        attempt = scene.state()[1] if scene.runs else 0
        before = Before(run_id, _newest_driver(scene), attempt, time.time())
        event.do(scene, before, outcome)
        outcome.took_effect = _within(PATIENCE, lambda: event.over(scene, before))
        event.then(scene, before, outcome)
        outcome.settled = scene.settle()
        _look(scene, before, outcome)
        try:
            _finish(scene, outcome)
        except TimeoutError as error:
            outcome.notes["unfinished"] = str(error)
        _count(scene, outcome)
    return outcome


def _newest_driver(scene: Scene) -> Driver:
    """Return the newest driver once all of it is seen: one look at /proc is not of one moment."""

    def whole() -> Driver | None:
        newest = scene.drivers()[-1:]
        return next((each for each in newest if each.jvm and each.python), None)

    driver: Driver = scene.wait("a driver with JVM and Python", whole)
    return driver


def _within(seconds: float, condition: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


def _look(scene: Scene, before: Before, outcome: Outcome) -> None:
    """Note how things stand now that the dust has settled."""
    later = others(scene, before)
    outcome.successor_commits = round(later[0] - before.moment, 1) if later else None
    outcome.most_drivers = scene.timeline.most
    outcome.overlap = round(scene.timeline.overlap, 1)
    outcome.old_driver_lived = round(
        max(at for at, keys in scene.timeline.alive if before.driver.key in keys) - before.moment, 1
    )
    outcome.pause = round(scene.pause(before.moment), 1)
    outcome.runs, outcome.tasks = scene.runs, [scene.state(run) for run in scene.runs]
    living = scene.drivers()
    outcome.drivers_left = len(living)
    if any(driver.key == before.driver.key for driver in living):
        outcome.old_driver = "goes on"
    elif summary := scene.read_summaries().get(before.run_id):
        released = "released" if summary["released"] else "not released"
        outcome.old_driver = f"{summary['error'] or summary['reason']}, {released}"
    else:
        outcome.old_driver = "killed"


def _finish(scene: Scene, outcome: Outcome) -> None:
    """Let the rest of the source arrive and end the stream in order."""
    if not scene.drivers() and scene.state(scene.runs[-1])[0] in ENDED:
        scene.airflow.clear(scene.dag_id, scene.runs[-1], "stream")
    scene.catch_up()
    outcome.end = scene.stop()
    outcome.orphans = 0 if _within(20, lambda: not scene.drivers()) else len(scene.drivers())


def _count(scene: Scene, outcome: Outcome) -> None:
    outcome.counts = scene.count()
    epochs = [each.epoch_id for each in scene.stamps()]
    outcome.epochs, outcome.epochs_twice = len(epochs), len(epochs) - len(set(epochs))
    seen = scene.timeline.alive
    outcome.drivers_seen = len(frozenset().union(*(keys for _, keys in seen)))
    outcome.states = [(round(at - seen[0][0], 1), state) for at, state in scene.timeline.states]


def home_of(name: str) -> Path:
    """Return a fresh folder for one Airflow, outside this repository."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
