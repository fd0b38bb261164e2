"""The second record of where an epoch ends: written once, and compared with Spark's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_lance.exceptions import FencedError, StorageUnavailableError
from airflow_provider_lance.protocol.checkpoint import Checkpoint
from airflow_provider_lance.protocol.model import NO_EPOCH, EndOffsets, QueryState, Watermark
from airflow_provider_lance.protocol.offset_notes import (
    NOTES,
    OffsetNote,
    OffsetNotes,
    changed_entries,
    files_of,
    local_folder,
    read_entries,
)
from airflow_provider_lance.protocol.proof import changed_ends, changed_files
from airflow_provider_lance.testing.dataset import InMemoryDataset
from tests.support.drivers import SparkLike, World, twin_world

HERE, THERE = EndOffsets.of(['{"logOffset":3}']), EndOffsets.of(['{"logOffset":4}'])


@pytest.fixture
def notes(tmp_path: Path) -> OffsetNotes:
    return OffsetNotes(tmp_path)


def line(file: str, number: int) -> str:
    return json.dumps({"path": f"file:///in/{file}", "timestamp": 1, "batchId": number})


def write_entry(folder: Path, name: str, *lines: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(["v1", *lines]))


def noted(notes: OffsetNotes, epoch: int, number: int, *lines: str) -> None:
    note = OffsetNote(HERE, {f"sources/0/{number}": EndOffsets.of(sorted(lines))})
    assert notes.add(epoch, note)


# ------------------------------------------------------------------------------------ one note


def test_the_first_note_of_an_epoch_stays(notes: OffsetNotes) -> None:
    assert notes.add(3, OffsetNote(HERE))
    assert notes.add(3, OffsetNote(HERE)), "a replay of the same plan"
    assert not notes.add(3, OffsetNote(THERE))
    assert not notes.add(3, OffsetNote(HERE, {"sources/0/3": THERE}))
    assert notes.read(3) == OffsetNote(HERE)
    notes.replace(3, OffsetNote(THERE))
    assert notes.read(3) == OffsetNote(THERE)


def test_a_note_that_was_cut_off_says_nothing_and_is_not_taken_for_ones_own(
    notes: OffsetNotes,
) -> None:
    notes.add(3, OffsetNote(HERE))
    path = notes.checkpoint / NOTES / "3"
    path.write_text(path.read_text()[:20])
    assert notes.read(3) is None
    assert not notes.add(3, OffsetNote(HERE))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"endOffsetsDigest":"x"}', '{"entries":{"a":1}}']
)
def test_garbage_in_place_of_a_note_says_nothing(notes: OffsetNotes, text: str) -> None:
    (notes.checkpoint / NOTES).mkdir()
    (notes.checkpoint / NOTES / "0").write_text(text)
    assert notes.read(0) is None


def test_long_offsets_and_entries_are_kept_as_digests(notes: OffsetNotes) -> None:
    long = EndOffsets.of(["x" * 5000])
    notes.add(0, OffsetNote(long, {"sources/0/0": long}))
    assert (notes.checkpoint / NOTES / "0").stat().st_size < 400
    assert notes.read(0) == OffsetNote(long, {"sources/0/0": long})


def test_a_hundred_notes_are_kept(notes: OffsetNotes) -> None:
    for epoch in range(103):
        notes.add(epoch, OffsetNote(HERE))
    assert notes.epochs() == list(range(3, 103))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text("a file")
    with pytest.raises(StorageUnavailableError, match=str(tmp_path / NOTES)):
        OffsetNotes(tmp_path).add(0, OffsetNote(HERE))


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/data/c", "/data/c"),
        ("file:/data/a b", "/data/a b"),
        ("file:///data/100%", "/data/100%"),
        ("s3://bucket/c", None),
        ("hdfs://host/c", None),
    ],
)
def test_only_a_local_checkpoint_has_a_folder(location: str, folder: str | None) -> None:
    assert local_folder(location) == (Path(folder) if folder else None)


# ------------------------------------------------------------------------------ what is compared


def test_ends_of_an_epoch_that_is_not_done_are_not_compared() -> None:
    checkpoint = Checkpoint(
        "/c",
        planned=3,
        committed=2,
        ends={2: THERE.lines or (), 3: THERE.lines or ()},
        notes={2: OffsetNote(HERE), 3: OffsetNote(HERE)},
        changed_entries={2: {"sources/0/2": HERE}, 3: {"sources/0/3": HERE}},
    )
    state = QueryState("q", 1)
    nothing, landed = Watermark(NO_EPOCH, 1, None), Watermark(3, 1, None)
    assert changed_ends(checkpoint, state, nothing) == {2: HERE}
    assert changed_ends(checkpoint, state, landed) == {2: HERE, 3: HERE}
    assert changed_files(checkpoint, nothing) == {"sources/0/2": HERE}
    assert set(changed_files(checkpoint, landed)) == {"sources/0/2", "sources/0/3"}


def test_an_entry_with_other_files_is_found(notes: OffsetNotes) -> None:
    folder = notes.checkpoint / "sources/0"
    for number in range(3):
        write_entry(folder, str(number), line(f"b{number}", number), line(f"a{number}", number))
        noted(notes, number, number, line(f"a{number}", number), line(f"b{number}", number))
    assert changed_entries(notes) == {}, "in any order"
    write_entry(folder, "1", line("a1", 1))
    ((epoch, found),) = changed_entries(notes).items()
    assert (epoch, list(found)) == (1, ["sources/0/1"])
    assert files_of(found["sources/0/1"].lines or ()) == {"file:///in/a1", "file:///in/b1"}


def test_what_a_compact_entry_has_is_what_counts(notes: OffsetNotes) -> None:
    folder = notes.checkpoint / "sources/0"
    for number in (7, 8, 9):
        noted(notes, number, number, line(f"f{number}", number))
    write_entry(folder, "7", line("other", 7))
    write_entry(folder, "9.compact", *(line(f"f{number}", number) for number in range(10)))
    assert changed_entries(notes) == {}, "Spark no longer reads entry 7"
    write_entry(folder, "9.compact", *(line("x", number) for number in range(10)))
    changed = changed_entries(notes)
    assert set(changed) == {7, 8, 9}
    assert changed[8]["sources/0/8"].lines is None, "an entry that was compacted is not written"
    assert changed[7]["sources/0/7"].lines is not None


def test_what_is_missing_or_of_another_source_is_not_compared(notes: OffsetNotes) -> None:
    noted(notes, 3, 3, line("f", 3))
    assert changed_entries(notes) == {}
    write_entry(notes.checkpoint / "sources/0", "0", "anything", '{"batchId":x}')
    assert read_entries(notes.checkpoint / "sources/0", [0, 1]) == {}


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", "[" * 5000])
def test_a_line_that_is_cut_off_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"an entry with files|Expecting"):
        files_of([text])


# ---------------------------------------------------------------------------------- contention


@pytest.fixture
def world() -> World:
    return twin_world(InMemoryDataset())


def test_a_driver_whose_epoch_another_has_done_is_fenced(world: World) -> None:
    log: dict[str, int] = {}
    successor = SparkLike(world, log)
    late = SparkLike(world, log, run_id="late")
    successor.step()
    with pytest.raises(FencedError, match="another driver continued"):
        late.committer.contend(0)
    assert successor.committer.owner
    successor.step()


def test_the_driver_that_contends_for_an_open_epoch_owns_the_query(world: World) -> None:
    log: dict[str, int] = {}
    first, second = SparkLike(world, log), SparkLike(world, log, run_id="second")
    second.committer.contend(0)
    assert second.committer.owner
    second.committer.contend(0)
    first.committer.contend(0)
    with pytest.raises(FencedError):
        second.committer.contend(0)
