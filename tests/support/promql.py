"""Prometheus' own engine on scraped metrics: a Go program beside the tests, built when needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Evaluated", "evaluate"]

_SOURCE = Path(__file__).parents[1] / "promql"
Found = list[tuple[dict[str, str], float]]


@dataclass(frozen=True)
class Evaluated:
    """What expressions gave at one time, and which alerts fire, by name."""

    queries: list[Found]
    firing: dict[str, Found]


@cache
def _program(folder: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Prometheus' engine is built with Go, and there is no `go` here")
    built = subprocess.run(
        [go, "build", "-o", str(folder / "promql"), "."],
        cwd=_SOURCE,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if built.returncode and ("dial" in built.stderr or "proxy" in built.stderr):
        pytest.skip(f"Prometheus' engine could not be fetched: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    return folder / "promql"


def evaluate(
    folder: Path, scrapes: dict[int, str], *, at: int, queries: list[str], rules: str = ""
) -> Evaluated:
    """Evaluate expressions, and the rules of a file.

    :param folder: where the program is built; the same for all tests.
    :param scrapes: by time in seconds, what the exporter answered.
    """
    document = {
        "scrapes": [{"seconds": when, "text": scrapes[when]} for when in sorted(scrapes)],
        "rules": rules,
        "queries": queries,
        "at": at,
    }
    ran = subprocess.run(
        [str(_program(folder))],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    made = json.loads(ran.stdout)
    return Evaluated(
        [_found(each) for each in made["queries"]],
        {name: _found(each) for name, each in made["firing"].items()},
    )


def _found(given: list[dict[str, Any]]) -> Found:
    return [(each["labels"], each["value"]) for each in given]
