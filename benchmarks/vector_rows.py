"""Vectors that anybody can compute again from a row's number; for `benchmarks.vectors`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["DIMENSIONS", "SCHEMA", "table", "vectors"]

DIMENSIONS = 768
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("vector", pa.list_(pa.float32(), DIMENSIONS)),
    ]
)
_CLUSTERS = 200
_LATENT = 24
"""Dimensions in which the vectors of a cluster differ; embeddings have few, too."""
_WIDTH = 0.1
"""Of a cluster: two of its vectors are a third as far apart as two centres."""


@cache
def _space() -> tuple[Any, ...]:
    random = np.random.default_rng(7)
    centres = random.standard_normal((2, _CLUSTERS, DIMENSIONS), dtype=np.float32)
    basis = random.standard_normal((_LATENT, DIMENSIONS), dtype=np.float32)
    return centres, basis, random.uniform(1, 1000, _LATENT), random.uniform(0, 6.28, _LATENT)


def vectors(ids: Any, angle: float = 0.0) -> Any:
    """Return the vectors of rows, float32; their clusters' centres are turned by an angle."""
    centres, basis, factors, phases = _space()
    turned = np.cos(angle) * centres[0] + np.sin(angle) * centres[1]
    latent = np.sin(np.outer(ids, factors) + phases).astype(np.float32)
    noise = 0.1 * np.sin(np.outer(ids, np.arange(1, DIMENSIONS + 1) * 12.9898))
    found = turned[(ids * 2654435761) % _CLUSTERS] + latent @ basis * _WIDTH + noise
    return found.astype(np.float32)


def table(ids: Any, angle: float = 0.0) -> pa.Table:
    """Return rows as a table."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors(ids, angle).ravel()), DIMENSIONS)
    return pa.table({"id": ids, "vector": column}, schema=SCHEMA)
