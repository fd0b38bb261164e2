"""Which files of a checkpoint are corrupt, and what is proven about them."""

from __future__ import annotations

import re
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.protocol.checkpoint import read_checkpoint
from airflow_provider_lance.protocol.checkpoint_corruption import Corruption, assess
from airflow_provider_lance.protocol.checkpoint_files import find_corrupt
from airflow_provider_lance.protocol.files import ArrowFiles, open_files

META = '{"batchWatermarkMs":0,"batchTimestampMs":1}'
ENTRY = '{"path":"file:///s/%d","timestamp":1,"batchId":%d}'


class Checkpoint:
    """A checkpoint of a file source, one entry of its log per epoch."""

    def __init__(self, root: Path, *, planned: int, committed: int, entries: int) -> None:
        self.root, self.files = root, open_files(str(root))
        self.write("metadata", '{"id":"cp"}')
        for epoch in range(planned + 1):
            self.write(f"offsets/{epoch}", f'v1\n{META}\n{{"logOffset":{epoch}}}')
        for epoch in range(committed + 1):
            self.write(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":0}')
        for entry in range(entries + 1):
            self.write(f"sources/0/{entry}", f"v1\n{ENTRY % (entry, entry)}")

    def write(self, path: str, content: str | bytes = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def assess(self, watermark: int) -> Corruption | None:
        return assess(self.files, read_checkpoint(str(self.root), self.files), watermark)

    def found(self) -> list[str]:
        seen = read_checkpoint(str(self.root), self.files)
        return [each.path for each in find_corrupt(self.files, seen)]


@pytest.fixture
def crashed(tmp_path: Path) -> Checkpoint:
    """Epoch 3 is planned, and the files of epoch 4 are in the source's log already."""
    return Checkpoint(tmp_path / "cp", planned=3, committed=2, entries=4)


def proven(found: Corruption | None) -> list[str]:
    assert found is not None
    return list(found.set_aside)


def test_a_whole_checkpoint_is_not_corrupt(crashed: Checkpoint) -> None:
    assert (crashed.found(), crashed.assess(2)) == ([], None)


@pytest.mark.parametrize(
    ("empty", "watermark", "aside"),
    [
        (["offsets/3"], 2, ["offsets/3"]),
        (["offsets/3"], 3, []),
        (["sources/0/4"], 2, ["offsets/3", "sources/0/4"]),
        (["sources/0/4"], 3, ["sources/0/4"]),
        (["sources/0/3"], 2, ["offsets/3", "sources/0/4", "sources/0/3"]),
        (["sources/0/3"], 3, []),
        (["sources/0/2"], 2, []),
        (["commits/2"], 2, ["commits/2"]),
        (["commits/2"], 3, ["commits/2"]),
        (["offsets/3", "commits/2"], 2, ["offsets/3", "commits/2"]),
        (["offsets/2"], 2, []),
        (["offsets/2", "offsets/3"], 2, []),
        (["offsets/3", "offsets/1"], 2, []),  # without epoch 3, Spark reads epochs 2 and 1
        (["offsets/1"], 2, None),  # and not while epoch 3 is there
        (["commits/1"], 2, None),
        (["offsets/9"], 2, ["offsets/9"]),  # never planned
        (["commits/9"], 2, ["commits/9"]),
        (["offsets/3", "commits/1", "sources/0/3"], 2, ["offsets/3", "sources/0/4", "sources/0/3"]),
    ],
)
def test_only_what_was_planned_after_the_newest_done_epoch_is_set_aside(
    crashed: Checkpoint, empty: list[str], watermark: int, aside: list[str] | None
) -> None:
    for path in empty:
        crashed.write(path)
    found = crashed.assess(watermark)
    assert found is None if aside is None else proven(found) == aside
    assert bool(crashed.found()) <= (found is not None)


def test_until_the_last_file_is_gone_spark_still_fails(crashed: Checkpoint) -> None:
    for path in ("offsets/3", "commits/2", "sources/0/3"):
        crashed.write(path)
    moves = proven(crashed.assess(2))
    for done in range(len(moves)):
        root = crashed.root.with_name(f"after-{done}")
        shutil.copytree(crashed.root, root)
        part = open_files(str(root))
        for path in moves[:done]:
            part.move(path, f"set-aside/now/{path}")
        seen = assess(part, read_checkpoint(str(root), part), 2)
        assert proven(seen) == moves[done:], "a second call goes on where the first was killed"
    for path in moves:
        crashed.files.move(path, f"set-aside/now/{path}")
    assert crashed.assess(2) is None


def test_state_versions_in_a_commit_that_the_next_epoch_needs_are_kept(crashed: Checkpoint) -> None:
    crashed.write("commits/1", 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}')
    crashed.write("commits/2")
    found = crashed.assess(2)
    assert proven(found) == []
    assert found
    assert re.search("epoch 3 .*commits/2$", found.reason)
    (crashed.root / "offsets" / "3").unlink()
    (crashed.root / "sources" / "0" / "4").unlink()
    assert proven(crashed.assess(2)) == ["commits/2"], "epoch 2 is run again, and writes them"


def test_the_files_of_other_sources_are_not_judged(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path / "cp", planned=2, committed=1, entries=-1)
    for epoch in range(3):
        made.write(f"offsets/{epoch}", f'v1\n{META}\n{{"orders":{{"0":{epoch}}}}}')
    made.write("sources/0/0", b'\0v1\n{"orders":{"0":0}}')  # Kafka's start
    assert (made.found(), made.assess(1)) == ([], None)
    made.write("sources/0/0")
    assert proven(made.assess(1)) == []


def test_named_sources_have_folders_of_their_names(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path / "cp", planned=2, committed=1, entries=-1)
    for epoch in range(3):
        lines = f'b:{{"logOffset":{epoch}}}\na:{{"logOffset":0}}'
        made.write(f"offsets/{epoch}", f"v2\n{META}\n{lines}")
        made.write(f"sources/b/{epoch}", f"v1\n{ENTRY % (epoch, epoch)}")
    made.write("sources/a/0", f"v1\n{ENTRY % (0, 0)}")
    assert (made.found(), made.assess(1)) == ([], None)
    made.write("sources/b/2")
    assert made.found() == ["sources/b/2"]
    assert proven(made.assess(1)) == ["offsets/2", "sources/b/2"]


@pytest.mark.parametrize("agrees", [True, False])
def test_checksums_of_a_local_disk_are_compared(crashed: Checkpoint, agrees: bool) -> None:
    content = (crashed.root / "offsets" / "3").read_bytes()
    sums = struct.pack(">I", zlib.crc32(content if agrees else b"other"))
    crashed.write("offsets/.3.crc", b"crc\0" + struct.pack(">i", 512) + sums)
    assert (crashed.assess(2) is None) is agrees


def test_a_start_lists_nothing_for_it_and_reads_seven_files_at_most(crashed: Checkpoint) -> None:
    read: list[str] = []

    class Counting(ArrowFiles):
        def read(self, path: str) -> bytes | None:
            read.append(path)
            return crashed.files.read(path)

        def names(self, path: str) -> list[str]:
            raise AssertionError(path)

    seen = read_checkpoint(str(crashed.root), crashed.files)
    (crashed.root / "sources" / "0" / "4").unlink()
    assert find_corrupt(Counting(crashed.files._fs, "/"), seen) == ()
    assert read == [
        "offsets/3", "offsets/2", "commits/2",
        "sources/0/3", "sources/0/4", "sources/0/4.compact",
    ]  # fmt: skip


NAMES = [
    "offsets/0",
    "offsets/1",
    "offsets/²",
    "offsets/007",
    "commits/0",
    "commits/1",
    "commits/9",
]
NAMES += ["sources/0/0", "sources/0/1", "sources/0/2.compact", "sources/x/5", "metadata"]
TEXTS = [
    b"",
    b"v1",
    b"v1\n",
    b"v2\n{}\na:-",
    b'v1\n{}\n{"logOffset":1}',
    b'v1\n{}\n{"logOffset":-9}',
]
TEXTS += [b"v1\n{}\n-", b"[" * 50_000, b'{"id":"x"}', b"v1\n{}\n" + b"9" * 5000, b"\xff\xfe"]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS) | st.binary(max_size=40)),
    st.integers(-1, 3),
)
def test_any_content_of_a_checkpoint_raises_only_errors_of_the_package(
    contents: dict[str, bytes], watermark: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in contents.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        files = open_files(folder)
        try:
            seen = read_checkpoint(folder, files)
        except LanceStreamError:
            assert "metadata" in contents
            return
        find_corrupt(files, seen)
        found = assess(files, seen, watermark)
        if found and found.set_aside:
            for path in found.set_aside:
                files.move(path, f"set-aside/{path}")
            assert assess(files, read_checkpoint(folder, files), watermark) is None
