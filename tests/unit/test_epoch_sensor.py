"""LanceEpochSensor on real datasets: poke once, defer, come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_lance.exceptions import ProtocolVersionError, SpecError
from airflow_provider_lance.sensors.epoch import LanceEpochSensor
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger

from .conftest import Shown, Stream


def sensor(uri: str, **changes: Any) -> LanceEpochSensor:
    arguments = {
        "task_id": "wait",
        "uri": uri,
        "query_id": "flights",
        "lance_conn_id": None,
        "poke_interval": 0.05,
        "timeout": 0.2,
        "deferrable": False,
    }
    return LanceEpochSensor(**(arguments | changes))


def run(task: LanceEpochSensor, started: datetime | None = None) -> Any:
    dag_run = SimpleNamespace(start_date=started, run_after=datetime.now(UTC))
    return task.execute({"dag_run": dag_run})  # type: ignore[typeddict-item]


@pytest.fixture
def stream(dataset: str) -> Stream:
    made = Stream(dataset)
    made.commit(0)
    made.commit(1)
    return made


@pytest.mark.parametrize("epoch", [0, 1, "1"])
def test_sensor_returns_the_watermark_when_the_epoch_is_committed(
    epoch: int | str, stream: Stream
) -> None:
    seen = run(sensor(stream.uri, epoch=epoch))
    assert seen["epoch"] == 1
    assert seen["version"]
    assert datetime.fromisoformat(seen["committedAt"]).tzinfo


def test_sensor_times_out_without_the_epoch(stream: Stream) -> None:
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(stream.uri, epoch=2))
    with pytest.raises(AirflowSkipException):
        run(sensor(stream.uri, epoch=2, soft_fail=True))


def test_sensor_with_advanced_compares_with_the_start_of_the_run(stream: Stream) -> None:
    now = datetime.now(UTC)
    assert run(sensor(stream.uri, advanced=True), now - timedelta(minutes=1))["epoch"] == 1
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(stream.uri, advanced=True), now + timedelta(minutes=1))
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(stream.uri, advanced=True), None)


def test_sensor_waits_when_the_epoch_is_older_than_max_age(stream: Stream) -> None:
    assert run(sensor(stream.uri, max_age=timedelta(minutes=1)))["epoch"] == 1
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(stream.uri, max_age=timedelta(microseconds=1)))


def test_a_missing_dataset_waits_or_fails(tmp_path: Path) -> None:
    uri = str(tmp_path / "absent.lance")
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(uri, epoch=0))
    with pytest.raises(AirflowFailException, match="DatasetNotFoundError"):
        run(sensor(uri, epoch=0, on_missing="fail"))


def test_sensor_logs_what_it_sees_and_what_it_waits_for(stream: Stream, shown: Shown) -> None:
    run(sensor(stream.uri, epoch=1))
    assert shown().count("Waiting for epoch 1. epoch=1 version=") == 1


def test_sensor_defers_after_one_poke_with_all_arguments(stream: Stream) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        run(
            sensor(
                stream.uri,
                epoch="7",
                deferrable=True,
                timeout=90,
                poke_interval=3,
                on_missing="fail",
            )
        )
    assert deferred.value.timeout == timedelta(seconds=90)
    assert deferred.value.method_name == "execute_complete"
    waiting = deferred.value.trigger
    assert isinstance(waiting, LanceEpochTrigger)
    assert waiting.serialize()[1] == {
        "uri": stream.uri,
        "query_id": "flights",
        "condition": {"epoch": 7, "since": None, "maxAge": None},
        "consumer_id": None,
        "lance_conn_id": None,
        "on_missing": "fail",
        "poll_interval": 3,
    }


def test_sensor_does_not_defer_when_the_epoch_is_committed(stream: Stream) -> None:
    assert run(sensor(stream.uri, epoch=1, deferrable=True))["epoch"] == 1


def test_sensor_skips_with_soft_fail_when_the_first_poke_fails(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"epoch": 0, "on_missing": "fail", "deferrable": True}
    with pytest.raises(AirflowFailException):
        run(sensor(str(tmp_path / "absent.lance"), **arguments))
    with pytest.raises(AirflowSkipException):
        run(sensor(str(tmp_path / "absent.lance"), **arguments, soft_fail=True))


def test_sensor_returns_the_watermark_or_raises_the_error_of_its_trigger() -> None:
    task = sensor("/x.lance", epoch=1)
    seen = {"epoch": 1, "version": 4, "committedAt": None}
    assert task.execute_complete({}, {"status": "met", "watermark": seen}) == seen  # type: ignore[typeddict-item]
    event = {"status": "error", "error": "ProtocolVersionError", "message": "newer"}
    with pytest.raises(AirflowFailException, match="newer") as failed:
        task.execute_complete({}, event)  # type: ignore[typeddict-item]
    assert isinstance(failed.value.__cause__, ProtocolVersionError)


def test_a_store_that_does_not_answer_is_asked_again(stream: Stream) -> None:
    for manifest in (Path(stream.uri) / "_versions").iterdir():
        manifest.write_bytes(b"not a manifest")
    with pytest.raises(AirflowSensorTimeout):
        run(sensor(stream.uri, epoch=1))


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"epoch": 1, "advanced": True},
        {"advanced": True, "max_age": timedelta(1)},
        {"epoch": 1, "on_missing": "ignore"},
        {"epoch": -1},
        {"epoch": "one"},
        {"max_age": timedelta(0)},
        {"epoch": 1, "query_id": "a b"},
    ],
)
def test_exactly_one_condition_is_checked_before_any_work(wanted: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        sensor("/absent.lance", **wanted)


def test_an_epoch_that_is_no_number_is_refused(stream: Stream) -> None:
    task = sensor(stream.uri, epoch="{{ params.epoch }}")
    task.epoch = "soon"  # as its template was rendered
    with pytest.raises(AirflowFailException, match="whole number, got 'soon'"):
        run(task)


def test_a_relative_name_without_a_connection_is_told_when_the_dag_is_parsed() -> None:
    with pytest.raises(SpecError, match="relative name"):
        sensor("flights.lance", epoch=1)
