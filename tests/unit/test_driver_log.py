"""What a driver's log says of its end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.supervision.driver_log import last_error, summary_in
from airflow_provider_lance.supervision.driver_reports import EndReason
from airflow_provider_lance.triggers.task_log import Warnings
from tests.support.supervised import summary

INFO = "26/11/22 10:00:00 INFO SparkContext: Running"
HOOK = "26/11/22 10:00:01 INFO ShutdownHookManager: Shutdown hook called"
CERTAIN = [
    'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or '
    "start with spark, k8s, or local",
    "Error: Failed to load class org.example.Main.",
    "JAVA_HOME is not set",
    "/opt/spark/bin/spark-submit: line 27: /bin/spark-class: No such file or directory",
    "Unrecognized option: --exotic",
    "ModuleNotFoundError: No module named 'lance'",
    "airflow_provider_lance.exceptions.SpecError: no such option",
    "SpecError: the specification cannot be read",
]
PASSING = [
    'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: a#b;1]',
    "26/11/22 10:00:00 ERROR SparkContext: Error initializing SparkContext.",
    "airflow_provider_lance.exceptions.StorageUnavailableError: no answer",
    "java.net.ConnectException: Connection refused",
    json.dumps({"ts": "2026", "level": "ERROR", "msg": "no executors"}),
]


@pytest.mark.parametrize("line", CERTAIN)
def test_error_of_a_mistake_in_the_driver_log_is_a_spec_error(line: str) -> None:
    found = last_error(f"{INFO}\n{line}\n\tat org.apache.spark.Main\n{HOOK}\n")
    assert found
    assert found.error == "SpecError"
    assert found.message in line


@pytest.mark.parametrize("line", PASSING)
def test_any_other_error_in_the_driver_log_has_no_class(line: str) -> None:
    found = last_error(f"{INFO}\n{line}\n\tat org.apache.spark.Main\n{HOOK}\n")
    assert found
    assert found.error == ""


def test_newest_error_in_the_driver_log_is_returned() -> None:
    found = last_error("\n".join(["ValueError: first", INFO, "TypeError: last", INFO]))
    assert found
    assert found.message == "TypeError: last"


@pytest.mark.parametrize("text", ["", INFO, "{", '{"level": "INFO"}', "x" * 5000])
def test_log_without_an_error_gives_none(text: str) -> None:
    assert last_error(text) is None


def test_the_summary_of_this_launch_is_read() -> None:
    other = summary(EndReason.FAILED, launch_id="other", message="of another")
    ours = summary(EndReason.FAILED, launch_id="launch", error="SpecError", message="x" * 9000)
    lines = [json.dumps(each.to_json()) for each in (other, ours)]
    text = "\n".join([INFO, *lines, "{launch", '{"launchId": "launch"}', HOOK])
    assert summary_in(text, "launch") == ours
    assert summary_in(text, "a third") is None


LINES = st.one_of(
    st.text(max_size=80),
    st.sampled_from([*CERTAIN, *PASSING, INFO, '{"launchId": "launch"', "Traceback "]),
    st.builds(
        lambda level, said: json.dumps({"level": level, "msg": said, "launchId": "launch"}),
        st.one_of(st.none(), st.integers(), st.just("ERROR")),
        st.one_of(st.none(), st.lists(st.text()), st.text()),
    ),
)


@given(st.lists(LINES))
def test_any_log_can_be_read(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = last_error(text)
    assert found is None or found.error in ("", "SpecError")
    assert summary_in(text, "launch") is None
    keep = Warnings()
    for line in lines:
        said = keep(line)
        assert said is None or said.startswith(line)
