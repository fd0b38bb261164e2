"""Some of the random histories, with other seeds than the long run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest

from airflow_provider_lance.protocol import dataset as port
from airflow_provider_lance.protocol.added_columns import larger_schema
from tests.evolution.run import histories
from tests.support.processes import finish, python
from tests.support.searches import search


@search(6, 60)
def test_every_value_is_where_it_must_be(tmp_path: Path, examples: int) -> None:
    tally = histories(examples, 9_000 + examples, tmp_path)
    assert not tally.wrong, "\n\n".join(f"{seed}\n{trace}" for seed, trace in tally.wrong.items())
    assert tally.seen["columns added"] > examples
    assert tally.seen["FencedError"] > examples, "a search without stale drivers proves little"


def test_values_of_a_dropped_column_that_come_back_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutFiles:
        def __init__(self, dataset: lance.LanceDataset) -> None:
            self.lance_schema = dataset.lance_schema

        def get_fragments(self) -> list[Any]:
            return []

    def careless(dataset: Any, columns: Any) -> Any:
        return larger_schema(WithoutFiles(dataset), columns)  # type: ignore[arg-type]

    monkeypatch.setattr(port, "larger_schema", careless)
    tally = histories(8, 1, tmp_path)
    assert any("found, expected" in trace for trace in tally.wrong.values())


def test_it_is_run_as_a_program() -> None:
    status, output = finish(python("-m", "tests.evolution", "--runs", "2", "--seed", "1"))
    assert status == 0, output
    assert "2 histories, 0 wrong" in output
