"""The crash laboratory, a few rounds of it, and that it would notice.

`make test` has no time for more; three hundred rounds are `python -m tests.chaos`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.report import BAD, SAID
from tests.support.processes import finish, python, wait_for

SEED = "2465"
"""Of its four rounds three kill a driver, after a commit and in claims, and one restores an older
version between two drivers. On two of them the store fails."""


def laboratory(home: Path, *arguments: str) -> tuple[int, dict[str, int], str]:
    """Run the program; return its exit status, the figures of its last line, and all it printed."""
    environment = {"TMPDIR": str(home), "JAVA_TOOL_OPTIONS": ""}
    process = python("-m", "tests.chaos", *arguments, environment=environment)
    status, output = finish(process, seconds=500)
    said = re.search(", ".join(rf"(\d+) {name}" for name in SAID), output)
    assert said, output
    return status, dict(zip(SAID, map(int, said.groups()), strict=True)), output


def wait_for_end_of_drivers(home: Path) -> None:
    """Wait until nothing runs with this folder in its environment or arguments.

    A Python worker's daemon notices the end of its JVM a moment after it.
    """
    try:
        wait_for(f"the end of all drivers in {home}", lambda: not drivers_in(home), seconds=60)
    except AssertionError as error:
        raise AssertionError(f"{error}; still running: {drivers_in(home)}") from None


def drivers_in(home: Path) -> list[str]:
    """Return the arguments of what still runs with this folder in its environment or arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            arguments = (process / "cmdline").read_bytes()
            words = arguments + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in words:
            found.append(arguments.replace(b"\0", b" ").decode(errors="replace"))
    return found


def good(figures: Mapping[str, int]) -> bool:
    return not any(figures[name] for name in BAD)


def test_laboratory_loses_and_doubles_no_row_when_drivers_are_killed_and_stores_fail(
    tmp_path: Path,
) -> None:
    status, figures, output = laboratory(tmp_path, "--rounds", "4", "--seed", SEED)
    assert status == 0, output
    assert good(figures)
    assert figures["rounds"] == 4
    assert figures["kills"] >= 2
    assert figures["faults"] >= 2
    assert list(tmp_path.iterdir()) == [], "it cleans up after itself"
    wait_for_end_of_drivers(tmp_path)


@pytest.mark.slow
def test_laboratory_finds_lost_rows_when_the_chain_proof_is_off(
    tmp_path: Path,
) -> None:
    arguments = ("--rounds", "1", "--workers", "1", "--seed", SEED, "--control", "chain")
    status, figures, output = laboratory(tmp_path, *arguments)
    assert status == 1, output
    assert figures["lost"] > 0
    assert figures["duplicated"] == 0
    assert f"python -m tests.chaos --seed {SEED} --only 0 --keep --control chain" in output
    wait_for_end_of_drivers(tmp_path)


@pytest.mark.slow
def test_laboratory_finds_doubled_rows_and_names_the_command_to_repeat_when_the_barrier_is_off(
    tmp_path: Path,
) -> None:
    arguments = ("--rounds", "1", "--workers", "1", "--seed", SEED, "--control", "barrier")
    status, figures, output = laboratory(tmp_path, *arguments)
    assert status == 1, output
    assert figures["duplicated"] > 0
    assert f"python -m tests.chaos --seed {SEED} --only 0 --keep --control barrier" in output
    kept = re.search(r"folder: (.+)", output)
    assert kept
    assert (Path(kept[1]) / "table.lance").is_dir()
    wait_for_end_of_drivers(tmp_path)
