"""A chain of three streams whose drivers are killed, and that a wrong source would be noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.chain.links import expected_cleaned, expected_totals
from tests.chaos.test_chaos import wait_for_end_of_drivers
from tests.support.processes import finish, python

FIGURES = ("chains", "kills", "kills at points", "epochs", "rows", "lost", "duplicated", "failed")


def chain(home: Path, *arguments: str) -> tuple[int, dict[str, int], str]:
    """Run the program; return its exit status, the figures of its last line, and all it printed."""
    environment = {"TMPDIR": str(home), "JAVA_TOOL_OPTIONS": ""}
    process = python("-m", "tests.chaos.chain", *arguments, environment=environment)
    status, output = finish(process, seconds=500)
    said = re.search(", ".join(rf"(\d+) {name}" for name in FIGURES), output)
    assert said, output
    return status, dict(zip(FIGURES, map(int, said.groups()), strict=True)), output


def test_expected_rows_of_the_chain_count_each_landed_row_once() -> None:
    landed = [(1, 0, "a", 5, "u"), (2, 0, "b", 7, "u"), (1, 1, "b", 4, "u"), (2, 1, "b", 1, "d")]
    cleaned = expected_cleaned(landed)
    assert cleaned == {(1, 1, "b", 4, "u", 2, 9): 1}
    assert expected_totals(cleaned) == {("b", 1, 9): 1}


@pytest.mark.slow
def test_chain_loses_and_doubles_no_row_when_its_drivers_are_killed(tmp_path: Path) -> None:
    status, figures, output = chain(tmp_path, "--kills", "6", "--seed", "1")
    assert status == 0, output
    assert (figures["lost"], figures["duplicated"], figures["failed"]) == (0, 0, 0)
    assert figures["kills"] >= 6
    assert list(tmp_path.iterdir()) == [], "it cleans up after itself"
    wait_for_end_of_drivers(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("reads", "bad"), [("forgetful", "lost"), ("newest", "duplicated")])
def test_chain_finds_the_rows_of_a_source_that_reads_from_or_to_the_wrong_version(
    tmp_path: Path, reads: str, bad: str
) -> None:
    status, figures, output = chain(tmp_path, "--kills", "6", "--seed", "1", "--reads", reads)
    assert status == 1, output
    assert figures[bad] > 0
    wait_for_end_of_drivers(tmp_path)
