"""Checkpoints in trouble: moved, swapped, deleted, rolled back, cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_lance.diagnostics.findings import Code
from tests.desk.desk import Desk, kind


@pytest.fixture
def other(desk: Desk) -> Path:
    """Run another query of the same source, into a table of its own; return its checkpoint."""
    place = desk.checkpoint.with_name("other")
    desk.start_well(uri=f"{place}.lance", queryId="other", checkpointLocation=str(place))
    return place


@kind(
    "Two queries' checkpoints were swapped",
    Code.CHECKPOINT_FOREIGN,
    ends="three `mv`, which move each to its own place",
)
def test_swapped(desk: Desk, other: Path) -> None:
    aside = other.with_name("aside")
    desk.checkpoint.rename(aside)
    other.rename(desk.checkpoint)
    aside.rename(other)
    line = f"lance-stream resolve checkpoint {desk.uri} q --checkpoint {desk.checkpoint} --yes"
    ran = desk.type(line)
    assert ran.returncode == 1, "it would overwrite the right id"
    assert "belongs to query 'other'" in ran.stderr
    desk.follow(desk.found())
    desk.start_well(queryId="other", uri=f"{other}.lance", checkpointLocation=str(other))
    desk.expect()


@kind(
    "Another query's checkpoint was copied over this one, and a backup exists",
    Code.CHECKPOINT_FOREIGN,
    ends="the backup, put back",
)
def test_copied_over(desk: Desk, other: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(desk.checkpoint, tmp_path / "backup")
    shutil.rmtree(desk.checkpoint)
    shutil.copytree(other, desk.checkpoint)

    def put_back() -> None:
        shutil.rmtree(desk.checkpoint)
        shutil.copytree(backup, desk.checkpoint)

    desk.follow(desk.found(), "If a backup", by_hand={"If a backup": put_back})
    desk.expect()


@kind(
    "The checkpoint's folder was renamed", Code.CHECKPOINT_MISSING, ends="one `mv`, to move it back"
)
def test_renamed(desk: Desk) -> None:
    desk.checkpoint.rename(desk.checkpoint.with_name("checkpoint old"))
    desk.follow(desk.found())
    desk.expect()


@kind(
    "The checkpoint was deleted, there is no backup, and the source has all rows",
    Code.CHECKPOINT_MISSING,
    ends="`resolve checkpoint --start-over`",
)
def test_deleted(desk: Desk) -> None:
    shutil.rmtree(desk.checkpoint)
    desk.follow(desk.found(), "no backup")
    desk.expect()


@kind(
    "An older copy of the checkpoint was restored; the newest lies beside it",
    Code.CHECKPOINT_OLDER,
    ends="`mv`, to put the newest back",
)
def test_older_beside(desk: Desk, older: Path) -> None:
    desk.checkpoint.rename(desk.checkpoint.with_name("before"))
    shutil.copytree(older / "checkpoint", desk.checkpoint)
    desk.follow(desk.found())
    desk.expect()


@kind(
    "An older copy of the checkpoint was restored, and the newest is lost",
    Code.CHECKPOINT_OLDER,
    ends="`resolve rewind`, which takes the table back as well",
)
def test_older(desk: Desk, older: Path) -> None:
    shutil.rmtree(desk.checkpoint)
    shutil.copytree(older / "checkpoint", desk.checkpoint)
    desk.follow(desk.found(), "no backup")
    desk.expect()


@kind(
    "The dataset was dropped and created again",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve checkpoint --start-over`",
)
def test_dropped_and_recreated(desk: Desk) -> None:
    shutil.rmtree(desk.uri)
    desk.scene.stream.create()
    found = desk.found("q", "--checkpoint", str(desk.checkpoint))
    desk.follow(found, "source still has")
    desk.expect()


@kind(
    "The checkpoint's `metadata` was overwritten, there is no backup, and the source has all rows",
    Code.CHECKPOINT_UNREADABLE,
    ends="`resolve checkpoint --start-over`",
)
def test_overwritten_metadata(desk: Desk) -> None:
    Path(desk.checkpoint, "metadata").write_text("not JSON")
    desk.follow(desk.found(), "begin again")
    desk.expect()


@kind(
    "An offset file of the checkpoint was cut off",
    Code.CHECKPOINT_CORRUPT,
    ends="`resolve files`",
)
def test_cut_off_offset_file(desk: Desk) -> None:
    desk.scene.add()
    last = desk.checkpoint / "offsets" / "4"
    last.write_text("v1\n{")
    found = desk.found()
    assert "offsets/4" in found["summary"]
    desk.follow(found)
    desk.start_well()
    desk.expect()


@kind(
    "The offset file of the newest epoch was edited",
    Code.CHECKPOINT_CHANGED,
    ends="`resolve files`, from the commit",
)
def test_edited_offset_file(desk: Desk) -> None:
    newest = desk.checkpoint / "offsets" / "3"
    newest.write_text(newest.read_text().replace('"logOffset":3', '"logOffset":2'))
    desk.follow(desk.found())
    desk.expect()
