"""Compare what each tool reads with the rows that were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tests.readers.read import KEY, VECTOR, checksum
from tests.readers.written import Written


@dataclass(frozen=True)
class Answer:
    """What one tool said of one stage: its version, and what it read wrongly or not at all."""

    tool: str
    version: str
    stage: str
    columns: int
    wrong: Mapping[str, str]


def compared(tool: str, stage: str, said: Mapping[str, Any], written: Written) -> Answer:
    """Return what a tool's checksums say, beside those of the rows that were written."""
    rows = written.rows[stage]
    wanted = {name: checksum(rows, name) for name in rows.column_names}
    found = said["columns"]
    wrong = {name: found.get(name, "missing") for name in wanted if found.get(name) != wanted[name]}
    if "nearest" in said and set(said["nearest"]) != (five := set(nearest(rows))):
        wrong["vector search"] = f"{said['nearest']}, not {sorted(five)}"
    return Answer(tool, said["version"], stage, len(wanted), wrong)


def nearest(rows: pa.Table) -> list[int]:
    """Return the keys of the five rows nearest to 0, found by looking at all of them."""
    vectors = [(key, each) for key, each in zip(*_pairs(rows), strict=True) if each]
    away = [(float(np.square(np.array(each, np.float32)).sum()), key) for key, each in vectors]
    return [key for _, key in sorted(away)[:5]]


def _pairs(rows: pa.Table) -> tuple[list[int], list[list[float] | None]]:
    return rows[KEY].to_pylist(), rows[VECTOR].to_pylist()
