"""Random searches in two lengths: some in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import pytest


def search(quick: int, full: int) -> pytest.MarkDecorator:
    """Run a test with ``examples`` of a quick and of a full search; the full one is slow."""
    slow = pytest.param(full, marks=pytest.mark.slow, id="full")
    return pytest.mark.parametrize("examples", [pytest.param(quick, id="quick"), slow])
