"""Some of the random histories, with other seeds than the long run's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.histories import run
from tests.histories.query import Query
from tests.support.processes import finish, python
from tests.support.searches import search


@search(10, 60)
def test_every_query_reads_what_each_version_changed_once(tmp_path: Path, examples: int) -> None:
    tally = run.histories(examples, seed=7_000 + examples, folder=tmp_path)
    assert not tally.wrong, "\n\n".join(f"{seed}\n{trace}" for seed, trace in tally.wrong.items())
    assert tally.replays > examples, "a search without repeated epochs proves little"
    assert len(tally.operations) > 8


def test_a_lost_row_and_a_doubled_one_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Query.found
    for change in (-1, 1):

        def wrong(query: Query, change: int = change) -> dict[int, Counter[tuple[str, object]]]:
            found = real(query)
            for rows in found.values():
                rows[next(iter(rows))] += change
            return found

        monkeypatch.setattr(Query, "found", wrong)
        tally = run.histories(4, seed=1, folder=tmp_path)
        assert tally.wrong, change
        assert all("AssertionError: version" in trace for trace in tally.wrong.values())


def test_it_is_run_as_a_program() -> None:
    status, output = finish(python("-m", "tests.histories", "--histories", "2", "--seed", "1"))
    assert status == 0, output
    assert "2 histories of seed 1: " in output
    assert " 0 wrong, " in output
