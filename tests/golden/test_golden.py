"""This package's readers understand what protocol 1 wrote, and its writers still write it."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.backends.launch import Launch
from airflow_provider_lance.maintenance.options import MaintenanceSpec
from airflow_provider_lance.operators.task_state import DriverTaskState
from airflow_provider_lance.protocol.added_columns import decode_added
from airflow_provider_lance.protocol.codec import decode_query, decode_stamp, key
from airflow_provider_lance.protocol.consumers import read_consumers
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import NO_EPOCH, EpochStamp, QueryState
from airflow_provider_lance.protocol.source_offset import SourceOffset
from airflow_provider_lance.protocol.upkeep import read_policy, read_turn
from airflow_provider_lance.provider_info import get_provider_info
from airflow_provider_lance.spark.job import run
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import (
    Summary,
    read_heartbeat,
    report_location,
)
from airflow_provider_lance.supervision.heartbeat import Heartbeat
from airflow_provider_lance.triggers.condition import EpochCondition, Position
from airflow_provider_lance.triggers.epoch import LanceEpochTrigger
from airflow_provider_lance.triggers.event import LanceEpochEventTrigger
from airflow_provider_lance.triggers.stop import LanceStopTrigger, Stopping
from airflow_provider_lance.triggers.stream import LanceStreamTrigger
from airflow_provider_lance.triggers.supervision_loop import SupervisionConfig
from airflow_provider_lance.triggers.supervision_outcome import SupervisionOutcome
from airflow_provider_lance.triggers.turns import LanceTurnTrigger, Turn
from tests.golden import written
from tests.golden.written import FOLDER, QUERY, WRITERS, Kept, names_of, read, text_of
from tests.support.sparkstream import Stream, orders, spec

LATER = {"later": {"deep": [1, None, "x"]}, "laterText": "…"}
"""Fields that a later version of protocol 1 may add."""


def with_later_fields(document: Any) -> Any:
    """Return a document with unknown fields in it, and in each mapping inside it."""
    if isinstance(document, dict):
        return {name: with_later_fields(value) for name, value in document.items()} | LATER
    if isinstance(document, list):
        return [with_later_fields(each) for each in document]
    return document


LATER_TOO = pytest.mark.parametrize(
    "changed",
    [lambda document: document, with_later_fields],
    ids=["as written", "with later fields"],
)


@pytest.mark.parametrize("name", WRITERS)
def test_the_writers_write_what_protocol_1_wrote(name: str) -> None:
    kept, now = (FOLDER / f"{name}.json").read_text(), text_of(WRITERS[name]())
    assert now == kept, (
        f"{name}.json differs from what is written now. If a key was added on purpose: run "
        "`python -m tests.golden` and commit the file. If another changed: raise PROTOCOL_VERSION"
    )


def test_regenerating_writes_a_new_key_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER, tmp_path / "kept")
    monkeypatch.setattr(written, "FOLDER", tmp_path / "kept")
    for more, said in (({}, ""), ({"streaming.later": "x"}, '+  "streaming.later": "x",')):
        document = {**read("transaction-properties"), **more}
        monkeypatch.setitem(WRITERS, "transaction-properties", lambda document=document: document)
        monkeypatch.setattr(sys, "argv", ["tests.golden"])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_module("tests.golden", run_name="__main__")
        out = capsys.readouterr().out
        assert said in out if said else out == ""
        assert json.loads((tmp_path / "kept/transaction-properties.json").read_text()) == document


def test_there_is_no_file_that_no_test_reads() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*WRITERS, "heartbeat"}


def state_of(name: str, *, later: bool) -> QueryState:
    config = read(name)
    if later:
        owner = key("owner", QUERY)
        config[owner] = json.dumps(json.loads(config[owner]) | LATER)
        if note := config.get(key("stopNote", QUERY)):
            config[key("stopNote", QUERY)] = json.dumps(json.loads(note) | LATER)
        config |= {key("later", QUERY): "{", "spark.lance.streaming.later": "x"}
    return decode_query(config, QUERY, 57)


@pytest.mark.parametrize("later", [False, True])
def test_the_config_is_read(later: bool) -> None:
    active, released = (state_of(f"config-{name}", later=later) for name in ("active", "released"))
    assert (active.owner, released.owner) == (written.OWNER, written.RELEASED)
    assert (active.watermark, active.folded_version) == (42, 56)
    assert active.committed_at == written.LATER
    assert (active.stop_token, active.stop_note) == (None, None)
    claimed = state_of("config-claimed", later=later)
    assert (claimed.watermark, claimed.committed_at, claimed.known) == (NO_EPOCH, None, True)
    asked = state_of("config-stop", later=later)
    assert (asked.stop_token, asked.stop_note) == (3, written.NOTE)


@LATER_TOO
def test_the_position_of_a_consumer_is_read(changed: Any) -> None:
    config = {
        name: json.dumps(changed(json.loads(text)))
        for name, text in read("config-consumer").items()
    }
    found = read_consumers(config, 57)
    assert (found.readable, found.unreadable) == ((written.CONSUMER,), {})


@pytest.mark.parametrize("later", [{}, {"later": {"deep": [1, None]}}])
def test_who_looks_after_a_dataset_is_read(later: dict[str, Any]) -> None:
    config = {
        name: json.dumps(json.loads(text) | later) for name, text in read("config-upkeep").items()
    }
    assert read_turn(config) == written.UPKEEP
    assert read_policy(config) == written.POLICY


@pytest.mark.parametrize("later", [{}, {"later": {"deep": [1, None]}}])
def test_columns_that_an_epoch_added_are_read(later: dict[str, Any]) -> None:
    ((name, text),) = read("added-columns").items()
    properties = {name: json.dumps(json.loads(text) | later), "other.tool": "x"}
    assert decode_added(properties) == written.ADDED


@pytest.mark.parametrize("later", [{}, {"streaming.later": "{", "other.tool": "x"}])
def test_the_transaction_of_an_epoch_is_read(later: dict[str, str]) -> None:
    stamp = decode_stamp(read("transaction-properties") | later, QUERY, 57)
    assert stamp == EpochStamp(
        query_id=QUERY,
        epoch_id=42,
        generation=1,
        token=3,
        run_id=written.DRIVER.run_id,
        protocol=1,
        mode="update",
        rows=120,
        deletes=7,
        fragments=2,
        bytes=4096,
        started_at=written.TIME,
        duration_ms=250,
        version=57,
        ends=written.ENDS,
        checks=written.CHECKS,
    )


@LATER_TOO
def test_the_offsets_of_a_source_are_read(changed: Any) -> None:
    found = tuple(SourceOffset.from_json(changed(each)) for each in read("source-offsets"))
    assert found == written.SOURCE_OFFSETS


@LATER_TOO
def test_the_reports_are_read(changed: Any) -> None:
    assert Summary.from_json(changed(read("summary"))) == written.SUMMARY
    heartbeat = Heartbeat.parse(changed(read("heartbeat")))
    assert (heartbeat.state, heartbeat.token, heartbeat.epoch, heartbeat.watermark) == (
        "ended",
        None,
        2,
        2,
    )
    assert (heartbeat.total_rows, heartbeat.version) == (60, 5)
    assert heartbeat.committed_at is not None


def test_the_specifications_are_read() -> None:
    # Read by the package that wrote them: a name that it does not know is a typing error.
    job = JobSpec.loads(json.dumps(read("job-spec")))
    assert job == JobSpec.parse(written.JOB)
    maintenance = MaintenanceSpec.loads(json.dumps(read("maintenance-spec")))
    assert maintenance.options.older_than == 86_400
    assert maintenance.options.compaction["target_rows_per_fragment"] == 500_000


TRIGGERS = (
    LanceEpochTrigger,
    LanceEpochEventTrigger,
    LanceStreamTrigger,
    LanceStopTrigger,
    LanceTurnTrigger,
)


def test_every_trigger_of_the_provider_has_a_golden_file() -> None:
    [listed] = get_provider_info()["triggers"]
    assert {each.__module__ for each in TRIGGERS} == set(listed["python-modules"])


@LATER_TOO
def test_the_triggers_are_read(changed: Any) -> None:
    made = []
    for kept, kind in zip(read("triggers"), TRIGGERS, strict=True):
        assert kept["classpath"] == f"{kind.__module__}.{kind.__qualname__}"
        # Airflow itself passes the outer names to the constructor.
        made.append(kind(**{name: changed(value) for name, value in kept["kwargs"].items()}))
    epoch, event, stream, stop, turn = made
    assert EpochCondition.from_json(epoch.condition) == written.CONDITIONS[0]
    assert event.condition.rows == 1000
    assert SupervisionConfig.from_json(without_later_tags(stream.order)) == written.ORDER
    assert Stopping.from_json(stop.stopping) == written.STOPPING
    assert Turn.from_json(turn.turn) == written.TURN


def without_later_tags(order: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was added to the tags: they are any names of the user's, for metrics."""
    kept = {name: value for name, value in order["tags"].items() if name not in LATER}
    return order | {"tags": kept}


