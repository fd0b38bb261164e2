"""Which lines of a driver's log its task shows."""

from __future__ import annotations

import json

import pytest

from airflow_provider_lance.triggers.task_log import Warnings

INFO = "26/11/22 10:00:00 INFO MicroBatchExecution: Streaming query made progress: {"
WARN = "26/11/22 10:00:00 WARN ProcessingTimeExecutor: Current batch is falling behind. 3123 ms"


def shown(*lines: str) -> list[str]:
    keep = Warnings()
    return [said for line in lines if (said := keep(line)) is not None]


def test_progress_and_what_spark_reports_is_not_shown() -> None:
    assert shown("spark-submit says", INFO, '  "id" : 1,', "}", INFO) == []


@pytest.mark.parametrize(
    "line",
    [
        WARN,
        "26/11/22 10:00:00 ERROR Executor: Exception in task 0.0",
        "2026-11-22 10:00:00,123 WARNING Heartbeat not written. error=x",
        "2026-11-22T10:00:00.123Z ERROR Executor: x",
        'Exception in thread "main" org.apache.spark.SparkException: Master must',
        json.dumps({"ts": "2026-11-22T10:00:00Z", "level": "ERROR", "msg": "x", "logger": "l"}),
        json.dumps({"ts": "2026-11-22T10:00:00Z", "level": "WARN", "msg": "x" * 3000})[:2000],
    ],
)
def test_warnings_and_errors_of_each_format_are_shown(line: str) -> None:
    assert shown(INFO, line, INFO) == [line]


def test_what_follows_an_error_is_shown_within_bounds() -> None:
    error = "26/11/22 10:00:00 ERROR Executor: x"
    trace = ["java.lang.IllegalStateException: x", *(f"\tat frame{n}" for n in range(200))]
    summary = '{"launchId": "launch", "reason": "failed"}'
    assert shown(INFO, error, *trace, summary, INFO, "after info") == [
        error,
        *trace[:6],
    ]
    ours = "2026-11-22 10:00:00,123 ERROR The query failed. UserFunctionError: x"
    assert shown(ours, *trace) == [ours, *trace[:60]]


def test_a_python_trace_is_shown() -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: x"]
    assert shown("printed by the user", *trace) == trace


def test_a_warning_that_repeats_is_shown_three_times_and_then_counted() -> None:
    lines = [f"26/11/22 10:00:00 WARN Executor: behind by {n} ms" for n in range(1234)]
    found = shown(*lines)
    assert found[:3] == lines[:3]
    assert found[3:] == [
        f"{lines[9]} (10 times by now)",
        f"{lines[99]} (100 times by now)",
        f"{lines[999]} (1000 times by now)",
    ]


def test_another_warning_is_shown_beside_one_that_repeats() -> None:
    other = "26/11/22 10:00:00 WARN TaskSetManager: Lost task 0.0"
    assert shown(*[WARN] * 50, other)[-1] == other
