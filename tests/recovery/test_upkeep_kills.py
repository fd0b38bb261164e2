"""Two drivers of one dataset look after it by themselves, and are killed wherever they are."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from tests.recovery.test_maintenance_race import expected, found, race

pytestmark = pytest.mark.slow

SECONDS = 12


def test_streams_that_look_after_one_table_are_killed_and_write_each_row_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "upkeep").touch()
    streams, _ = race(tmp_path, [], SECONDS)
    assert [stream.failed for stream in streams] == [[], []]
    assert found(tmp_path) == expected(streams)
    assert all(stream.kills for stream in streams)
    dataset = lance.dataset(str(tmp_path / "t.lance"))
    epochs = sum(stream.done + 1 for stream in streams)
    assert len(dataset.get_fragments()) < epochs / 2
    assert dataset.versions()[0]["version"] > 1, "old versions were removed"
