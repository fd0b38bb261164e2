"""Short runs of the laboratory of routes: one that must find nothing, and one that must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cdc.routes import main


def test_kills_between_two_tables_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kills", "6", "--seed", "7", "--folder", str(tmp_path)]) == 0
    assert "0 tables differ" in capsys.readouterr().out


def test_laboratory_finds_lost_rows_where_the_home_commits_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ["--kills", "4", "--seed", "7", "--folder", str(tmp_path), "--home-first"]
    assert main(order) == 1
    assert "missing Counter({(" in capsys.readouterr().out
