from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from airflow_provider_lance.exceptions import (
    CheckpointCorruptError,
    StorageUnavailableError,
)
from airflow_provider_lance.protocol.checkpoint import Checkpoint, read_checkpoint, read_offsets
from airflow_provider_lance.protocol.files import ArrowFiles, open_files


class SparkFolder:
    """A checkpoint as Spark leaves it on a local disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def metadata(self, content: str) -> None:
        self.root.mkdir(exist_ok=True)
        (self.root / "metadata").write_text(content)
        (self.root / ".metadata.crc").write_bytes(b"crc")

    def log(self, folder: str, *epochs: int) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for epoch in epochs:
            (self.root / folder / str(epoch)).write_text("v1\n{}")
            (self.root / folder / f".{epoch}.crc").write_bytes(b"crc")

    def touch(self, path: str) -> None:
        (self.root / path).write_text("")

    def read(self) -> Checkpoint:
        return read_checkpoint(str(self.root), open_files(str(self.root)))


@pytest.fixture
def folder(tmp_path: Path) -> SparkFolder:
    return SparkFolder(tmp_path / "checkpoint")


def test_a_checkpoint_that_is_not_there_yet_is_empty(folder: SparkFolder) -> None:
    assert folder.read() == Checkpoint(str(folder.root))
    assert folder.read().in_flight is None


def test_reads_id_planned_and_committed(folder: SparkFolder) -> None:
    folder.metadata('{"id":"7f3c"}')
    folder.log("offsets", 0, 1, 2)
    folder.log("commits", 0, 1)
    assert folder.read() == Checkpoint(str(folder.root), "7f3c", planned=2, committed=1)
    assert folder.read().in_flight == 2


def test_nothing_is_in_flight_once_the_newest_epoch_is_done(folder: SparkFolder) -> None:
    folder.metadata('{"id":"7f3c"}')
    folder.log("offsets", 4)
    folder.log("commits", 4)
    assert folder.read().in_flight is None


def test_epochs_are_numbers_and_not_texts(folder: SparkFolder) -> None:
    folder.log("offsets", 9, 10, 100)
    folder.log("commits", 9, 10)
    seen = folder.read()
    assert (seen.planned, seen.committed) == (100, 10)


@pytest.mark.parametrize(
    "neighbour", [".12.crc", ".12.5e1f.tmp", "12.compact", ".12.compact.crc", "12.tmp", "_12"]
)
def test_what_spark_leaves_beside_the_numbers_is_no_epoch(
    folder: SparkFolder, neighbour: str
) -> None:
    for name in ("offsets", "commits"):
        folder.log(name, 3)
        folder.touch(f"{name}/{neighbour}")
    seen = folder.read()
    assert (seen.planned, seen.committed) == (3, 3)


def test_a_planned_first_epoch_without_a_commit_log_is_in_flight(folder: SparkFolder) -> None:
    folder.metadata('{"id":"7f3c"}')
    folder.log("offsets", 0)
    assert folder.read() == Checkpoint(str(folder.root), "7f3c", planned=0, committed=-1)
    assert folder.read().in_flight == 0


def test_logs_without_metadata_have_no_id(folder: SparkFolder) -> None:
    folder.log("offsets", 5)
    folder.log("commits", 5)
    assert folder.read() == Checkpoint(str(folder.root), None, planned=5, committed=5)


@pytest.mark.parametrize("content", ["", '{"id":', "{}", "[]", '"text"', "null"])
def test_damaged_metadata_is_refused_with_its_location(folder: SparkFolder, content: str) -> None:
    folder.metadata(content)
    with pytest.raises(CheckpointCorruptError, match="`metadata`.*queryId") as caught:
        folder.read()
    assert str(folder.root) in str(caught.value)


def test_tells_when_the_epoch_in_flight_was_planned(folder: SparkFolder) -> None:
    folder.log("offsets", 0, 1)
    folder.log("commits", 0)
    # As Spark writes it: version, metadata, one line for each source.
    meta = '{"batchWatermarkMs":0,"batchTimestampMs":1795190400123,"conf":{"a":"b"}}'
    (folder.root / "offsets" / "1").write_text(f'v1\n{meta}\n{{"logOffset":0}}')
    seen = folder.read()
    assert (seen.in_flight, seen.planned_at) == (1, "2026-11-20T16:00:00.123+00:00")


def test_the_moment_of_an_epoch_that_is_done_is_not_even_read(folder: SparkFolder) -> None:
    folder.log("offsets", 3)
    folder.log("commits", 3)
    (folder.root / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1795190400123}')
    assert folder.read().planned_at is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"v1",
        b"v1\n",
        b"v1\n{",
        b"v1\n[]",
        b"v1\n7",
        b"v1\n{}",
        b'v1\n{"batchTimestampMs":null}',
        b'v1\n{"batchTimestampMs":"now"}',
        b'v1\n{"batchTimestampMs":1e30}',
        b"v1\n\xff\xfe",
    ],
)
def test_a_moment_that_cannot_be_read_is_no_error(folder: SparkFolder, content: bytes) -> None:
    folder.log("offsets", 3)
    (folder.root / "offsets" / "3").write_bytes(content)
    seen = folder.read()
    assert (seen.in_flight, seen.planned_at) == (3, None)


def test_a_store_that_does_not_answer_for_the_newest_offsets_is_named() -> None:
    class Refusing:
        def read(self, path: str) -> bytes | None:
            if path == "metadata":
                return None
            raise StorageUnavailableError("not this file")

        def names(self, path: str) -> list[str]:
            return ["0"] if path == "offsets" else []

        def write(self, path: str, content: bytes) -> None:
            raise AssertionError("a checkpoint is Spark's alone")

        def remove(self, path: str) -> None:
            raise AssertionError("a checkpoint is Spark's alone")

    with pytest.raises(StorageUnavailableError, match="not this file"):
        read_checkpoint("/cp", Refusing(), with_ends=True)
    assert read_checkpoint("/cp", Refusing()) == Checkpoint("/cp", planned=0)


def test_commits_are_listed_before_offsets() -> None:
    """A live query must look in doubt rather than done; see the comment in the module."""
    asked: list[str] = []

    class Moving:
        def read(self, path: str) -> bytes | None:
            return b'{"id": "x"}'

        def names(self, path: str) -> list[str]:
            asked.append(path)
            return ["0"] if len(asked) == 1 else ["0", "1"]

        def write(self, path: str, content: bytes) -> None:
            raise AssertionError("a checkpoint is Spark's alone")

    assert read_checkpoint("/cp", Moving()).in_flight == 1
    assert asked == ["commits", "offsets"]


META = '{"batchWatermarkMs":0,"batchTimestampMs":1795190400123,"conf":{"a":"b"}}'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f'v1\n{META}\n{{"logOffset":7}}', ('{"logOffset":7}',)),
        (f"v1\n{META}\n-\n12", ("-", "12")),
        (f"v1\n\n{META}", (META,)),  # no metadata, as Spark allows
        (f"v1\n{META}\nsegment-0007", ("segment-0007",)),  # a source's own form
        (f'v1\n{META}\n{{"a":"x\u2028y"}}', ('{"a":"x\u2028y"}',)),  # no end of line to Spark
        # Spark writes named sources in any order.
        (f'v2\n{META}\nb:{{"logOffset":0}}\na:-', ("a:-", 'b:{"logOffset":0}')),
        (f'v2\n{META}\na:{{"x":{{"y":1}}}}', ('a:{"x":{"y":1}}',)),
    ],
)
def test_offsets_are_one_text_per_source(
    folder: SparkFolder, content: str, expected: tuple[str, ...]
) -> None:
    folder.log("offsets", 3)
    (folder.root / "offsets" / "3").write_text(content)
    assert read_offsets(open_files(str(folder.root)), 3) == expected


def test_offsets_that_are_not_there_are_none(folder: SparkFolder) -> None:
    folder.log("offsets", 3)
    assert read_offsets(open_files(str(folder.root)), 4) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"v", "first line is 'v'"),
        (b"\0" * 80, "first line is"),
        (b"v3\n{}\n{}", "first line is 'v3'"),
        (b"v1", "first source"),
        (f"v1\n{META}".encode(), "first source"),
        (f"v1\n{META[:30]}\n{{}}".encode(), "second line"),
        (f"v1\n{META}\n".encode(), "first source"),
        (f'v1\n{META}\n{{"logOff'.encode(), "source '0'"),
        (f"v2\n{META}\nna".encode(), "line 'na'"),
        (f'v2\n{META}\na:{{"log'.encode(), "source 'a'"),
        (b'v1\n{}\n{"a":"\xff"}', "utf-8"),
        (b"v1\n" + b"[" * 100_000 + b"\n-", "second line"),
    ],
)
def test_half_written_offsets_are_named(folder: SparkFolder, content: bytes, said: str) -> None:
    folder.log("offsets", 3)
    (folder.root / "offsets" / "3").write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match="offsets/3 of the checkpoint") as caught:
        read_offsets(open_files(str(folder.root)), 3)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["²", "٣", "9" * 200, "9223372036854775808", "007", "+7", "7 "])
def test_a_name_that_is_no_epoch_of_spark_is_passed_over(folder: SparkFolder, name: str) -> None:
    for log in ("offsets", "commits"):
        folder.log(log, 3)
        folder.touch(f"{log}/{name}")
    seen = folder.read()
    assert (seen.planned, seen.committed) == (3, 3)


def test_a_name_of_5000_digits_is_passed_over() -> None:
    class Folder(ArrowFiles):  # a store's keys may be longer than a disk's names
        def names(self, path: str) -> list[str]:
            return ["3", "9" * 5000]

        def read(self, path: str) -> None:
            return None

    seen = read_checkpoint("s3://b/c", Folder(LocalFileSystem(), "/"))
    assert (seen.planned, seen.committed) == (3, 3)


@pytest.mark.parametrize(
    "meta", ["1e999", "NaN", "1e30", "[" * 100_000, '"text"', "null", "9" * 5000, "\udcff"]
)
def test_garbage_in_the_newest_offsets_does_not_stop_a_look(folder: SparkFolder, meta: str) -> None:
    folder.log("offsets", 3)
    line = f'v1\n{{"batchTimestampMs":{meta}}}\n-'
    (folder.root / "offsets" / "3").write_bytes(line.encode("utf-8", "surrogateescape"))
    assert folder.read().planned_at is None
