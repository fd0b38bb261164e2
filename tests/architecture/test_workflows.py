"""Hooks before a commit, the public CI and `make check` run the same commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def _loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def _recipe(target: str) -> list[str]:
    """Return the commands of a target, as they are typed."""
    found = re.search(rf"^{target}:.*\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    lines = found[1].replace("$(BIN)", ".venv/bin").splitlines()
    return [line.strip() for line in lines]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/demo.md"])
def test_each_make_target_that_a_page_names_is_there(page: str) -> None:
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text()))
    assert named
    assert {each for each in named if not re.search(rf"^{each}:", MAKEFILE, re.MULTILINE)} == set()


def test_pre_commit_runs_what_make_check_runs() -> None:
    [repository] = _loaded(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == _recipe("check")
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}


@pytest.mark.parametrize(
    ("job", "command"),
    [
        ("check", "make check"),
        ("test", "make test-all"),
        ("docs", "make docs"),
        ("matrix", 'make matrix COMBINATIONS="oldest newest"'),
    ],
)
def test_the_public_ci_runs_a_make_target(job: str, command: str) -> None:
    steps = _loaded(".github/workflows/ci.yml")["jobs"][job]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [command]
    assert re.search(rf"^{job}:", MAKEFILE, re.MULTILINE)
