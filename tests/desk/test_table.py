"""The page has the table that the kinds register."""

from __future__ import annotations

from pathlib import Path

from tests.desk.table import HEAD, lines

PAGE = Path(__file__).parents[2] / "docs/how-to/trouble-table.md"


def test_the_page_has_each_kind_of_trouble_as_its_test_registers_it() -> None:
    text = PAGE.read_text()
    shown = [HEAD, *text.split(HEAD)[1].strip().splitlines()]
    assert shown == list(lines()), "write the table of `python -m tests.desk` into the page"
