"""What Spark plans is noted where nobody can replace it: real Spark, a local checkpoint."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Finding
from airflow_provider_lance.exceptions import CheckpointMismatchError, CommitPreemptedError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.model import EndOffsets
from airflow_provider_lance.protocol.offset_notes import NOTES, OffsetNote, OffsetNotes
from airflow_provider_lance.spark import job
from airflow_provider_lance.spark.files import HadoopFiles
from airflow_provider_lance.spark.note_taker import NoteTaker
from airflow_provider_lance.spark.sink import LanceSink
from airflow_provider_lance.spark.tuning import spared_checksums, spared_forks, wait_for_sources
from airflow_provider_lance.spec.job import JobSpec
from airflow_provider_lance.supervision.driver_reports import EndReason
from tests.integration.test_changed_offsets import finding, refused, replace, type_it
from tests.integration.test_corrupt_checkpoint import (
    FILE_SYSTEM_MANAGER,
    assert_exactly_once,
    checking_manager,
    done,
    planned,
)
from tests.support.processes import finish, python
from tests.support.sparkstream import Stream, orders, spec, write_spec

__all__ = ["checking_manager"]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    made = Stream(spark, tmp_path)
    made.create()
    return made


def notes(stream: Stream) -> OffsetNotes:
    return OffsetNotes(Path(stream.checkpoint))


def list_other_file(stream: Stream, entry: int, name: str, other: str) -> None:
    """Let an entry of the file source's log name another file, as another driver may have."""
    path = Path(stream.checkpoint, "sources", "0", name)
    version, *lines = path.read_text().split("\n")
    entries = [json.loads(line) for line in lines]
    for each in entries:
        if each["batchId"] == entry:
            each["path"] = each["path"].replace(f"{entry:06}", other)
    path.write_text("\n".join([version, *map(json.dumps, entries)]))
    path.with_name(f".{name}.crc").unlink(missing_ok=True)


def changed(stream: Stream) -> Finding:
    """Expect a start to be refused; return what the check says."""
    before = stream.dataset.version, sorted(Path(stream.checkpoint).rglob("*"))
    with pytest.raises(CheckpointMismatchError, match="read other files as sources/0/"):
        stream.run()
    assert (stream.dataset.version, sorted(Path(stream.checkpoint).rglob("*"))) == before
    return finding(stream)


# ------------------------------------------------------------------------------- what was planned


def test_each_epoch_is_noted_with_its_end_and_its_files(stream: Stream) -> None:
    done(stream)
    assert notes(stream).epochs() == [0, 1, 2, 3]
    note = notes(stream).read(2)
    assert note
    assert note.ends == stream.epochs()[2].ends
    ((path, entry),) = note.entries.items()
    assert path == "sources/0/2"
    assert [Path(json.loads(line)["path"]).name for line in entry.lines or ()] == ["000002.parquet"]
    stream.forget_last_commit()
    stream.run()  # a replay notes the same
    assert_exactly_once(stream, 4)


def test_another_end_of_an_epoch_without_rows_is_refused_before_any_fold(stream: Stream) -> None:
    """No commit and no fold has the end of such an epoch: the driver died before its release."""
    for number in range(4):
        stream.add(orders(number * 10, 10))
    job = write_spec(
        stream.root / "spec.json", spec(stream, sql="SELECT * FROM source WHERE id < 20")
    )
    words = ("tests.support.killed_job", str(job), Failpoint.RELEASE_CHECKED.value, "1")
    status, output = finish(python("-m", *words))
    assert status == -signal.SIGKILL, output
    assert [each.epoch_id for each in stream.epochs()] == [0, 1]
    stream.add(orders(20, 10))
    replace(stream, 3)  # behind the file that was added
    refused(stream, 3)
    type_it(finding(stream).command)
    stream.run()
    assert_exactly_once(stream, 3)


def test_the_epoch_before_the_newest_is_compared_after_a_fold(stream: Stream) -> None:
    """Spark computes the newest epoch again from it, and with it the state of stateful queries."""
    done(stream)
    stream.dataset.cleanup_old_versions(versions=list(range(2, stream.dataset.version)))
    assert stream.forget_last_commit() == 3
    replace(stream, 2)
    refused(stream, 2)
    type_it(finding(stream).command)
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)


