"""Milliseconds, and what sums them up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np


def timed(action: Callable[[], object]) -> float:
    """Return how many milliseconds an action took."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share (0 to 1) of the values lies, between two if need be.

    :raises ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values, no percentile")
    return float(np.quantile(values, share))


def median(values: Sequence[float]) -> float:
    """Return the p50."""
    return percentile(values, 0.5)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90 and how many values there are."""
    return {"p50": median(values), "p90": percentile(values, 0.9), "n": len(values)}
