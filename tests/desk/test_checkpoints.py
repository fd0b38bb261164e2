"""Checkpoints in trouble."""

from __future__ import annotations

from airflow_provider_lance.diagnostics.findings import Code
from tests.desk.desk import Desk, kind


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