def test_a_file_that_another_driver_listed_as_read_is_read_after_the_repair(stream: Stream) -> None:
    done(stream)
    stream.add(orders(40, 10))
    list_other_file(stream, 3, "3", f"{4:06}")
    seen = changed(stream)
    assert "lists in sources/0/3 other files than epoch 3 of query q read" in seen.summary
    assert seen.command == f"lance-stream resolve files {stream.uri} q --yes"
    assert "sources/0/3 written again" in type_it(seen.command)
    stream.run()
    assert_exactly_once(stream, 5)


def test_an_entry_that_spark_has_compacted_is_refused_with_the_ways_out(stream: Stream) -> None:
    for number in range(11):
        stream.add(orders(number * 10, 10))
    stream.run()
    list_other_file(stream, 8, "9.compact", f"{11:06}")
    Path(stream.checkpoint, "sources/0/8").unlink()
    seen = changed(stream)
    assert "compacted" in seen.cause
    assert seen.command == f"lance-stream resolve checkpoint {stream.uri} q --start-over --yes"


def test_an_entry_of_an_epoch_that_is_planned_again_may_differ(stream: Stream) -> None:
    planned(stream)
    stream.add(orders(40, 10))
    list_other_file(stream, 3, "3", f"{4:06}")
    assert not [each for each in check(open_dataset(stream.uri), ["q"]).findings if each.command]
    stream.run()  # Spark reads what the log says, then the file that it does not name
    assert_exactly_once(stream, 5)


# ------------------------------------------------------------------------------ another driver's


def test_an_entry_that_was_replaced_since_the_plan_ends_the_epoch_before_its_commit(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = NoteTaker.note

    def late(taker: NoteTaker, epoch_id: int, ends: EndOffsets) -> Any:
        if epoch_id == 2:
            list_other_file(stream, 2, "2", f"{3:06}")
        return note(taker, epoch_id, ends)

    for number in range(4):
        stream.add(orders(number * 10, 10))
    with monkeypatch.context() as patch:
        patch.setattr(NoteTaker, "note", late)
        sink = stream.sink()
        with pytest.raises(StreamingQueryException):
            sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, CommitPreemptedError)
    assert "sources/0/2" in str(sink.error)
    assert [each.epoch_id for each in stream.epochs()] == [0, 1]
    sink.release()
    stream.run()
    ids = stream.table()["id"].to_pylist()
    assert sorted(ids) == sorted(set(ids)), "each file that the log names is read once"


@pytest.mark.parametrize("make", [planned, done])
def test_an_epoch_that_another_driver_noted_otherwise_and_did_not_do_is_planned_anew(
    stream: Stream, make: Callable[[Stream], None]
) -> None:
    make(stream)
    epoch = max(notes(stream).epochs()) + (make is done)
    notes(stream).replace(epoch, OffsetNote(EndOffsets.of(['{"logOffset":77}'])))
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)
    note = notes(stream).read(epoch)
    assert note
    assert note.ends.lines == (f'{{"logOffset":{epoch}}}',)


def test_without_its_notes_a_checkpoint_goes_on(stream: Stream) -> None:
    """As one of an older release, or a copy that was made without them."""
    done(stream)
    for path in Path(stream.checkpoint, NOTES).iterdir():
        path.unlink()
    Path(stream.checkpoint, NOTES).rmdir()
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)
    assert notes(stream).epochs() == [4]


# --------------------------------------------------------------------------- how Spark writes it

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def managers(stream: Stream, monkeypatch: pytest.MonkeyPatch, **sink: Any) -> list[str | None]:
    """Run a launch; return the checkpoint manager that each epoch's query has."""
    seen: list[str | None] = []
    run_epoch = LanceSink._run

    def look(self: LanceSink, df: DataFrame, epoch_id: int) -> Any:
        seen.append(df.sparkSession.conf.get(MANAGER, None))
        return run_epoch(self, df, epoch_id)

    monkeypatch.setattr(LanceSink, "_run", look)
    stream.add(orders(0, 10))
    launch(stream, **sink)
    return seen


def launch(stream: Stream, **sink: Any) -> None:
    summary = job.run(stream.spark, JobSpec.loads(json.dumps(spec(stream, sink=sink))))
    assert summary.reason is EndReason.FINISHED, summary


