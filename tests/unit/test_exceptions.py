from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from airflow_provider_lance import exceptions
from airflow_provider_lance.exceptions import (
    LanceStreamError,
    TerminalError,
    TransientError,
    error_class,
)

ERRORS = [
    member
    for member in vars(exceptions).values()
    if isinstance(member, type) and issubclass(member, LanceStreamError)
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_found_by_its_name(error: type[LanceStreamError]) -> None:
    assert error_class(error.__name__) is error


@pytest.mark.parametrize("name", ["", "ValueError", "fencederror", "StreamingQueryException"])
def test_unknown_error_name_gives_the_root_class(name: str) -> None:
    assert error_class(name) is LanceStreamError


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_the_docstring_is_the_message_unless_there_is_one(error: type[LanceStreamError]) -> None:
    assert str(error()) == str(error.__doc__).splitlines()[0]
    assert str(error()).endswith(".")
    assert str(error("epoch 7 is gone")) == "epoch 7 is gone"


def test_each_error_is_either_terminal_or_transient() -> None:
    branches = {LanceStreamError, TerminalError, TransientError}
    for error in set(ERRORS) - branches:
        assert issubclass(error, TerminalError) != issubclass(error, TransientError), error


def test_the_tree_drawn_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for branch, name in re.findall(r"^    ([ │├└─]*)(\w+Error)\b", str(exceptions.__doc__), re.M):
        depth = len(branch) // 4
        above[depth:] = [name]
        drawn[name] = above[depth - 1] if depth else "Exception"
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in ERRORS}


def test_all_of_exceptions_is_sorted_and_complete() -> None:
    assert exceptions.__all__ == sorted(exceptions.__all__)
    assert set(exceptions.__all__) == {error.__name__ for error in ERRORS} | {"error_class"}


def test_exceptions_import_nothing() -> None:
    tree = ast.parse(Path(str(exceptions.__file__)).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [getattr(node, "module", None) for node in imported] == ["__future__"]
