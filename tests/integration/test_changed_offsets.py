"""An `offsets/N` that says another end than epoch N's commit: refused, found, repaired; real Spark.

Two drivers that plan one epoch can both write its file on a local disk. The one that was paused
replaces the other's, and Spark would go on behind rows that were never read.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code, Finding, Severity
from airflow_provider_lance.exceptions import CheckpointMismatchError, DriverAliveError
from airflow_provider_lance.protocol import model as epoch_module
from airflow_provider_lance.protocol.checkpoint import read_offsets
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.model import QueryState
from airflow_provider_lance.repair.set_aside import set_files_aside
from airflow_provider_lance.spark import sink as sink_module
from tests.integration.test_corrupt_checkpoint import (
    assert_exactly_once,
    done,
    landed,
    planned,
)
from tests.support.cli import typed
from tests.support.processes import finish, python, wait_for
from tests.support.sparkstream import Stream, orders, spec, write_spec

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
OFFSET_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    made = Stream(spark, tmp_path)
    made.create()
    return made


@pytest.fixture
def evolution(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(EVOLUTION, "true")
    spark.conf.set(OFFSET_FORMAT, "2")  # newer Sparks choose it by themselves
    yield
    spark.conf.unset(EVOLUTION)
    spark.conf.unset(OFFSET_FORMAT)


def offsets(stream: Stream, epoch: int) -> Path:
    return Path(stream.checkpoint, "offsets", str(epoch))


def replace(stream: Stream, epoch: int) -> bytes:
    """Let an epoch end one file later, as another driver may have planned it; return the old."""
    path = offsets(stream, epoch)
    before = path.read_bytes()
    after = re.sub(
        rb'\{"logOffset":(\d+)\}', lambda found: b'{"logOffset":%d}' % (int(found[1]) + 1), before
    )
    assert after != before
    path.write_bytes(after)
    path.with_name(f".{epoch}.crc").unlink(missing_ok=True)
    return before


def log_next_file(stream: Stream, epoch: int) -> None:
    """Let the file source have the next file, too, as the driver that planned it has written it."""
    log = Path(stream.checkpoint, "sources", "0")
    version, line = (log / str(epoch)).read_text().split("\n")
    entry = json.loads(line)
    entry["path"] = entry["path"].replace(f"{epoch:06}", f"{epoch + 1:06}")
    entry["batchId"] = epoch + 1
    (log / str(epoch + 1)).write_text(f"{version}\n{json.dumps(entry)}")


def refused(stream: Stream, epoch: int) -> None:
    before = stream.dataset.version, sorted(Path(stream.checkpoint).rglob("*"))
    with pytest.raises(CheckpointMismatchError, match=rf"says that epoch {epoch} of query 'q' "):
        stream.run()
    assert (stream.dataset.version, sorted(Path(stream.checkpoint).rglob("*"))) == before


def finding(stream: Stream) -> Finding:
    found = check(open_dataset(stream.uri), ["q"]).findings
    (changed,) = [each for each in found if each.code is Code.CHECKPOINT_CHANGED]
    assert changed.severity is Severity.CRITICAL
    return changed


def type_it(command: str) -> str:
    """Type what a finding says, then what its plan says; return what was said at last."""
    program, *words = shlex.split(command)
    assert program == "lance-stream"
    words.append("--proven-dead")  # this very process has a driver's, and lives
    words.remove("--yes")
    plan = typed(*words)
    assert plan.status == 2, plan
    assert "needs --yes" in plan.err
    ran = typed(*words, "--yes")
    assert ran.status == 0, ran
    return ran.out


def killed(stream: Stream, epochs: int, step: Failpoint) -> None:
    """Kill a driver in the newest of so many epochs; it stays the owner."""
    for number in range(epochs):
        stream.add(orders(number * 10, 10))
    path = write_spec(stream.root / "spec.json", spec(stream))
    words = ("tests.support.killed_job", str(path), step.value, str(epochs))
    status, output = finish(python("-m", *words))
    assert status == -signal.SIGKILL, output


def state(stream: Stream) -> QueryState:
    port = open_dataset(stream.uri)
    return decode_query(port.config, "q", port.version)


def empty_at_the_end(stream: Stream) -> None:
    """Four epochs, of which the newest two hold no rows."""
    for number in range(4):
        stream.add(orders(number * 10, 10))
    stream.run(stream.read().where("id < 20"))


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("crash", [done, landed])
def test_another_end_of_the_newest_epoch_is_refused_found_and_repaired(
    stream: Stream, crash: Callable[[Stream], None]
) -> None:
    crash(stream)
    before = replace(stream, 3)
    stream.add(orders(40, 10))
    refused(stream, 3)

    seen = finding(stream)
    assert seen.command == f"lance-stream resolve files {stream.uri} q --yes"
    assert seen.evidence["checkpointEnds"] == {"3": ['{"logOffset":4}']}
    assert seen.evidence["committedEnds"] == {"3": ['{"logOffset":3}']}

    changed = offsets(stream, 3).read_bytes()
    assert "offsets/3 written again" in type_it(seen.command)
    assert offsets(stream, 3).read_bytes() == before
    (kept,) = Path(stream.checkpoint, "set-aside").glob("*/offsets/3")
    assert kept.read_bytes() == changed
    assert not list(Path(stream.checkpoint, "set-aside").glob("*/new/**/3"))
    stream.run()
    assert_exactly_once(stream, 5)
    assert not check(open_dataset(stream.uri), ["q"]).findings[0].command


def test_a_file_that_spark_would_pass_over_is_read_after_the_repair(stream: Stream) -> None:
    done(stream)
    for number in (4, 5):
        stream.add(orders(number * 10, 10))
    replace(stream, 3)
    log_next_file(stream, 3)
    refused(stream, 3)
    type_it(finding(stream).command)
    stream.run()
    assert_exactly_once(stream, 6)


def test_another_end_below_the_epoch_in_flight_is_refused_and_repaired(stream: Stream) -> None:
    planned(stream)
    before = replace(stream, 2)
    refused(stream, 2)
    in_flight = offsets(stream, 3).read_bytes()
    said = type_it(finding(stream).command)
    assert "offsets/2 written again" in said
    assert "offsets/3 set aside" in said
    assert offsets(stream, 2).read_bytes() == before
    (kept,) = Path(stream.checkpoint, "set-aside").glob("*/offsets/3")
    assert kept.read_bytes() == in_flight
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)


def test_another_end_of_an_epoch_that_was_folded_since_is_refused(stream: Stream) -> None:
    """The release folds: only the fold still says where the newest epoch ends."""
    for number in range(4):
        stream.add(orders(number * 10, 10))
    stream.run(watermarkEvery=1)
    stream.dataset.cleanup_old_versions(versions=list(range(2, stream.dataset.version)))
    replace(stream, 3)
    refused(stream, 3)
    type_it(finding(stream).command)
    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)


def test_another_end_of_an_epoch_without_rows_is_refused_and_repaired(stream: Stream) -> None:
    empty_at_the_end(stream)
    assert [each.epoch_id for each in stream.epochs()] == [0, 1]
    replace(stream, 3)
    refused(stream, 3)
    type_it(finding(stream).command)
    stream.add(orders(20, 10))
    stream.run()
    assert_exactly_once(stream, 3)


def test_both_files_are_repaired_in_one_go(stream: Stream) -> None:
    killed(stream, 5, Failpoint.COMMIT_LANDED)  # nothing is folded: both ends are in the stamps
    contents = {epoch: replace(stream, epoch) for epoch in (3, 4)}
    refused(stream, 4)
    type_it(finding(stream).command)
    assert {epoch: offsets(stream, epoch).read_bytes() for epoch in contents} == contents
    stream.add(orders(50, 10))
    stream.run()
    assert_exactly_once(stream, 6)


def test_files_of_named_sources_are_refused_and_repaired(stream: Stream, evolution: None) -> None:
    def named() -> DataFrame:
        reader = stream.spark.readStream.name("files").schema(stream.ddl)
        return reader.option("maxFilesPerTrigger", 1).parquet(str(stream.source))

    for number in range(3):
        stream.add(orders(number * 10, 10))
    stream.run(named())
    before = replace(stream, 2)
    assert before.startswith(b"v2\n")
    with pytest.raises(CheckpointMismatchError, match="epoch 2"):
        stream.run(named())
    type_it(finding(stream).command)
    assert offsets(stream, 2).read_bytes() == before
    stream.add(orders(30, 10))
    stream.run(named())
    assert_exactly_once(stream, 4)


def test_what_the_driver_before_wrote_until_its_end_is_compared_at_the_takeover(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(stream, 4, Failpoint.COMMIT_CHECKED)
    waited = []

    def wait(owner: object, reports: object) -> None:
        replace(stream, 2)
        waited.append(owner)

    monkeypatch.setattr(sink_module, "wait_for_end", wait)
    sink = stream.sink()
    with pytest.raises(CheckpointMismatchError, match="epoch 2"):
        sink.start(stream.read(), availableNow=True)
    assert waited
    assert stream.table().num_rows == 30
    assert sink.release()
    type_it(finding(stream).command)
    stream.run()
    assert_exactly_once(stream, 4)


# --------------------------------------------------------------------------------- what is fine


def test_stamps_and_the_fold_say_what_the_files_say(stream: Stream) -> None:
    done(stream)
    files = open_files(stream.checkpoint)
    stamped = {each.epoch_id: each.ends and each.ends.lines for each in stream.epochs()}
    assert stamped == {epoch: read_offsets(files, epoch) for epoch in range(4)}
    folded = state(stream).done
    assert folded
    assert folded.ends
    assert (folded.epoch_id, folded.ends.lines) == (3, read_offsets(files, 3))


def test_the_fold_says_where_an_epoch_without_rows_ends(stream: Stream) -> None:
    empty_at_the_end(stream)
    folded = state(stream).done
    assert folded
    assert folded.ends
    assert (folded.epoch_id, folded.ends.lines) == (3, ('{"logOffset":3}',))


@pytest.mark.parametrize("another_time", [False, True])
def test_files_with_the_same_ends_pass(stream: Stream, another_time: bool) -> None:
    planned(stream)
    for epoch in (2, 3) if another_time else ():
        path = offsets(stream, epoch)
        version, meta, *ends = path.read_text().split("\n")
        record = json.loads(meta)
        record["batchTimestampMs"] += 1000
        path.write_text("\n".join([version, json.dumps(record), *ends]))
        path.with_name(f".{epoch}.crc").unlink(missing_ok=True)
    codes = {each.code for each in check(open_dataset(stream.uri), ["q"]).findings}
    assert Code.CHECKPOINT_CHANGED not in codes
    stream.run()
    assert_exactly_once(stream, 4)


# ---------------------------------------------------------------------------- no repair without


def test_without_the_offsets_themselves_nothing_is_written(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_module, "_MOST_OFFSET_CHARACTERS", 0)
    done(stream)
    monkeypatch.undo()
    assert {each.ends and each.ends.lines for each in stream.epochs()} == {None}
    replace(stream, 3)
    refused(stream, 3)
    seen = finding(stream)
    assert seen.command == f"lance-stream resolve checkpoint {stream.uri} q --start-over --yes"
    assert "Only the digest" in seen.cause
    names, version = sorted(Path(stream.checkpoint).rglob("*")), stream.dataset.version
    with pytest.raises(CheckpointMismatchError, match="only the digest"):
        set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    assert (sorted(Path(stream.checkpoint).rglob("*")), stream.dataset.version) == (names, version)


def test_offsets_of_other_sources_are_not_written(stream: Stream) -> None:
    done(stream)
    path = offsets(stream, 3)
    path.write_bytes(path.read_bytes() + b'\n{"logOffset":9}')
    path.with_name(".3.crc").unlink(missing_ok=True)
    refused(stream, 3)
    with pytest.raises(CheckpointMismatchError, match=r"offsets/3 .* 2 sources"):
        set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)


def test_nothing_is_repaired_while_a_driver_lives(stream: Stream) -> None:
    stream.add(orders(0, 10))
    sink = stream.sink()
    query = sink.start(stream.read(), processingTime="100 milliseconds")
    try:
        wait_for("the first epoch", lambda: sink.totals.epochs == 1)
        changed = replace(stream, 0), offsets(stream, 0).read_bytes()
        assert finding(stream)
        with pytest.raises(DriverAliveError):
            set_files_aside(open_dataset(stream.uri), "q", by="anna")
        assert offsets(stream, 0).read_bytes() == changed[1]
    finally:
        query.stop()
        sink.release()
