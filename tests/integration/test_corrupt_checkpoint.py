"""Files of a checkpoint that a crash left empty or cut off: real streams before and after.

Each case is a stream of four epochs, with an end like a crash, in which some files are corrupt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.exceptions import CheckpointCorruptError
from airflow_provider_lance.protocol.dataset import open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.repair.set_aside import set_files_aside
from tests.support.sparkstream import Stream, orders

FILE_SYSTEM_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class CrashError(Exception):
    """Ends a run in the middle of an epoch."""


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    made = Stream(spark, tmp_path)
    made.create()
    return made


@pytest.fixture
def checking_manager(spark: SparkSession) -> Iterator[None]:
    """Use the checkpoint manager that compares with Hadoop's checksums; the default does not."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    spark.conf.set(name, FILE_SYSTEM_MANAGER)
    yield
    spark.conf.unset(name)


def test_stream_starts_after_a_kill_while_spark_wrote_its_first_entry(stream: Stream) -> None:
    half = ".0.0895511c-adf2-4a2a-9265-921b36b54b94.tmp"
    for log in ("offsets", "commits"):
        folder = Path(stream.checkpoint, log)
        folder.mkdir(parents=True)
        (folder / half).touch()
        (folder / f".{half}.crc").touch()
    stream.add(orders(0, 10))
    stream.run()
    assert stream.table().num_rows == 10


def planned(stream: Stream, epochs: int = 3) -> None:
    """Crash after so many epochs, with another that is planned and not committed."""
    for number in range(epochs):
        stream.add(orders(number * 10, 10))
    if epochs:
        stream.run()
    stream.add(orders(epochs * 10, 10))

    def crash(step: Failpoint) -> None:
        # The owner is dead afterwards, as far as the dataset can tell.
        if step is Failpoint.COMMIT_CHECKED:
            raise CrashError

    sink = stream.sink()
    sink._on_step = crash
    with pytest.raises(StreamingQueryException):
        sink.start(stream.read(), availableNow=True).awaitTermination()
    assert isinstance(sink.error, CrashError)
    sink.release()


def landed(stream: Stream) -> None:
    """Crash with epoch 3 in the dataset, and not in Spark's commit log."""
    done(stream)
    assert stream.forget_last_commit() == 3


def done(stream: Stream) -> None:
    for number in range(4):
        stream.add(orders(number * 10, 10))
    stream.run()