@LATER_TOO
def test_what_a_trigger_and_a_task_keep_is_read(changed: Any) -> None:
    event = changed(read("stream-event"))
    outcome = SupervisionOutcome.from_json(event["outcome"])
    assert outcome.ended is not None
    assert Summary.from_json(outcome.ended) == written.SUMMARY
    assert (outcome.action, outcome.restarts) == (written.VERDICT.action, written.ORDER.restarts)
    assert Launch.from_json(changed(read("launch-on-cluster"))) == written.CLUSTER
    memory = DriverTaskState.of(context(changed(read("task-state"))))
    assert (memory.launch, memory.over, memory.was_cleared) == (written.LAUNCH, "", False)
    assert Position.read_whole(changed(read("watcher-state"))) == written.POSITION


def context(note: Any) -> Any:
    class Task:
        try_number, max_tries = 2, 3

    return {"task_state_store": Kept(note), "ti": Task()}


def test_a_real_driver_writes_the_golden_heartbeat(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    for n in range(3):
        stream.add(orders(n * 20, 20))
    run(spark, JobSpec.parse(spec(stream)))
    now = read_heartbeat(open_files(report_location(stream.checkpoint)), "launch")
    golden = names_of({**read("heartbeat"), "progress": None})  # Spark's own part is Spark's
    assert names_of({**(now or {}), "progress": None}) == golden
