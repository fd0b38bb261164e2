"""Some seconds of fuzzing, with other inputs than the long run's."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from airflow_provider_lance.exceptions import SpecError
from tests.fuzz.run import fuzz
from tests.fuzz.subjects import Subject, subjects
from tests.support.processes import finish, python

INPUTS = 100
"""Of each share of a kind; the long run has twenty times as many."""
NAMES = [each.name for each in subjects(Path("/nowhere"))]


@pytest.mark.parametrize("name", NAMES)
def test_each_input_is_accepted_with_the_right_meaning_or_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    kind = next(each for each in subjects(tmp_path) if each.name == name)
    tally = fuzz([kind], INPUTS * kind.share, seed=7)
    found = [f"{where}\n{trace}" for (_, where), (_, trace) in tally.wrong.items()]
    assert not found, "\n\n".join(found)
    assert tally.accepted[name], "a fuzzer that meets refusals only proves little"


def test_what_is_wrong_is_found() -> None:
    def read(given: int) -> None:
        if given % 3 == 0:
            raise SpecError("refused")
        assert given % 3 != 1, "another meaning"
        if given % 2:
            raise KeyError("raw")

    tally = fuzz([Subject("numbers", lambda random: random.randrange(60), read)], 600, seed=1)
    assert tally.inputs == 600
    assert {where.split(" ")[0] for _, where in tally.wrong} == {"AssertionError", "KeyError"}
    assert min(tally.accepted["numbers"], tally.refused["numbers"], tally.raw["numbers"]) > 50


def test_it_is_run_as_a_program() -> None:
    words = ["-m", "tests.fuzz", "--inputs", "300", "--seed", "1", "--only", "stamps"]
    status, output = finish(python(*words))
    assert status == 0, output
    assert "300 inputs of seed 1: 0 wrong" in output


def test_a_seed_decides_the_inputs() -> None:
    kinds = [each for each in subjects(Path("/nowhere")) if each.name == "config values"]
    made = [[kind.make(Random(f"{seed}-1")) for kind in kinds] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