def corrupt(stream: Stream, *paths: str) -> None:
    """Leave files empty, or (with ``half:``) cut off, or (``crc:``) unlike their checksums."""
    for path in paths:
        how, _, name = path.rpartition(":")
        file = Path(stream.checkpoint, name)
        content = file.read_bytes()
        if how == "crc":
            file.write_bytes(content.replace(b"0", b"1"))
            continue
        file.write_bytes(content[: len(content) * 2 // 3] if how == "half" else b"")
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def assert_exactly_once(stream: Stream, epochs: int) -> None:
    assert sorted(stream.table()["id"].to_pylist()) == list(range(epochs * 10))


def refused_by_name(stream: Stream) -> CheckpointCorruptError:
    version = stream.dataset.version
    with pytest.raises(CheckpointCorruptError) as caught:
        stream.run()
    assert stream.dataset.version == version
    return caught.value


@pytest.mark.parametrize(
    ("crash", "files", "aside"),
    [
        (planned, ["offsets/3"], ["offsets/3"]),
        (planned, ["half:offsets/3"], ["offsets/3"]),
        (planned, ["sources/0/3"], ["offsets/3", "sources/0/3"]),
        (planned, ["half:sources/0/3"], ["offsets/3", "sources/0/3"]),
        (planned, ["commits/2"], ["commits/2"]),
        (planned, ["half:commits/2"], ["commits/2"]),
        (planned, ["offsets/3", "sources/0/3", "commits/2"], None),
        (landed, ["commits/2"], ["commits/2"]),
        (done, ["commits/3"], ["commits/3"]),
        (done, ["half:commits/3"], ["commits/3"]),
    ],
)
def test_what_is_proven_is_set_aside_and_no_row_is_lost_or_doubled(
    stream: Stream, crash: object, files: list[str], aside: list[str] | None
) -> None:
    assert callable(crash)
    crash(stream)
    before = {each.rpartition(":")[2]: each for each in files}
    corrupt(stream, *files)
    said = str(refused_by_name(stream))
    assert all(path in said for path in before)
    assert f"lance-stream resolve files {stream.uri} q --yes" in said

    found = check(open_dataset(stream.uri), ["q"]).findings
    (finding,) = [each for each in found if each.code is Code.CHECKPOINT_CORRUPT]
    assert finding.command == f"lance-stream resolve files {stream.uri} q --yes"

    plan = set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True, dry_run=True)
    assert all(Path(stream.checkpoint, path).exists() for path in plan.moves)
    content = {path: Path(stream.checkpoint, path).read_bytes() for path in plan.moves}
    repaired = set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    assert list(repaired.moves) == list(plan.moves)
    assert sorted(repaired.moves) == sorted(aside or before)
    kept = {path: Path(stream.checkpoint, to).read_bytes() for path, to in repaired.moves.items()}
    assert kept == content

    stream.add(orders(40, 10))
    stream.run()
    assert_exactly_once(stream, 5)
    assert len({stamp.epoch_id for stamp in stream.epochs()}) == len(stream.epochs())
    assert not check(open_dataset(stream.uri), ["q"]).findings[0].command


@pytest.mark.parametrize(
    ("crash", "files", "said"),
    [
        (landed, ["offsets/3"], "only offsets/3 says where epoch 3 ends"),
        (done, ["offsets/3"], "only offsets/3 says where epoch 3 ends"),
        (done, ["half:offsets/2"], "only offsets/2 says where epoch 3 begins"),
        (planned, ["offsets/2"], "only offsets/2 says where epoch 3 begins"),
        (landed, ["sources/0/3"], "only sources/0/3 says"),
        (done, ["sources/0/3"], "only sources/0/3 says"),
    ],
)
def test_what_is_not_proven_is_left_as_it_is_and_the_ways_out_are_said(
    stream: Stream, crash: object, files: list[str], said: str
) -> None:
    assert callable(crash)
    crash(stream)
    corrupt(stream, *files)
    told = str(refused_by_name(stream))
    assert said in told
    assert "Restore the file" in told
    names = sorted(Path(stream.checkpoint).rglob("*"))
    version = stream.dataset.version
    with pytest.raises(CheckpointCorruptError, match=said):
        set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    assert (sorted(Path(stream.checkpoint).rglob("*")), stream.dataset.version) == (names, version)


def test_an_older_entry_of_the_source_log_is_found_by_the_check(stream: Stream) -> None:
    # Spark fails on it, too; a start reads the newest ones only.
    done(stream)
    corrupt(stream, "sources/0/1")
    with pytest.raises(StreamingQueryException, match="sources/0/1"):
        stream.run()
    assert Code.CHECKPOINT_CORRUPT in {
        each.code for each in check(open_dataset(stream.uri), ["q"]).findings
    }


def test_a_source_log_that_was_compacted_is_repaired_likewise(stream: Stream) -> None:
    planned(stream, epochs=9)
    entry = Path(stream.checkpoint, "sources/0/9.compact")
    assert entry.exists()
    corrupt(stream, "sources/0/9.compact")
    refused_by_name(stream)
    repaired = set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    assert list(repaired.moves) == ["offsets/9", "sources/0/9.compact"]
    stream.add(orders(100, 10))
    stream.run()
    assert_exactly_once(stream, 11)
    assert entry.exists()


def test_the_first_epoch_is_planned_again(stream: Stream) -> None:
    planned(stream, epochs=0)
    lance.dataset(stream.uri)
    corrupt(stream, "offsets/0")
    refused_by_name(stream)
    repaired = set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    assert "no epoch" in repaired.sentence
    stream.run()
    assert_exactly_once(stream, 1)


def test_a_file_unlike_its_checksum_is_named(stream: Stream, checking_manager: None) -> None:
    planned(stream)
    corrupt(stream, "crc:offsets/3")
    assert "offsets/3 (its checksum" in str(refused_by_name(stream))
    set_files_aside(open_dataset(stream.uri), "q", by="anna", proven_dead=True)
    stream.run()
    assert_exactly_once(stream, 4)


def test_what_a_crash_leaves_beside_the_files_is_passed_over(stream: Stream) -> None:
    planned(stream)
    for name in ("offsets/.4.9f.tmp", "offsets/.4.crc", "commits/.3.9f.tmp", "sources/0/.4.9f.tmp"):
        Path(stream.checkpoint, name).write_bytes(b"")
    stream.run()
    assert_exactly_once(stream, 4)


def test_corrupt_checkpoint_of_an_unknown_query_advises_a_new_checkpoint(stream: Stream) -> None:
    planned(stream)
    corrupt(stream, "offsets/3")
    shutil.rmtree(stream.uri)
    stream.create()
    with pytest.raises(Exception, match="new checkpointLocation"):
        stream.run()
