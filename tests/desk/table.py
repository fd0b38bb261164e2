"""The table of trouble, from the kinds that the tests register."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.desk.desk import KINDS

__all__ = ["lines"]

HEAD = "| trouble | finding | what ends it | rows |"


def lines() -> Iterator[str]:
    """Yield the table in Markdown, sorted by code."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"tests.desk.{path.stem}")
    yield HEAD
    yield "|---|---|---|---|"
    for each in sorted(KINDS.values(), key=lambda each: str(each.code)):
        yield each.row
