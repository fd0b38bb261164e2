"""What a look at a stream reads, in which order, and what it makes of what it cannot read."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.diagnostics.collect import collect
from airflow_provider_lance.diagnostics.evidence import Tolerance
from airflow_provider_lance.diagnostics.findings import Code, Severity
from airflow_provider_lance.diagnostics.rules import evaluate_rules
from airflow_provider_lance.diagnostics.traces import find_traces
from airflow_provider_lance.exceptions import ProtocolVersionError, StorageUnavailableError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.codec import encode_owner, fold_updates, key
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import OwnerState
from airflow_provider_lance.protocol.port import Configure
from airflow_provider_lance.protocol.stop_requests import request_stop
from airflow_provider_lance.supervision.driver_reports import report_location
from airflow_provider_lance.supervision.health import StreamState
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import SparkLike, twin_world
from tests.support.maintenance import numbers
from tests.support.recovery_stream import DEAD, HERE, L1, L2, Stream, warning_codes


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path)
    for epoch_id in range(3):
        made.commit(epoch_id)
    made.beat()
    return made


def test_collect_reads_everything_of_a_running_stream(stream: Stream) -> None:
    seen = stream.look()
    assert (seen.watermark.epoch, seen.state.watermark) == (2, -1)
    assert [each.epoch_id for each in seen.history] == [2, 1, 0]
    ends = {2: ("-",), 1: ("-",)}
    assert seen.checkpoint == Checkpoint(str(stream.checkpoint), "cp", 2, 2, ends=ends)
    (driver,) = seen.drivers
    assert (driver.alive, driver.token, driver.where) == (True, 1, f"{HERE.host}:{HERE.pid}")
    assert seen.health
    assert seen.health.state is StreamState.IDLE
    assert warning_codes(seen) == []


def test_the_cost_does_not_grow_with_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, read = Stream(tmp_path), []
    real = LanceDatasetPort.properties

    def counted(port: LanceDatasetPort, version: int) -> Any:
        read.append(version)
        return real(port, version)

    monkeypatch.setattr(LanceDatasetPort, "properties", counted)
    monkeypatch.setattr(lance.LanceDataset, "versions", None)
    costs = []
    for first in (0, 40, 80):
        for epoch_id in range(first, first + 40):
            stream.commit(epoch_id)
        stream.beat()
        read.clear()
        assert stream.look(history=5).watermark.epoch == first + 39
        costs.append(len(read))
    assert costs[1] == costs[2] < 40


def test_the_dataset_is_opened_again_where_a_driver_is_ahead(stream: Stream) -> None:
    """Its heartbeat may tell of an epoch that came after the handle."""
    port = open_dataset(stream.uri)
    stream.commit(3)
    stream.beat()
    seen = collect(port, "q")
    assert (seen.version, seen.watermark.epoch) == (port.version + 1, 3)
    assert warning_codes(seen) == []


def test_launches_are_sorted_by_their_names_and_not_by_their_heartbeats(stream: Stream) -> None:
    # A driver that lives writes heartbeats after the one that was launched later has ended.
    newer = "20260302T000000001Z-00000003"
    for launch_id, time in ((L1, 3), (newer, 1), (L2, 2)):
        stream.beat(launch_id, time=f"2026-03-03T00:00:0{time}.000+00:00")
    assert [each.launch_id for each in stream.look().drivers] == [newer, L2, L1]


def test_the_newest_launches_are_read_and_the_owners(stream: Stream) -> None:
    stream.end(L1)
    for day in range(10, 18):
        stream.beat(f"202603{day}T000000000Z-00000000", driver={})
    stream.beat(f"20260320T000000000Z-{'0' * 8}", queryId="other")
    names = [each.launch_id for each in stream.look().drivers]
    assert names == [f"202603{day}T000000000Z-00000000" for day in (17, 16, 15, 14)] + [L1]


def test_reports_of_another_form_tell_nothing(stream: Stream) -> None:
    folder = Path(report_location(str(stream.checkpoint)), L1)
    (folder / "summary.json").write_text('{"reason": "vanished"}')
    (folder / "heartbeat.json").write_text('{"driver": {"host": 7}, "sink": [], "time": "soon"}')
    (driver,) = stream.look().drivers
    assert driver.summary is None
    assert driver.alive is True, "the owner record names the process, too"


def test_a_driver_without_a_launch_is_told_by_its_process(tmp_path: Path) -> None:
    stream = Stream(tmp_path, launch_id="")
    stream.commit(0)
    (driver,) = stream.look().drivers
    assert (driver.launch_id, driver.alive, driver.token) == ("", True, 1)
    assert warning_codes(stream.look()) == []


def test_an_owner_that_names_no_launch_is_the_driver_of_the_same_process(tmp_path: Path) -> None:
    stream = Stream(tmp_path, launch_id="")
    stream.commit(0)
    stream.beat(L1)
    assert [each.launch_id for each in stream.look().drivers] == [L1]


def test_a_driver_and_a_checkpoint_on_another_host(tmp_path: Path) -> None:
    stream = Stream(tmp_path, host="elsewhere", launch_id="")
    stream.commit(0)
    (stream.checkpoint / "metadata").unlink()
    seen = stream.look()
    assert seen.checkpoint is None
    assert "on elsewhere" in seen.checkpoint_problem
    assert seen.drivers[0].alive is None
    codes = {each.code: each.severity for each in evaluate_rules(seen)}
    assert codes[Code.CHECKPOINT_UNREADABLE] is Severity.WARNING
    assert codes[Code.DRIVER_UNSEEN] is Severity.INFO, "it has committed just now"
    assert Code.CHECKPOINT_MISSING not in codes


def test_driver_on_another_host_that_stopped_committing_is_a_finding(tmp_path: Path) -> None:
    stream = Stream(tmp_path, host="elsewhere", launch_id="")
    stream.commit(0)
    now, later = stream.look(), stream.look(tolerance=Tolerance(silence=0))
    assert now.health
    assert now.health.state is StreamState.RUNNING
    assert later.health is None
    assert warning_codes(replace(later, seen_at=later.seen_at + timedelta(hours=1))) == [
        Code.DRIVER_UNSEEN,
        Code.WATERMARK_BEHIND,
    ]


def test_a_driver_that_died_while_it_was_to_stop(tmp_path: Path) -> None:
    stream = Stream(tmp_path, start=DEAD)
    stream.commit(0)
    request_stop(open_dataset(stream.uri), "q", by="ann")
    seen = stream.look()
    assert seen.health
    assert seen.health.state is StreamState.STOPPED
    assert seen.health.asked_by == "ann"
    assert "killed" in seen.health.reason
    assert Code.DRIVER_GONE in warning_codes(seen)


def test_driver_that_died_before_its_claim_is_a_finding_until_a_later_release(
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path)
    stream.commit(0)
    stream.end(L1, last_epoch=0)
    stream.committer.release()
    lost = {**HERE.to_json(), "start": DEAD, "runId": "run-2", "token": None}
    stream.beat(L2, driver=lost)
    seen = stream.look()
    assert seen.health
    assert seen.health.state is StreamState.DEAD
    assert warning_codes(seen) == [Code.DRIVER_GONE]
    stream.beat(L2, driver=lost, time="2026-03-02T00:00:00+00:00")
    assert warning_codes(stream.look()) == [], "the query was released after that"


def test_reports_of_an_older_generation_give_no_finding(stream: Stream) -> None:
    """A driver that has ended holds no token, and is not the one that was recorded since."""
    owner, version = stream.committer.owner, stream.committer.port.version
    assert owner
    stream.committer.release()
    stream.beat(driver={**HERE.to_json(), "runId": "run-1", "token": None}, state="ended")
    stream.end(L1, last_epoch=2, version=version, run_id="run-1")
    resolved = replace(owner, token=2, generation=1, driver=replace(owner.driver, run_id="by hand"))
    updates = {key("owner", "q"): encode_owner(replace(resolved, state=OwnerState.RELEASED))}
    updates |= fold_updates("q", -1, open_dataset(stream.uri).version, None)
    open_dataset(stream.uri).commit(Configure(updates))
    assert warning_codes(stream.look()) == []


def test_a_driver_of_another_boot_of_this_host_is_gone(tmp_path: Path) -> None:
    stream = Stream(tmp_path, host=socket.gethostname(), start=DEAD)
    stream.commit(0)
    (stream.checkpoint / "metadata").unlink()
    assert warning_codes(stream.look()) == [
        Code.CHECKPOINT_MISSING,
        Code.DRIVER_GONE,
        Code.WATERMARK_BEHIND,
    ]


def test_a_store_that_fails_is_an_error(stream: Stream) -> None:
    (stream.checkpoint / "metadata").unlink()
    (stream.checkpoint / "metadata").mkdir()
    with pytest.raises(StorageUnavailableError):
        stream.look()


def test_a_newer_protocol_is_an_error(stream: Stream) -> None:
    stream.world.open().commit(Configure({"spark.lance.streaming.owner.q": '{"protocol": 2}'}))
    with pytest.raises(ProtocolVersionError):
        stream.look()


def test_versions_that_were_cleaned_up_are_named(stream: Stream) -> None:
    lance.dataset(stream.uri).cleanup_old_versions(versions=numbers(stream.uri)[2:-1])
    seen = stream.look()
    assert seen.missing_versions == (3, 4)
    assert [each.epoch_id for each in seen.history] == [2]
    assert seen.contradictions == ()


def test_a_handle_lists_its_queries(stream: Stream) -> None:
    assert find_traces(open_dataset(stream.uri)) == ["q"]


def test_collect_reads_an_in_memory_dataset(tmp_path: Path) -> None:
    twin, log = InMemoryDataset(), dict[str, int]()
    driver = SparkLike(twin_world(twin), log)
    driver.step()
    seen = collect(
        twin.open(), "orders", files=lambda location: open_files(f"{tmp_path}{location}")
    )
    assert seen.watermark.epoch == 0
    assert seen.checkpoint is not None
    assert seen.checkpoint.id is None
