"""Bytes of a task's log beside those of its driver: `python -m benchmarks.task_log --epochs 1000`.

Runs one real driver with small epochs, started as the operator starts it, and watches it as a task
does. A line of the task's log is counted as Airflow writes it, as JSON. ``perDay`` is what the
epochs' lines come to in a day, without start and stop, where there were two minutes of them. The
dataset is in TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.backends.submit import plan_launch, start_driver
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.stream import LanceStreamOperator
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig, SupervisionLoop

ME = "benchmark/task_log/run/-1#1"


class _Counter(logging.Handler):
    """Counts lines in the form of Airflow's task log."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = {
            "timestamp": "2026-01-01T00:00:00.000000Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": "airflow.task.operators.airflow_provider_lance.operators.stream."
            "LanceStreamOperator",
            "filename": record.filename,
            "lineno": record.lineno,
        }
        self.bytes += len(json.dumps(line)) + 1
        self.lines += 1


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments().parse_args(words)
    os.environ["AIRFLOW_CONN_TASK_LOG"] = json.dumps({"conn_type": "spark", "host": "local[1]"})
    with tempfile.TemporaryDirectory(prefix="task-log-") as folder:
        print(json.dumps(measure(Path(folder), given.epochs, given.trigger)))
    return 0


def measure(root: Path, epochs: int, trigger: str) -> dict[str, Any]:
    """Run a driver for so many epochs; return what it and its task wrote."""
    counter, log = _Counter(), logging.getLogger("task_log")
    log.addHandler(counter)
    log.setLevel(logging.INFO)
    log.propagate = False
    launch = _start(root, trigger)
    try:
        return _watched(root, launch, counter, log, epochs)
    finally:
        launch.driver.kill()


def _watched(
    root: Path, launch: Launch, counter: _Counter, log: logging.Logger, epochs: int
) -> dict[str, Any]:
    watch = SupervisionLoop(
        SupervisionConfig(launch=launch, task_key=ME, lance_conn_id=None), log, LanceHook(None)
    )
    first: tuple[float, int] | None = None
    outcome, seen, asked = None, 0, False
    took = grown = 0.0
    while outcome is None:
        outcome = watch.step()
        seen = (watch.supervisor.heartbeat_json or {}).get("sink", {}).get("epochs") or seen
        if seen and first is None:
            first = (time.monotonic(), counter.bytes)
        if seen >= epochs and first and not asked:
            took, grown = time.monotonic() - first[0], counter.bytes - first[1]
            asked = launch.driver.stop("the benchmark")
        time.sleep(5 if outcome is None else 0)
    watch.conclude(outcome)
    written = sum(path.stat().st_size for path in root.rglob("driver.log*"))
    return {
        "epochs": seen,
        "seconds": round(took),
        "taskLogBytes": counter.bytes,
        "taskLogLines": counter.lines,
        "driverLogBytes": written,
        "perDay": round(grown / took * 86_400) if took > 120 else None,
    }


def _start(root: Path, trigger: str) -> Launch:
    operator = LanceStreamOperator(
        task_id="task_log",
        uri=str(root / "dataset.lance"),
        query_id="task_log",
        checkpoint_location=str(root / "checkpoint"),
        source={"format": "rate-micro-batch", "options": {"rowsPerBatch": "10"}},
        trigger=trigger,
        sink_options={"createIfMissing": True},
        lance_conn_id=None,
        spark_conn_id="task_log",
        conf={"spark.ui.enabled": False},
    )
    spec = operator.job_spec(ME)
    driver = start_driver(spec, operator.submission(), root / "drivers")
    return replace(plan_launch(spec, ""), driver=driver)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.task_log", description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--trigger", default="0 seconds", help="as the operator takes it")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