def test_a_launch_writes_a_local_checkpoint_without_forks(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    (used,) = managers(stream, monkeypatch)
    assert used
    assert used.endswith(".FileSystemBasedCheckpointFileManager")
    assert notes(stream).epochs() == [0], "what stands guard then"
    assert stream.spark.conf.get(MANAGER, None) is None


def test_the_sources_of_a_launch_are_created_with_its_manager(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read the session's settings after the start of the query has returned."""
    seen: list[tuple[str | None, int]] = []

    def wait(query: Any) -> None:
        wait_for_sources(query)
        sources = query._jsq.streamingQuery().sources().size()
        seen.append((stream.spark.conf.get(MANAGER, None), sources))

    monkeypatch.setattr(job, "wait_for_sources", wait)
    stream.add(orders(0, 10))
    launch(stream)
    assert seen == [(FILE_SYSTEM_MANAGER, 1)]
    assert checksums(stream) == set()


@pytest.mark.parametrize("name", ["FileContextBased", "FileSystemBased"])
def test_a_users_own_choice_of_manager_stays(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    name = FILE_SYSTEM_MANAGER.replace("FileSystemBased", name)
    stream.spark.conf.set(MANAGER, name)
    try:
        assert managers(stream, monkeypatch) == [name]
        assert stream.spark.conf.get(MANAGER) == name
    finally:
        stream.spark.conf.unset(MANAGER)
    assert checksums(stream) == {f"{log}/.0.crc" for log in LOGS}


LOGS = ("offsets", "commits", "sources/0")


def checksums(stream: Stream) -> set[str]:
    """Return the checksum files of Spark's logs."""
    root = Path(stream.checkpoint)
    return {str(path.relative_to(root)) for log in LOGS for path in (root / log).glob(".*.crc")}


def writes_checksums(stream: Stream) -> bool:
    """Return whether the JVM writes a checksum file beside a file on a local disk."""
    HadoopFiles(stream.spark, str(stream.root)).write("probe", b"1")
    (stream.root / "probe").unlink()
    written = stream.root / ".probe.crc"
    return written.exists() and written.unlink() is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_launch_writes_no_checksum_files_until_it_ends(stream: Stream, fails: bool) -> None:
    during: list[bool] = []

    def step(_: Failpoint) -> None:
        during.append(writes_checksums(stream))
        if fails:
            raise RuntimeError

    stream.add(orders(0, 10))
    given = JobSpec.loads(json.dumps(spec(stream)))
    summary = job.run(stream.spark, given, LanceSink(given.sink, on_step=step))
    assert summary.reason is (EndReason.FAILED if fails else EndReason.FINISHED)
    assert checksums(stream) == set()
    assert False in during
    assert writes_checksums(stream)


def test_elsewhere_and_by_a_users_choice_checksum_files_are_written(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, checking_manager: None
) -> None:
    with spared_checksums(stream.spark, stream.checkpoint):
        assert writes_checksums(stream)
    stream.spark.conf.unset(MANAGER)
    with spared_checksums(stream.spark, stream.checkpoint):
        assert not writes_checksums(stream)
    with spared_checksums(stream.spark, "hdfs://127.0.0.1:1/c"):
        assert writes_checksums(stream)
    monkeypatch.setattr(SparkSession, "version", property(lambda _: "9.0.0"))
    with spared_checksums(stream.spark, stream.checkpoint):
        assert writes_checksums(stream)


def test_a_launch_removes_the_checksum_of_what_it_replaces(
    stream: Stream, checking_manager: None
) -> None:
    """Spark's manager by `FileSystem` cannot read an entry beside the checksum of another one."""
    done(stream)
    Path(stream.checkpoint, "commits", "3").unlink()
    assert "commits/.3.crc" in checksums(stream)
    stream.spark.conf.unset(MANAGER)
    launch(stream)
    assert Path(stream.checkpoint, "commits", "3").exists()
    assert "commits/.3.crc" not in checksums(stream)
    stream.spark.conf.set(MANAGER, FILE_SYSTEM_MANAGER)
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)


def test_elsewhere_and_in_an_unknown_spark_the_default_stays(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spared_forks(stream.spark, "hdfs://127.0.0.1:1/c"):
        assert stream.spark.conf.get(MANAGER, None) is None
    monkeypatch.setattr(SparkSession, "version", property(lambda _: "9.0.0"))
    with spared_forks(stream.spark, stream.checkpoint):
        assert stream.spark.conf.get(MANAGER, None) is None
