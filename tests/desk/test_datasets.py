"""Datasets in trouble: restored, rolled back, with data files that are gone."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import lance

from airflow_provider_lance.diagnostics.findings import Code
from airflow_provider_lance.protocol.failpoints import Failpoint
from tests.desk.desk import ROWS, Desk, kind
from tests.desk.test_drivers import killed
from tests.support.sparkstream import orders


def restore_over(desk: Desk, keep: int = 2) -> None:
    """Restore the version of an epoch, over those after it."""
    epochs = desk.scene.stream.epochs()
    lance.dataset(desk.uri, version=epochs[keep - 1].version).restore()


@kind(
    "Somebody restored an older version; its rows must be back at once",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve restore --bring-back`",
)
def test_restored_and_brought_back(desk: Desk) -> None:
    restore_over(desk)
    found = desk.found()
    assert "epochs 2 to 3 of query q (80 rows)" in found["summary"]
    desk.follow(found, "own versions")
    desk.expect()


@kind(
    "Somebody restored an older version, and the source still has the rows",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve rewind`",
)
def test_restored_and_read_again(desk: Desk) -> None:
    restore_over(desk)
    desk.follow(desk.found(), "source still has")
    desk.expect()


@kind(
    "Somebody restored an older version, and the stream goes on without the rows",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve restore --accept`",
    lost=2 * ROWS,
)
def test_restored_and_accepted(desk: Desk) -> None:
    restore_over(desk)
    desk.follow(desk.found(), "without those 80 rows")
    desk.expect()


@kind(
    "An older version was restored, and others wrote rows since",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve restore --bring-back`, which appends the removed epochs again",
)
def test_restored_and_written_since(desk: Desk) -> None:
    restore_over(desk)
    lance.write_dataset(orders(10_000, 3), desk.uri, mode="append")
    desk.follow(desk.found(), "own versions")
    assert [desk.rows()[number] for number in range(10_000, 10_003)] == [1, 1, 1]
    lance.dataset(desk.uri).delete("id >= 10000")
    desk.expect()


@kind(
    "An older version was restored, and the versions that had the rows were cleaned up",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve rewind`",
)
def test_restored_and_cleaned_up(desk: Desk) -> None:
    restore_over(desk)
    newest = lance.dataset(desk.uri).version
    for epoch in desk.scene.stream.epochs()[2:]:
        for path in Path(desk.uri, "_versions").glob("*.manifest"):
            if int(path.stem) in (epoch.version, 2**64 - 1 - epoch.version):
                path.unlink()
    assert lance.dataset(desk.uri).version == newest
    desk.follow(desk.found(), "source still has")
    desk.expect()


@kind(
    "The dataset's folder was replaced by an older copy",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve rewind`",
)
def test_older_copy(desk: Desk, older: Path) -> None:
    shutil.rmtree(desk.uri)
    shutil.copytree(older / "table.lance", desk.uri)
    desk.follow(desk.found(), "no newer copy")
    desk.expect()


@kind(
    "A dataset was replaced by an older copy, and the stream went on",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve rewind`",
)
def test_older_copy_and_went_on(desk: Desk, older: Path) -> None:
    shutil.rmtree(desk.uri)
    shutil.copytree(older / "table.lance", desk.uri)
    desk.scene.add(3)
    assert desk.start().error is None
    desk.follow(desk.found(), "no newer copy")
    desk.expect()


@kind(
    "A rule of the bucket deleted the oldest data file",
    Code.COMMIT_LOG_AHEAD,
    ends="`resolve rewind --intact`",
)
def test_data_file_deleted(desk: Desk) -> None:
    fragments = lance.dataset(desk.uri).get_fragments()
    Path(desk.uri, "data", fragments[0].data_files()[0].path).unlink()
    desk.follow(desk.found(), "source still has")
    desk.expect()


def cleaned_up(desk: Desk) -> None:
    """Remove every version but the newest, as another tool's cleanup does."""
    lance.dataset(desk.uri).update_config({"a": "b"})
    lance.dataset(desk.uri).cleanup_old_versions(older_than=timedelta(0))


@kind(
    "The driver was killed after a commit, and a cleanup took the version that proves it",
    Code.HISTORY_GAP,
    ends="`resolve gap --committed`, after a look into the table",
)
def test_cleaned_up_after_a_commit(desk: Desk) -> None:
    killed(desk, Failpoint.COMMIT_LANDED)
    cleaned_up(desk)
    assert max(desk.rows()) == desk.scene.added * ROWS - 1
    desk.follow(desk.found(), "are in the table")
    desk.expect()


@kind(
    "The driver was killed before a commit, and a cleanup took the versions since the last fold",
    Code.HISTORY_GAP,
    ends="`resolve gap --missing`, after a look into the table",
)
def test_cleaned_up_before_a_commit(desk: Desk) -> None:
    killed(desk)
    cleaned_up(desk)
    assert max(desk.rows()) == (desk.scene.added - 1) * ROWS - 1
    desk.follow(desk.found(), "they are not")
    desk.expect()


@kind(
    "Somebody wrote a larger watermark into the config",
    Code.WATERMARK_JUMPED,
    ends="`resolve config`",
)
def test_watermark_jumped(desk: Desk) -> None:
    desk.scene.configure(lastEpoch="99")
    desk.follow(desk.found())
    desk.expect()


@kind(
    "Another tool wrote text over the watermark",
    Code.PROTOCOL_NEWER,
    ends="`resolve config`",
)
def test_watermark_garbage(desk: Desk) -> None:
    desk.scene.configure(lastEpoch="yesterday", lastEpochVersion="soon")
    assert "pip install" not in str(desk.found()["steps"])
    desk.follow(desk.found())
    desk.expect()


@kind(
    "The owner record was overwritten",
    Code.PROTOCOL_NEWER,
    ends="`resolve config`",
)
def test_owner_garbage(desk: Desk) -> None:
    desk.scene.configure(owner="{}")
    desk.follow(desk.found())
    desk.expect()


@kind(
    "The dataset's folder was replaced by an older copy, and the newer one is in a backup",
    Code.COMMIT_LOG_AHEAD,
    ends="the newer copy, put back",
)
def test_newer_copy_put_back(desk: Desk, older: Path, tmp_path: Path) -> None:
    newer = shutil.copytree(desk.uri, tmp_path / "newer")
    shutil.rmtree(desk.uri)
    shutil.copytree(older / "table.lance", desk.uri)

    def put_back() -> None:
        shutil.rmtree(desk.uri)
        shutil.copytree(newer, desk.uri)

    desk.follow(desk.found(), "is a newer copy", by_hand={"is a newer copy": put_back})
    desk.expect()
